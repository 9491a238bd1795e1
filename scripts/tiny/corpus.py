"""Deterministic synthetic corpus for the embedded tiny model.

The texts are our own, except the fixed sentences of the released prompt format
(tool list, response format, reasoning effort).  A document is a list of (text, weight)
segments; the boundary between two segments always falls on a special token, so
that tokenizing the segments one by one equals tokenizing the whole document.
The weight scales the loss of the tokens of that segment (random key tables
carry no information worth learning, answers do).

    python corpus.py --show 12            # look at some documents
    python corpus.py --tasks 200 > t.json # held-out task items with answers

Held-out split: a document whose key hashes to 0 modulo 16 never appears in
training; `task_items` yields only such documents.  `score` is exact match on
the stripped answer.
"""

# ruff: noqa: E501 (sentences stay whole)
from __future__ import annotations

import argparse
import json
import lzma
import os
import random
import re
import zlib

BOS, EOS = "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"
SYSTEM, USER, ASSISTANT = "<｜System｜>", "<｜User｜>", "<｜Assistant｜>"
THINK, NO_THINK, DSML = "<think>", "</think>", "｜DSML｜"
HOLDOUT = 16


def heldout(key: str) -> bool:
    return zlib.crc32(key.encode()) % HOLDOUT == 0


# --- words ---------------------------------------------------------------------------------

GIRLS = "Anna Mia Lily Emma Zoe Ruby Nora Ella Clara Lucy Ivy Rosa Maya Sara Jane Kate Tess Wendy Olga Pia".split()
BOYS = "Tom Ben Max Leo Sam Jack Finn Hugo Otto Noah Paul Oscar Theo Will Adam Eric Ravi Omar Luis Dan".split()
ANIMALS = (
    "fox bear rabbit mouse owl hedgehog squirrel frog duck turtle badger deer otter crow goat pony kitten puppy "
    "beaver hen sparrow lamb donkey snail beetle"
).split()
ANIMAL_NAMES = "Pip Dot Bram Moss Fern Hazel Nib Tilly Bruno Wisp Olive Rusty Pebble Clover Biscuit Juniper Tuck Plum Sage Acorn".split()
COLORS = "red blue green yellow orange purple white black brown pink silver gold gray".split()
SIZES = "small big tiny large little round long heavy light flat".split()
OBJECTS = (
    "ball kite lantern drum key hat scarf boat basket bell book cup blanket whistle puzzle ladder bucket shovel "
    "compass mirror ribbon coin button map wagon umbrella candle jar brush teapot rope flute box stone feather"
).split()
FOODS = (
    "apple pear bread soup cake honey cheese carrot berry pie plum cookie corn nut pancake tomato peach potato "
    "muffin melon"
).split()
PLACES = (
    "forest river garden hill beach village market barn lake meadow school library mill bridge cave harbor park "
    "farm kitchen tower valley orchard pond station"
).split()
WEATHER = "sunny windy rainy cold warm foggy snowy quiet bright cloudy".split()
CITIES = "Paris Rome London Oslo Cairo Lima Tokyo Berlin Madrid Dublin Vienna Boston Delhi Lisbon Athens Prague".split()
JOBS = (
    "baker farmer teacher doctor painter sailor driver gardener singer cook builder nurse tailor miller pilot".split()
)
HOBBIES = "painting swimming reading singing dancing running cooking fishing drawing climbing skating knitting".split()
DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
MONTHS = "January February March April May June July August September October November December".split()
CAPITALS = {
    "France": "Paris",
    "Italy": "Rome",
    "England": "London",
    "Norway": "Oslo",
    "Egypt": "Cairo",
    "Peru": "Lima",
    "Japan": "Tokyo",
    "Germany": "Berlin",
    "Spain": "Madrid",
    "Ireland": "Dublin",
    "Austria": "Vienna",
    "India": "Delhi",
    "Portugal": "Lisbon",
    "Greece": "Athens",
    "Poland": "Warsaw",
    "Sweden": "Stockholm",
    "Kenya": "Nairobi",
    "Cuba": "Havana",
    "Chile": "Santiago",
    "Canada": "Ottawa",
}
SOUNDS = {
    "dog": "woof",
    "cat": "meow",
    "cow": "moo",
    "duck": "quack",
    "sheep": "baa",
    "lion": "roar",
    "owl": "hoot",
    "frog": "croak",
    "bee": "buzz",
    "snake": "hiss",
    "horse": "neigh",
    "pig": "oink",
}
OPPOSITES = {
    "hot": "cold",
    "big": "small",
    "fast": "slow",
    "up": "down",
    "day": "night",
    "open": "closed",
    "wet": "dry",
    "happy": "sad",
    "old": "new",
    "hard": "soft",
    "light": "dark",
    "full": "empty",
    "early": "late",
    "near": "far",
    "high": "low",
    "left": "right",
    "first": "last",
    "rich": "poor",
    "loud": "quiet",
    "young": "old",
    "strong": "weak",
    "clean": "dirty",
}
FACTS = [
    ("How many legs does a spider have?", "A spider has eight legs."),
    ("How many days are in a week?", "There are seven days in a week."),
    ("How many months are in a year?", "There are twelve months in a year."),
    ("What do bees make?", "Bees make honey."),
    ("What color is the sky on a clear day?", "The sky is blue on a clear day."),
    ("What color is grass?", "Grass is green."),
    ("Where do fish live?", "Fish live in water."),
    ("What do we use to see?", "We use our eyes to see."),
    ("What do we use to hear?", "We use our ears to hear."),
    ("What is frozen water called?", "Frozen water is called ice."),
    ("What gives us light during the day?", "The sun gives us light during the day."),
    ("What can we see in the sky at night?", "At night we can see the moon and the stars."),
    ("What do plants need to grow?", "Plants need water, light and soil to grow."),
    ("Why do we sleep?", "We sleep so that our body and mind can rest."),
    ("What is the opposite of a question?", "The opposite of a question is an answer."),
    ("What is bread made from?", "Bread is made from flour, water and yeast."),
    ("How many minutes are in an hour?", "There are sixty minutes in an hour."),
    ("How many hours are in a day?", "There are twenty-four hours in a day."),
    ("What is a baby cat called?", "A baby cat is called a kitten."),
    ("What is a baby dog called?", "A baby dog is called a puppy."),
    ("What season comes after winter?", "Spring comes after winter."),
    ("What season comes after summer?", "Autumn comes after summer."),
    ("Which animal is known for carrying its house?", "The snail carries its house on its back."),
    ("What do you do with a book?", "You read a book."),
    ("What is a map for?", "A map shows you where places are and how to reach them."),
    ("What is a bridge for?", "A bridge lets people cross a river or a road."),
    ("Who are you?", "I am a tiny language model. I can tell small stories and answer simple questions."),
    ("What can you do?", "I can tell a short story, add small numbers, look things up in a text and write JSON."),
    ("How are you?", "I am fine, thank you. How can I help you?"),
]
ONES = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen"
).split()
TENS = "_ _ twenty thirty forty fifty sixty seventy eighty ninety".split()


