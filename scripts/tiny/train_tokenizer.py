"""Train the small byte-level BPE in the exact shape of the released tokenizer.json.

Same pre-tokenizer chain (number groups of up to three digits, CJK runs, the
word/punctuation/space expression, byte level without its own expression), same
decoder, same three tokens at ids 0..2 and the same spellings and flags of the
special tokens, which here follow right after the learned vocabulary.  Only the
size differs: the thousand unused placeholders shrink to a few.

    python train_tokenizer.py OUT_DIR [--vocab 3072] [--glosses data/glosses.tsv.xz]
"""

# ruff: noqa: E501 (token lists stay whole)
from __future__ import annotations

import argparse
import json
import os

import corpus
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

FIRST = ["<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜▁pad▁｜>"]
# (spelling, special, normalized), in the order of the released ids
SPECIALS = (
    [(f"<｜place▁holder▁no▁{i}｜>", True, False) for i in (0, 1, 2, 3, 4, 5, 6, 7, 799)]
    + [
        (t, False, True)
        for t in (
            "<｜fim▁hole｜> <｜fim▁begin｜> <｜fim▁end｜> <｜User｜> <｜Assistant｜> <|EOT|> <｜tool▁calls▁begin｜> <｜tool▁calls▁end｜> "
            "<｜tool▁call▁begin｜> <｜tool▁call▁end｜> <｜tool▁outputs▁begin｜> <｜tool▁outputs▁end｜> <｜tool▁output▁begin｜> "
            "<｜tool▁output▁end｜> <｜tool▁sep｜> <｜begin▁of▁repo▁name｜> <｜end▁of▁repo▁name｜> <｜begin▁of▁file▁name｜> "
            "<｜end▁of▁file▁name｜> <｜begin▁of▁file｜> <｜end▁of▁file｜> <think> </think> <｜place▁holder▁for▁copy｜> "
            "<｜place▁holder▁for▁pointer▁replace｜> ｜DSML｜ <｜begin▁sys｜> <｜end▁sys｜> <｜latest_reminder｜> <｜action｜> <｜query｜> "
            "<｜authority｜> <｜domain｜> <｜task｜> <｜political｜> <｜entity｜> <｜title｜> <｜safety｜> <｜answer｜> <｜search｜> <dsml: "
            "</dsml: <｜search▁begin｜> <｜search▁end｜> <｜extracted_url｜> <｜read_url｜>"
        ).split()
    ]
    + [(t, True, False) for t in ("<｜System｜>", "<｜end_of_query｜>", "<｜rl_image_pad｜>", "<｜rl_image_start｜>")]
    + [(t, False, False) for t in "<｜image2｜> <｜/table>｜ <｜table｜> <｜/td｜> <｜td｜> <｜/tr｜> <｜tr｜>".split()]
    + [
        (t, True, False)
        for t in "<｜/polygon｜> <｜polygon｜> <｜/point｜> <｜point｜> <｜/box｜> <｜box｜> <｜/ref｜> <｜ref｜> <｜image｜>".split()
    ]
)
NOISE_TOKEN = "<｜place▁holder▁no▁799｜>"
IMAGE_TOKEN = "<｜image2｜>"

NUMBERS = r"\p{N}{1,3}"
CJK = "[一-龥\u3040-ゟ゠-ヿ]+"
WORDS = (
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+"
    "| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+"
)


def added(token: str, index: int, special: bool, normalized: bool) -> dict:
    return {
        "id": index,
        "content": token,
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": normalized,
        "special": special,
    }


def texts(documents: int, seed: int, glosses: str | None):
    """Plain text without special tokens, the way the model will meet it."""
    strip = FIRST + [s for s, _, _ in SPECIALS]
    stream = corpus.Corpus(seed, glosses)
    for _ in range(documents):
        text = "".join(t for t, _ in stream.document())
        for token in strip:
            if token in text:
                text = text.replace(token, "\n")
        yield text


def train(out: str, vocab: int, documents: int, seed: int, glosses: str | None) -> Tokenizer:
    tok = Tokenizer(models.BPE())
    split = pre_tokenizers.Split
    tok.pre_tokenizer = pre_tokenizers.Sequence(
        [
            split(Regex(NUMBERS), "isolated"),
            split(Regex(CJK), "isolated"),
            split(Regex(WORDS), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=True, use_regex=False),
        ]
    )
    tok.decoder = decoders.ByteLevel(add_prefix_space=True, trim_offsets=True, use_regex=True)
    trainer = trainers.BpeTrainer(
        vocab_size=vocab - len(SPECIALS),
        min_frequency=2,
        special_tokens=FIRST,
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tok.train_from_iterator(texts(documents, seed, glosses), trainer)
    raw = json.loads(tok.to_str())
    model = raw["model"]
    model["merges"] = [
        m if isinstance(m, str) else " ".join(m) for m in model["merges"]
    ]  # the released file writes "a b"
    base = len(model["vocab"])
    raw["added_tokens"] = [added(t, i, True, False) for i, t in enumerate(FIRST)]
    raw["added_tokens"] += [added(t, base + i, s, n) for i, (t, s, n) in enumerate(SPECIALS)]
    raw["normalizer"] = {"type": "Sequence", "normalizers": []}
    raw["post_processor"] = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False, "use_regex": True}
    os.makedirs(out, exist_ok=True)
    with open(os.path.join(out, "tokenizer.json"), "w", encoding="utf-8") as f:
        json.dump(raw, f, ensure_ascii=False, indent=1)

    def token(t):
        return {
            "__type": "AddedToken",
            "content": t,
            "lstrip": False,
            "normalized": True,
            "rstrip": False,
            "single_word": False,
        }  # noqa: E731

    with open(os.path.join(out, "tokenizer_config.json"), "w", encoding="utf-8") as f:
        json.dump(
            {
                "add_bos_token": False,
                "add_eos_token": False,
                "bos_token": token(FIRST[0]),
                "eos_token": token(FIRST[1]),
                "pad_token": token(FIRST[2]),
                "clean_up_tokenization_spaces": False,
                "legacy": True,
                "model_max_length": 1048576,
                "unk_token": None,
                "tokenizer_class": "PreTrainedTokenizerFast",
            },
            f,
            ensure_ascii=False,
            indent=1,
        )
    return Tokenizer.from_file(os.path.join(out, "tokenizer.json"))


def main() -> None:
    ap = argparse.ArgumentParser()
    ap.add_argument("out")
    ap.add_argument("--vocab", type=int, default=3072)
    ap.add_argument("--documents", type=int, default=60000)
    ap.add_argument("--seed", type=int, default=7)
    ap.add_argument("--glosses", default=None)
    args = ap.parse_args()
    tok = train(args.out, args.vocab, args.documents, args.seed, args.glosses)
    sample = corpus.heldout_stories(1)[0] + corpus.task_items("tool", 1)[0]["prompt"]
    ids = tok.encode(sample, add_special_tokens=False).ids
    assert tok.decode(ids, skip_special_tokens=False) == sample, "round trip"
    print(f"vocabulary {tok.get_vocab_size()}, {len(sample.encode()) / len(ids):.2f} bytes a token")
    for piece in FIRST + [s for s, _, _ in SPECIALS]:
        assert tok.encode(piece, add_special_tokens=False).ids == [tok.token_to_id(piece)], piece


if __name__ == "__main__":
    main()