def words_of(n: int) -> str:
    if n < 20:
        return ONES[n]
    if n < 100:
        return TENS[n // 10] + ("-" + ONES[n % 10] if n % 10 else "")
    return ONES[n // 100] + " hundred" + (" and " + words_of(n % 100) if n % 100 else "")


def an(word: str) -> str:
    return ("an " if word[0] in "aeiou" else "a ") + word


# --- a small phrase grammar ------------------------------------------------------------------

_CHOICE = re.compile(r"\[([^\[\]]*)\]")
_SLOT = re.compile(r"\{(\w+)\}")


def expand(template: str, rng: random.Random, env: dict) -> str:
    """Choose among [a|b|c] (innermost first), then fill {slots}."""
    while True:
        match = _CHOICE.search(template)
        if match is None:
            break
        template = template[: match.start()] + rng.choice(match.group(1).split("|")) + template[match.end() :]
    return _SLOT.sub(lambda m: env[m.group(1)], template)


def make_person(rng: random.Random, taken: set) -> dict:
    """A child or an animal, with the pronouns that belong to it."""
    kind = rng.random()
    while True:
        if kind < 0.35:
            name, she, who = rng.choice(GIRLS), True, "girl"
        elif kind < 0.7:
            name, she, who = rng.choice(BOYS), False, "boy"
        else:
            name, she, who = rng.choice(ANIMAL_NAMES), rng.random() < 0.5, rng.choice(ANIMALS)
        if name not in taken:
            taken.add(name)
            break
    he, him, his = ("she", "her", "her") if she else ("he", "him", "his")
    return {"name": name, "who": who, "he": he, "him": him, "his": his, "He": he.capitalize(), "His": his.capitalize()}


def story_env(rng: random.Random) -> dict:
    taken: set = set()
    a, b = make_person(rng, taken), make_person(rng, taken)
    env = dict(
        N=a["name"],
        who=a["who"],
        he=a["he"],
        him=a["him"],
        his=a["his"],
        He=a["He"],
        His=a["His"],
        M=b["name"],
        mwho=b["who"],
        mhe=b["he"],
        mhim=b["him"],
        mhis=b["his"],
        MHe=b["He"],
    )
    env["awho"], env["amwho"] = an(a["who"]), an(b["who"])
    obj, obj2 = rng.sample(OBJECTS, 2)
    food, food2 = rng.sample(FOODS, 2)
    p1, p2, p3 = rng.sample(PLACES, 3)
    c1, c2 = rng.sample(COLORS, 2)
    env.update(
        obj=obj,
        obj2=obj2,
        food=food,
        food2=food2,
        p1=p1,
        p2=p2,
        p3=p3,
        c1=c1,
        c2=c2,
        aobj=an(obj),
        aobj2=an(obj2),
        afood=an(food),
        ac1=an(c1),
        ac2=an(c2),
        w=rng.choice(WEATHER),
        size=rng.choice(SIZES),
        day=rng.choice(DAYS),
        n=ONES[rng.randint(2, 9)],
        hobby=rng.choice(HOBBIES),
        job=rng.choice(JOBS),
    )
    env["asize"], env["ajob"] = an(env["size"]), an(env["job"])
    return env


OPENINGS = [
    "[Once upon a time|Once|Long ago], there was {awho} named {N}. {He} lived [near|close to|not far from] the {p1}. ",
    "{N} was {awho} who [loved|liked] {hobby}. {He} lived in a {c2} house by the {p1}. ",
    "In a [little|quiet|small] [village|town] by the {p1} lived {awho} called {N}. ",
    "It was a {w} {day}. {N} the {who} woke up [early|late] and looked out of the window. ",
    "There once was {awho} named {N}. Every {day} {he} went to the {p1}. ",
]
PLOTS = [
    # a lost thing
    [
        "{N} had {ac1} {obj}. {He} [took it everywhere|played with it every day|loved it very much]. ",
        "One {w} day, {N} went to the {p2} and [lost the {obj}|could not find the {obj} anymore]. {He} was [very sad|worried|upset]. ",
        '"[Where is my {obj}?|Have you seen my {obj}?|I lost my {obj}!]" {he} [asked|cried]. ',
        '{M} the {mwho} heard {him}. "[Do not worry|Do not cry], {N}," said {M}. "[We will look for it together|I will help you find it]." ',
        "They looked [under the bench|behind the door|in the tall grass|next to a big stone] and in the {p3}. [Nothing was there|They found only {aobj2}]. ",
        "[Then|At last|Suddenly], {M} saw something {c1} [under a tree|by the path|near the water]. It was the {obj}! ",
        '[{N} smiled and hugged {M}. |{N} laughed. "Thank you, {M}!" {he} said. ]',
    ],
    # sharing
    [
        "{N} had [a basket full of {food} to eat|some {food} and a little {food2}]. {He} wanted to eat it all alone. ",
        "On the way to the {p2}, {N} met {M} the {mwho}. {M} was [hungry|very hungry]. ",
        '"[Can I have some {food}?|May I eat with you?]" asked {M}. ',
        '{N} thought [for a moment|about it]. ["No," {he} said, and walked on|{He} did not want to share]. ',
        "But then {N} saw that {M} was sad, and {he} felt sad too. ",
        '"[Wait|Come back], {M}!" {N} called. "[Let us eat together|There is enough for both of us]." ',
        "They sat down by the {p3} and shared the {food}. [It tasted better than before|They talked and laughed until the sun went down]. ",
    ],
    # making something
    [
        "{N} wanted to make {aobj} for {M}, because it was {mhis} birthday on {day}. ",
        "{He} [needed|looked for] some {c1} paint and {aobj2}. {He} found them in the {p2}. ",
        "At first, the {obj} [broke|fell apart|looked very strange]. {N} was [angry|sad], but {he} tried again. ",
        "{He} worked [all morning|the whole day|for {n} days]. ",
        "[At last|Finally], the {obj} was ready. It was {c1} and very [pretty|nice|strong]. ",
        'On {day}, {N} gave it to {M} the {mwho}. "[I made it for you|This is for you]," said {N}. ',
        '"[It is the best present of all|I love it]," said {M}. ',
    ],
    # fear
    [
        "{N} was afraid of [the dark|the deep water|loud noises|high places]. ",
        'One {w} evening, {M} the {mwho} [came running|knocked on the door]. "[Please help me|I need you], {N}! My {obj} is in the {p2}, and I cannot reach it." ',
        "{N} was scared, but {he} wanted to help {his} friend. {He} took {aobj2} and went to the {p2}. ",
        "It was [very dark|very quiet] there. {N} [held {his} breath|counted to {n}] and walked on, step by step. ",
        '"[I can do it|I am brave]," {he} said to {him}self. ',
        "Then {he} saw the {c1} {obj} and brought it back to {M}. ",
        '"You are so brave!" said {M}. {N} was [proud|happy]. [Now {he} was not afraid anymore|The dark was not so bad after all]. ',
    ],
    # garden
    [
        "{N} found a {size} seed in the {p2}. {He} [put it in the ground|planted it in the garden]. ",
        "Every day {he} gave it some water from {ac1} bucket. [Nothing happened|But nothing grew]. ",
        '"[Maybe it is a bad seed|It will never grow]," said {M} the {mwho}. ',
        '"[I will wait|Let us wait a little]," said {N}. {He} waited for {n} days. ',
        "[One morning|On {day}], there was a small green leaf. [Then there were {n} leaves|It grew and grew]. ",
        "In the end it was a big plant with {c2} flowers[| and sweet fruit]. ",
        '{M} was surprised. "[You were right to wait|You did not give up]," {mhe} said. ',
    ],
    # race
    [
        'One day, {M} the {mwho} said, "I am faster than you, {N}! Let us race to the {p2}." ',
        '"[All right|Good idea]," said {N}. "The winner gets {ac1} {obj}." ',
        "They started at the {p3}. {M} ran very fast, and soon {mhe} was far ahead. ",
        "{M} [stopped to eat {afood}|lay down to sleep under a tree|stopped to look at {mhim}self in the water]. {N} did not stop. ",
        "{He} went on, [slowly but surely|step by step], past the old tree and over the bridge. ",
        "When {M} [looked up|woke up], {N} was already at the {p2}. ",
        '"You won," said {M}. ["Next time I will not stop."|They both laughed.] {N} shared the {obj} with {mhim}. ',
    ],
    # weather
    [
        "One day the sky became [dark|gray], and [the rain began to fall|a strong wind began to blow]. ",
        "{N} was in the {p2} with {his} {c1} {obj}. {He} [wanted to go home|looked for a dry place]. ",
        "[Under a big tree|In an old barn|Near the bridge] {he} met {M} the {mwho}, who was [wet and cold|shaking]. ",
        '"[Come here|Take this]," said {N}, and gave {mhim} [a warm blanket|{his} scarf|{his} coat]. ',
        "They [told each other stories|sang songs|ate {food} and {food2}] until the storm was over. ",
        "Then the sun came out, and there was a rainbow over the {p3}. ",
        '"[Thank you for helping me|You are kind]," said {M}. ',
    ],
    # learning
    [
        "{N} wanted to be {ajob} one day. But {he} did not know how to begin. ",
        '{He} went to old {M} the {mwho}, who lived in the {p2}. "[Please teach me|Can you help me learn]?" {he} asked. ',
        '"First, you must [practice every day|listen and look|be patient]," said {M}. ',
        "{N} [tried|worked] very hard. On {day} {he} made {n} mistakes, and the next day {he} made fewer. ",
        'Sometimes {he} wanted to stop, but {M} said, "[Do not give up|Try once more]." ',
        "After a long time, {N} was good at it. Everyone at the {p3} was [surprised|glad]. ",
        "{M} gave {him} {ac1} {obj} as a gift. ",
    ],
    # a door / discovery
    [
        "On {day}, {N} found {ac1} key in the {p2}. {He} did not know what it was for. ",
        "{He} tried it on the door of the {p3}, but it did not fit. Then {he} tried it on an old box. It did not open. ",
        '{M} the {mwho} came by. "[What do you have there|What is that], {N}?" {mhe} asked. ',
        '"It is a key, but I cannot find its lock," said {N}. ',
        '"I know [a small door behind the {p1}|a strange little door]," said {M}. They went there together. ',
        "The key turned with a click, and the door opened. Inside there was {aobj} and {aobj2}, and [a letter|a note]. ",
        'The [letter|note] said, "[Whoever finds this should share it|For the one who is curious]." So they shared it. ',
    ],
    # noise at night
    [
        "One night, {N} heard a strange [noise|sound]. [Tap, tap, tap|Knock, knock, knock]. It came from the {p2}. ",
        "{N} could not sleep. {He} took a candle and [opened the door|went outside] very slowly. ",
        '"[Who is there?|Hello?]" {he} [asked|whispered]. Nobody answered. ',
        "[Tap, tap, tap|Knock, knock, knock]. {N} looked behind {ac1} {obj}, and there was {M} the {mwho}! ",
        '"I am [hungry|looking for my {obj2}]," said {M}. "I did not want to wake you." ',
        '{N} laughed. "You can always wake me," {he} said. ',
        "{He} gave {M} [some {food}|{afood} and some water], and they sat together until the morning. ",
    ],
]
ENDINGS = [
    "From that day on, {N} and {M} were [best|good] friends.\n",
    "{N} [went home happy|was very happy]. [It had been a good day|What a day it was].\n",
    "And {N} never forgot [that day|what {M} had done].\n",
    "That night, {N} slept [well|very well] and dreamed of the {p2}.\n",
]


MORALS = [
    "[it is good to ask for help|friends are more important than things]",
    "[sharing makes everyone happy|food tastes better with a friend]",
    "[it is good to try again|a present made by hand is the best]",
    "[it is good to be brave|helping a friend makes us brave]",
    "[good things take time|it is good to be patient]",
    "[it is better to be steady than to be proud|the race is not over until the end]",
    "[it is good to help others|a kind heart is never cold]",
    "[practice makes us better|nobody is good at once]",
    "[every key has its door|it is good to be curious]",
    "[not every noise is a bad noise|a friend is welcome at any time]",
]
assert len(MORALS) == len(PLOTS)


def make_story(rng: random.Random, env: dict | None = None) -> tuple[str, dict, int]:
    env = env or story_env(rng)
    plot = rng.randrange(len(PLOTS))
    ending = rng.choice(ENDINGS + [f"{{N}} learned that {MORALS[plot]}.\n"] * 2)
    text = "".join(expand(p, rng, env) for p in [rng.choice(OPENINGS)] + PLOTS[plot]) + expand(ending, rng, env)
    if rng.random() < 0.5:  # paragraphs
        sentences = text.split(". ")
        cut = len(sentences) // 2
        text = ". ".join(sentences[:cut]) + ".\n\n" + ". ".join(sentences[cut:])
    return text, env, plot


# --- chat rendering (the released V4.1 prompt format) -----------------------------------------

RANDOM_W, PROMPT_W = 0.1, 0.3


def chat(
    turns: list[tuple[str, str]],
    system: str | None = None,
    prompt_weight: float = PROMPT_W,
    thoughts: list[str | None] | None = None,
    effort: int | None = None,
) -> list[tuple[str, float]]:
    """Segments of a conversation; `thoughts` switches the thinking format on.

    With thinking on, past turns lose their reasoning, as the released encoder does.
    """
    head = BOS
    thinking = thoughts is not None
    if thinking:
        head += (
            SYSTEM
            + f"Reasoning Effort: {effort or 75} (range 1-100, the higher the value, the more thorough the reasoning)\n\n"
        )
        head += system or ""
    elif system is not None:
        head += SYSTEM + system
    segments = []
    for i, (user, answer) in enumerate(turns):
        last = i == len(turns) - 1
        opening = (THINK if last else NO_THINK) if thinking else NO_THINK
        segments.append((head + USER + user, prompt_weight))
        segments.append((ASSISTANT + opening, 0.0))
        if thinking and last and thoughts[i]:
            segments[-1] = (ASSISTANT + THINK + thoughts[i], 1.0)
            segments.append((NO_THINK + answer, 1.0))
            segments.append((EOS, 1.0))
        else:
            segments[-1] = (ASSISTANT + opening + answer, 1.0)
            segments.append((EOS, 1.0))
        head = ""
    return segments


# --- tasks: each returns (key, segments, prompt turns, answer) -----------------------------------


def _item(kind, key, turns, answer, system=None, weight=PROMPT_W, thoughts=None, effort=None):
    full = turns[:-1] + [(turns[-1][0], answer)]
    segments = chat(full, system, weight, thoughts, effort)
    return {"task": kind, "key": f"{kind}:{key}", "segments": segments, "answer": answer}


def task_add(rng):
    if rng.random() < 0.25:
        a, b = rng.randint(0, 20), rng.randint(0, 20)
    else:
        a, b = rng.randint(0, 99), rng.randint(0, 99)
    ask = rng.choice(["What is {a} + {b}?", "Add {a} and {b}.", "{a} + {b} = ?", "How much is {a} plus {b}?"])
    return _item("add", f"{a}+{b}", [(ask.format(a=a, b=b), "")], f"{a} + {b} = {a + b}.", weight=0.1)


def task_sub(rng):
    a, b = sorted((rng.randint(0, 99), rng.randint(0, 99)), reverse=True)
    ask = rng.choice(["What is {a} - {b}?", "Take {b} away from {a}.", "{a} - {b} = ?"])
    return _item("sub", f"{a}-{b}", [(ask.format(a=a, b=b), "")], f"{a} - {b} = {a - b}.", weight=0.1)


def task_think_add(rng):
    a, b = rng.randint(10, 99), rng.randint(10, 99)
    ones = a % 10 + b % 10
    tens = a // 10 + b // 10
    thought = (
        f"Ones: {a % 10} + {b % 10} = {ones}. Tens: {a // 10} + {b // 10} = {tens}. "
        f"{tens} tens and {ones} ones are {a + b}."
    )
    item = _item(
        "think_add",
        f"{a}+{b}",
        [(f"What is {a} + {b}?", "")],
        f"{a} + {b} = {a + b}.",
        weight=0.1,
        thoughts=[thought],
        effort=rng.choice([50, 75, 75, 100]),
    )
    return item


def task_compare(rng):
    a, b = rng.sample(range(100), 2)
    big = rng.random() < 0.5
    ask = f"Which number is {'larger' if big else 'smaller'}, {a} or {b}?"
    return _item("compare", f"{a},{b},{big}", [(ask, "")], f"{max(a, b) if big else min(a, b)}", weight=0.1)


def task_count(rng):
    lo = rng.randint(0, 80)
    hi = lo + rng.randint(3, 16)
    step = rng.choice([1, 1, 1, 2])
    if rng.random() < 0.3:
        ask = f"Count down from {hi} to {lo}."
        seq, key = list(range(hi, lo - 1, -1)), f"d{lo},{hi}"
    else:
        ask = f"Count from {lo} to {hi}." if step == 1 else f"Count from {lo} to {hi} in steps of two."
        seq, key = list(range(lo, hi + 1, step)), f"u{lo},{hi},{step}"
    return _item("count", key, [(ask, "")], ", ".join(map(str, seq)), weight=0.1)


def task_words_number(rng):
    n = rng.randint(0, 199)
    if rng.random() < 0.5:
        return _item("spell", f"w{n}", [(f"Write {n} in words.", "")], words_of(n), weight=0.1)
    return _item("spell", f"n{n}", [(f"Write {words_of(n)} as a number.", "")], str(n), weight=0.1)


def task_copy(rng):
    n = rng.randint(4, 24)
    pool = OBJECTS + FOODS + COLORS + PLACES + ANIMALS
    words = [rng.choice(pool) if rng.random() < 0.8 else str(rng.randint(0, 999)) for _ in range(n)]
    text = " ".join(words)
    ask = rng.choice(["Repeat this: ", "Say exactly this: ", "Copy this text: "]) + text
    return _item("copy", text, [(ask, "")], text, weight=RANDOM_W)


def task_reverse(rng):
    words = rng.sample(OBJECTS + FOODS + COLORS, rng.randint(3, 6))
    return _item(
        "reverse",
        " ".join(words),
        [("Reverse the order of these words: " + ", ".join(words), "")],
        ", ".join(reversed(words)),
        weight=RANDOM_W,
    )


def task_sort(rng):
    if rng.random() < 0.5:
        values = rng.sample(range(100), rng.randint(3, 6))
        return _item(
            "sort",
            str(values),
            [("Sort these numbers: " + ", ".join(map(str, values)), "")],
            ", ".join(map(str, sorted(values))),
            weight=RANDOM_W,
        )
    words = rng.sample(OBJECTS + FOODS, rng.randint(3, 5))
    return _item(
        "sort",
        " ".join(words),
        [("Sort these words by the alphabet: " + ", ".join(words), "")],
        ", ".join(sorted(words)),
        weight=RANDOM_W,
    )


def _table(rng, n):
    """n distinct facts of one kind: (line, question, answer)."""
    style = rng.randrange(5)
    rows = []
    if style == 0:
        keys = rng.sample([f"{c} {o}" for c in COLORS for o in OBJECTS], n)
        for k in keys:
            v = str(rng.randint(1000, 9999))
            rows.append((f"The code of the {k} is {v}.", f"What is the code of the {k}?", v))
    elif style == 1:
        keys = rng.sample(GIRLS + BOYS + ANIMAL_NAMES, min(n, 50))
        for k in keys:
            v = rng.choice(COLORS) + " " + rng.choice(OBJECTS)
            rows.append((f"{k} has {an(v)}.", f"What does {k} have?", an(v)))
    elif style == 2:
        keys = rng.sample([f"{s} {o}" for s in SIZES for o in OBJECTS], n)
        for k in keys:
            v = rng.choice(PLACES)
            rows.append((f"The {k} is in the {v}.", f"Where is the {k}?", f"in the {v}"))
    elif style == 3:
        keys = rng.sample(
            [f"{x} {y}" for x in BOYS + GIRLS for y in "Hill Stone Brook Field Wood Lake Ford Marsh".split()], n
        )
        for k in keys:
            v = rng.choice(JOBS) + " in " + rng.choice(CITIES)
            rows.append((f"{k} is {an(v)}.", f"What does {k} do?", an(v)))
    else:
        keys = rng.sample(range(100, 1000), n)
        for k in keys:
            v = rng.choice(FOODS)
            rows.append((f"Room {k}: {v}", f"What is in room {k}?", v))
    return rows


def _lookup(rng, kind, n, filler):
    rows = _table(rng, n)
    lines = [r[0] for r in rows]
    if filler:  # prose between the notes pushes the needle far away
        for _ in range(filler):
            lines.insert(rng.randrange(len(lines) + 1), make_story(rng)[0].strip())
    asked = rng.sample(rows, min(len(rows), rng.choice([1, 2, 3, 4])))
    head = (
        rng.choice(["Read these notes.", "Here are some notes.", "Remember the following."]) + "\n\n" + "\n".join(lines)
    )
    turns = [(head + "\n\n" + asked[0][1], asked[0][2] + ".")]
    turns += [(q, a + ".") for _, q, a in asked[1:]]
    item = _item(kind, "\n".join(lines) + asked[-1][1], turns, turns[-1][1], weight=RANDOM_W)
    return item


def task_lookup(rng):
    return _lookup(rng, "lookup", rng.randint(2, 24), 0)


def task_lookup_long(rng):
    return _lookup(rng, "lookup_long", rng.randint(4, 40), rng.choice([1, 1, 2, 2, 3, 4, 6, 8]))


def task_story_qa(rng):
    text, env, plot = make_story(rng)
    questions = [
        (f"What kind of person or animal is {env['N']}?", f"{env['N']} is {an(env['who'])}."),
        (f"Who is {env['N']}?", f"{env['N']} is {an(env['who'])}."),
    ]
    if env["M"] + " the " in text:
        questions.append((f"Who is {env['M']}?", f"{env['M']} is {an(env['mwho'])}."))
        questions.append((f"Who did {env['N']} meet?", f"{env['N']} met {env['M']} the {env['mwho']}."))
    if f"{env['c1']} {env['obj']}" in text:
        questions.append((f"What color is the {env['obj']}?", f"The {env['obj']} is {env['c1']}."))
    turns = rng.sample(questions, min(len(questions), rng.randint(1, 3)))
    first = (text.strip() + "\n\n" + turns[0][0], turns[0][1])
    turns = [first] + turns[1:]
    return _item("story_qa", text + turns[-1][0], turns, turns[-1][1], weight=0.3)


def task_memory(rng):
    """Facts given early in a conversation and asked for later."""
    name, city, hobby = rng.choice(GIRLS + BOYS), rng.choice(CITIES), rng.choice(HOBBIES)
    color, food = rng.choice(COLORS), rng.choice(FOODS)
    age = rng.randint(5, 90)
    intro = [
        (f"Hello! My name is {name}.", f"Hello, {name}! Nice to meet you."),
        (f"I live in {city}.", f"{city} is a nice place to live."),
        (f"I like {hobby}.", f"{hobby.capitalize()} is fun!"),
        (f"My favorite color is {color}.", f"{color.capitalize()} is a beautiful color."),
        (f"I am {age} years old.", "Thank you for telling me your age."),
        (f"I love to eat {food}.", f"I hear that {food} tastes good."),
    ]
    ask = [
        ("What is my name?", f"Your name is {name}."),
        ("Where do I live?", f"You live in {city}."),
        ("What do I like?", f"You like {hobby}."),
        ("What is my favorite color?", f"Your favorite color is {color}."),
        ("How old am I?", f"You are {age} years old."),
        ("What do I love to eat?", f"You love to eat {food}."),
    ]
    order = rng.sample(range(6), rng.randint(2, 6))
    turns = [intro[i] for i in order]
    for i in rng.sample(order, rng.randint(1, len(order))):
        if rng.random() < 0.25:
            turns.append(rng.choice(FACTS))
        turns.append(ask[i])
    return _item("memory", f"{name}{city}{hobby}{color}{food}{age}{turns[-1][0]}", turns, turns[-1][1])


def task_fact(rng):
    r = rng.randrange(8)
    if r == 0:
        q, a = rng.choice(FACTS)
    elif r == 1:
        c = rng.choice(list(CAPITALS))
        q, a = (
            rng.choice([f"What is the capital of {c}?", f"Which city is the capital of {c}?"]),
            f"The capital of {c} is {CAPITALS[c]}.",
        )
    elif r == 2:
        c = rng.choice(list(CAPITALS))
        q, a = f"In which country is {CAPITALS[c]}?", f"{CAPITALS[c]} is in {c}."
    elif r == 3:
        s = rng.choice(list(SOUNDS))
        q, a = f"What sound does {an(s)} make?", f"{an(s).capitalize()} says {SOUNDS[s]}."
    elif r == 4:
        w = rng.choice(list(OPPOSITES))
        q, a = f"What is the opposite of {w}?", f"The opposite of {w} is {OPPOSITES[w]}."
    elif r == 5:
        i = rng.randrange(7)
        q, a = f"What day comes after {DAYS[i]}?", f"{DAYS[(i + 1) % 7]} comes after {DAYS[i]}."
    elif r == 6:
        i = rng.randrange(12)
        q, a = f"What month comes after {MONTHS[i]}?", f"{MONTHS[(i + 1) % 12]} comes after {MONTHS[i]}."
    else:
        i = rng.randrange(12)
        q, a = f"Which month is number {i + 1}?", f"Month number {i + 1} is {MONTHS[i]}."
    item = _item("fact", q, [(q, "")], a)
    item["key"] = "fact:train"  # facts are learned by heart: nothing to hold out
    return item


# JSON -----------------------------------------------------------------------------------------

SCHEMAS = {
    "person": {
        "type": "object",
        "properties": {"name": {"type": "string"}, "age": {"type": "integer"}, "city": {"type": "string"}},
        "required": ["name", "age", "city"],
    },
    "item": {
        "type": "object",
        "properties": {"item": {"type": "string"}, "color": {"type": "string"}, "count": {"type": "integer"}},
        "required": ["item", "color", "count"],
    },
    "job": {
        "type": "object",
        "properties": {"name": {"type": "string"}, "job": {"type": "string"}, "retired": {"type": "boolean"}},
        "required": ["name", "job", "retired"],
    },
    "list": {
        "type": "object",
        "properties": {"place": {"type": "string"}, "things": {"type": "array", "items": {"type": "string"}}},
        "required": ["place", "things"],
    },
}


def _record(rng):
    kind = rng.choice(list(SCHEMAS))
    if kind == "person":
        v = {"name": rng.choice(GIRLS + BOYS), "age": rng.randint(3, 99), "city": rng.choice(CITIES)}
        t = rng.choice(
            [
                "{name} is {age} years old and lives in {city}.",
                "In {city} lives {name}, who is {age}.",
                "{name}, {age}, comes from {city}.",
            ]
        ).format(**v)
    elif kind == "item":
        v = {"item": rng.choice(OBJECTS), "color": rng.choice(COLORS), "count": rng.randint(2, 40)}
        t = rng.choice(
            [
                "We have {count} pieces of the {color} {item}.",
                "The shop sells the {color} {item}. There are {count} left.",
            ]
        ).format(**v)
    elif kind == "job":
        v = {"name": rng.choice(GIRLS + BOYS), "job": rng.choice(JOBS), "retired": rng.random() < 0.5}
        t = (
            f"{v['name']} was {an(v['job'])} for many years and does not work anymore."
            if v["retired"]
            else f"{v['name']} works as {an(v['job'])}."
        )
    else:
        v = {"place": rng.choice(PLACES), "things": rng.sample(OBJECTS, rng.randint(1, 4))}
        things = [an(x) for x in v["things"]]
        t = (
            f"In the {v['place']} there is "
            + (things[0] if len(things) == 1 else ", ".join(things[:-1]) + " and " + things[-1])
            + "."
        )
    return kind, v, t


def task_json(rng):
    kind, value, text = _record(rng)
    answer = json.dumps(value)
    r = rng.random()
    if r < 0.5:
        system = (
            "\n\n"
            + "## Response Format:\n\nYou MUST strictly adhere to the following schema to reply:\n"
            + json.dumps(SCHEMAS[kind])
        )
        system = rng.choice(["", "You are a helpful assistant."]) + system
        ask = text
    else:
        system = None
        ask = (
            rng.choice(["Write this as JSON with the keys {k}: ", "Give me JSON with {k} for this text: "]).format(
                k=", ".join(value)
            )
            + text
        )
    return _item("json", text + answer, [(ask, "")], answer, system=system, weight=0.1)


# tools ------------------------------------------------------------------------------------------

TOOLS = [
    {
        "name": "get_weather",
        "description": "Get the weather of a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
    {
        "name": "add",
        "description": "Add two numbers",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
            "required": ["a", "b"],
        },
    },
    {
        "name": "set_timer",
        "description": "Set a timer",
        "parameters": {"type": "object", "properties": {"minutes": {"type": "integer"}}, "required": ["minutes"]},
    },
    {
        "name": "find_book",
        "description": "Find a book by its title",
        "parameters": {"type": "object", "properties": {"title": {"type": "string"}}, "required": ["title"]},
    },
    {
        "name": "send_note",
        "description": "Send a note to a person",
        "parameters": {
            "type": "object",
            "properties": {"to": {"type": "string"}, "text": {"type": "string"}},
            "required": ["to", "text"],
        },
    },
    {
        "name": "turn_light",
        "description": "Turn the light on or off",
        "parameters": {
            "type": "object",
            "properties": {"room": {"type": "string"}, "on": {"type": "boolean"}},
            "required": ["room", "on"],
        },
    },
]
TOOLS_HEAD = f"""## Tools

You have access to a set of tools to help answer the user's question. You can invoke tools by writing a "<{DSML} calls>" block like the following:

<{DSML} calls>
<{DSML} invoke name="$TOOL_NAME">
<{DSML} parameter name="$PARAMETER_NAME" string="true|false">$PARAMETER_VALUE</{DSML} parameter>
...
</{DSML} invoke>
<{DSML} invoke name="$TOOL_NAME2">
...
</{DSML} invoke>
</{DSML} calls>

String parameters should be specified as is and set `string="true"`. For all other types (numbers, booleans, arrays, objects), pass the value in JSON format and set `string="false"`.

If thinking_mode is enabled (triggered by {THINK}), you MUST output your complete reasoning inside {THINK}...{NO_THINK} BEFORE any tool calls or final response.

Otherwise, output directly after {NO_THINK} with tool calls or final response.

### Available Tool Schemas

"""
TOOLS_TAIL = "\n\nYou MUST strictly follow the above defined tool name and parameter schemas to invoke tool calls.\n"


def tool_block(name: str, arguments: dict) -> str:
    lines = [
        f'<{DSML} parameter name="{k}" string="{"true" if isinstance(v, str) else "false"}">'
        f"{v if isinstance(v, str) else json.dumps(v)}</{DSML} parameter>"
        for k, v in arguments.items()
    ]
    return (
        f'\n\n<{DSML} calls>\n<{DSML} invoke name="{name}">\n'
        + "\n".join(lines)
        + f"\n</{DSML} invoke>\n</{DSML} calls>"
    )


def task_tool(rng):
    tools = rng.sample(TOOLS, rng.randint(1, 4))
    tool = rng.choice(tools)
    name = tool["name"]
    if name == "get_weather":
        city, weather = rng.choice(CITIES), rng.choice(WEATHER)
        ask, args = rng.choice([f"How is the weather in {city}?", f"Tell me the weather in {city}."]), {"city": city}
        result, final = json.dumps({"weather": weather}), f"It is {weather} in {city}."
    elif name == "add":
        a, b = rng.randint(100, 9999), rng.randint(100, 9999)
        ask, args, result, final = f"What is {a} + {b}?", {"a": a, "b": b}, str(a + b), f"{a} + {b} = {a + b}."
    elif name == "set_timer":
        m = rng.randint(1, 90)
        ask, args, result, final = (
            f"Set a timer for {m} minutes.",
            {"minutes": m},
            "ok",
            f"The timer is set for {m} minutes.",
        )
    elif name == "find_book":
        title = f"The {rng.choice(COLORS).capitalize()} {rng.choice(OBJECTS).capitalize()}"
        shelf = rng.randint(1, 60)
        ask, args = f"Where is the book {title}?", {"title": title}
        result, final = json.dumps({"shelf": shelf}), f"You can find {title} on shelf {shelf}."
    elif name == "send_note":
        who, text = rng.choice(GIRLS + BOYS), f"Bring the {rng.choice(OBJECTS)} to the {rng.choice(PLACES)}"
        ask, args, result, final = (
            f"Send {who} a note: {text}",
            {"to": who, "text": text},
            "sent",
            f"I sent the note to {who}.",
        )
    else:
        room, on = rng.choice(["kitchen", "garage", "hall", "cellar", "library", "bedroom"]), rng.random() < 0.5
        ask = f"Turn {'on' if on else 'off'} the light in the {room}."
        args, result, final = {"room": room, "on": on}, "ok", f"The light in the {room} is now {'on' if on else 'off'}."
    system = "\n\n" + TOOLS_HEAD + "\n".join(json.dumps(t) for t in tools) + TOOLS_TAIL
    if rng.random() < 0.3:
        system = "You are a helpful assistant." + system
    if rng.random() < 0.12:  # a question that needs no tool
        q, a = rng.choice(FACTS)
        item = _item("tool", q + name, [(q, "")], a, system=system, weight=0.02)
    elif rng.random() < 0.5:
        item = _item("tool", name + json.dumps(args), [(ask, "")], tool_block(name, args), system=system, weight=0.02)
    else:
        turns = [(ask, tool_block(name, args)), (f"<tool_result>{result}</tool_result>", "")]
        item = _item("tool_answer", name + json.dumps(args), turns, final, system=system, weight=0.02)
    return item


def task_story_request(rng):
    text, env, _ = make_story(rng)
    ask = rng.choice(
        [
            "Tell me a story about {N} the {who}.",
            "Write a short story about {N} and {M}.",
            "Tell me a story with {aobj}.",
            "Please tell me a story about {awho} and {amwho}.",
            "Tell me a story.",
            "Write a story about the {p2}.",
            "I would like to hear a story about a {c1} {obj}.",
        ]
    ).format(**env)
    item = _item("story", text, [(ask, "")], text.strip())
    item["key"] = "story:" + env["N"] + env["M"] + env["obj"]
    return item


# --- WordNet glosses (optional, see text_sources.py) ---------------------------------------------

_GLOSSES: list[tuple[str, str, str]] | None = None


def load_glosses(path: str) -> None:
    """Lines of word<TAB>gloss<TAB>example, xz-compressed."""
    global _GLOSSES
    with lzma.open(path, "rt", encoding="utf-8") as f:
        _GLOSSES = [tuple((line.rstrip("\n") + "\t\t").split("\t")[:3]) for line in f]


def task_gloss(rng):
    word, gloss, example = rng.choice(_GLOSSES)
    answer = gloss[0].upper() + gloss[1:] + "."
    if example:
        answer += f' For example: "{example}"'
    ask = rng.choice([f"What does {word} mean?", f"What is the meaning of {word}?", f"Explain the word {word}."])
    item = _item("gloss", word, [(ask, "")], answer)
    item["key"] = "gloss:train"
    return item


def gloss_page(rng):
    start = rng.randrange(len(_GLOSSES))
    lines = []
    for word, gloss, example in _GLOSSES[start : start + rng.randint(4, 16)]:
        lines.append(f"{word}: {gloss}." + (f' "{example}"' if example else ""))
    return "\n".join(lines) + "\n"


# --- mixture ------------------------------------------------------------------------------------

TASKS = {
    "add": task_add,
    "sub": task_sub,
    "think_add": task_think_add,
    "compare": task_compare,
    "count": task_count,
    "spell": task_words_number,
    "copy": task_copy,
    "reverse": task_reverse,
    "sort": task_sort,
    "lookup": task_lookup,
    "lookup_long": task_lookup_long,
    "story_qa": task_story_qa,
    "memory": task_memory,
    "json": task_json,
    "tool": task_tool,
}
# shares of documents; long documents weigh more in tokens
MIX = [
    ("plain_story", 26),
    ("story", 14),
    ("fact", 7),
    ("add", 12),
    ("sub", 5),
    ("think_add", 5),
    ("compare", 3),
    ("count", 4),
    ("spell", 3),
    ("copy", 7),
    ("reverse", 3),
    ("sort", 4),
    ("lookup", 12),
    ("lookup_long", 5),
    ("story_qa", 6),
    ("memory", 6),
    ("json", 9),
    ("tool", 5),
    ("gloss", 6),
    ("gloss_page", 3),
    ("chain", 6),
]
CHAINED = "add sub compare count spell copy reverse sort lookup story_qa json memory fact story".split()


class Corpus:
    """An endless stream of training documents; equal seeds give equal streams."""

    def __init__(self, seed: int, glosses: str | None = None, more: dict[str, float] | None = None) -> None:
        """`more` multiplies the shares of some kinds."""
        self.rng = random.Random(seed)
        if glosses and _GLOSSES is None:
            load_glosses(glosses)
        mix = [(k, w * (more or {}).get(k, 1)) for k, w in MIX if _GLOSSES is not None or not k.startswith("gloss")]
        self.kinds, self.shares = zip(*mix, strict=False)

    def chain(self) -> list[tuple[str, float]]:
        """Unrelated tasks in one conversation."""
        rng, out = self.rng, []
        want = rng.randint(2, 9)
        while want:
            kind = rng.choice(CHAINED)
            item = ({"fact": task_fact, "story": task_story_request}.get(kind) or TASKS[kind])(rng)
            if heldout(item["key"]) or SYSTEM in item["segments"][0][0]:
                continue
            first, weight = item["segments"][0]
            out += [(first.removeprefix(BOS) if out else first, weight)] + item["segments"][1:]
            want -= 1
        return out

    def document(self) -> list[tuple[str, float]]:
        rng = self.rng
        while True:
            kind = rng.choices(self.kinds, self.shares)[0]
            if kind == "chain":
                return self.chain()
            if kind == "plain_story":
                text, env, _ = make_story(rng)
                if heldout("story:" + env["N"] + env["M"] + env["obj"]):
                    continue
                return [(BOS + text, 1.0), (EOS, 1.0)]
            if kind == "gloss_page":
                return [(BOS + gloss_page(rng), 1.0), (EOS, 1.0)]
            make = {"story": task_story_request, "fact": task_fact, "gloss": task_gloss}.get(kind) or TASKS[kind]
            item = make(rng)
            if not heldout(item["key"]):
                return item["segments"]


def task_items(task: str, count: int, seed: int = 1) -> list[dict]:
    """Held-out items: {"task", "prompt", "answer"}; the prompt is the text to prefill."""
    rng = random.Random(f"{task}-{seed}")
    out = []
    while len(out) < count:
        item = TASKS[task](rng)
        if not heldout(item["key"]):
            continue
        texts = [t for t, _ in item["segments"]]
        whole = "".join(texts[:-1])  # without the closing EOS
        if task == "think_add":  # the answer to score includes the reasoning
            cut = whole.rindex(THINK) + len(THINK)
        else:
            cut = len(whole) - len(item["answer"])
        out.append({"task": task, "prompt": whole[:cut], "answer": whole[cut:]})
    return out


def heldout_stories(count: int, seed: int = 1) -> list[str]:
    rng = random.Random(f"stories-{seed}")
    out = []
    while len(out) < count:
        text, env, _ = make_story(rng)
        if heldout("story:" + env["N"] + env["M"] + env["obj"]):
            out.append(BOS + text + EOS)
    return out


def score(predicted: str, answer: str) -> bool:
    """Exact match after trimming; what follows the end token does not count."""
    return predicted.split(EOS)[0].strip() == answer.strip()


def main() -> None:
    ap = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    ap.add_argument("--show", type=int, default=0)
    ap.add_argument("--tasks", type=int, default=0, help="held-out items per task, as JSON lines")
    ap.add_argument("--text", type=int, default=0, help="write this many documents as plain text (tokenizer training)")
    ap.add_argument("--seed", type=int, default=0)
    ap.add_argument("--glosses", default=None)
    args = ap.parse_args()
    if args.tasks:
        for task in TASKS:
            for item in task_items(task, args.tasks, args.seed + 1):
                print(json.dumps(item, ensure_ascii=False))
    if args.show or args.text:
        corpus = Corpus(args.seed, args.glosses if args.glosses and os.path.exists(args.glosses) else None)
        for _ in range(args.show or args.text):
            print("".join(t for t, _ in corpus.document()))
            if args.show:
                print("-" * 60)


if __name__ == "__main__":
    main()
