"""Compares src/text with the Hugging Face library `tokenizers`, and prints the digests that the C++ tests know.

    python3 scripts/check_tokenizer.py [--deepinfer build/release/bin/deepinfer] [--rounds 2000]

Needs tokenizers==0.23.3 from PyPI; the C++ tests do not. Without --deepinfer it only prints the digests: SHA-256 of
little-endian int32 lists, for the ids of every code point (alone, and between letters) and for the compressed
vocabulary map. With it, random text over awkward alphabets is encoded by both, with and without added tokens, and must
agree.
"""

import argparse
import array
import hashlib
import json
import random
import subprocess
import sys
from pathlib import Path

from tokenizers import Regex, Tokenizer, normalizers

ROOT = Path(__file__).resolve().parent.parent
FILES = {
    "released": ROOT / "build/released_tokenizer/tokenizer.json",
    "tiny": ROOT / "models/tiny/tokenizer.json",
    "fixture": ROOT / "tests/golden/random-small/checkpoint/tokenizer.json",
}
ALPHABET = [
    *"aZ zq'09.,;<>|{}[]\\\"/*-_=+&%#@!?~^`\n\r\t\u00a0\u3000\u2028éß中文龥\u9fa6のカ・\u3099한ж٣½Ⅳ😀\u200d🏽｜▁Ġ"
]
ALPHABET += (
    "\x00 \x1c \u200b \ufeff \U0001e5ee e\u0301 's 'll 're the return <think> </think> ｜DSML｜ <｜User｜>".split(" ")
)
ALPHABET += ["  ", " The"]


def digest(ids: list[int]) -> str:
    values = array.array("i", ids)
    if sys.byteorder == "big":
        values.byteswap()
    return hashlib.sha256(values.tobytes()).hexdigest()


def code_points(tokenizer: Tokenizer) -> tuple[str, int]:
    ids: list[int] = []
    for c in range(0x110000):
        if 0xD800 <= c < 0xE000:
            continue
        ids += tokenizer.encode(chr(c), add_special_tokens=False).ids
        ids += tokenizer.encode(f"a {chr(c)}b1{chr(c)}", add_special_tokens=False).ids
    return digest(ids), len(ids)


def compressed_map(tokenizer: Tokenizer) -> list[int]:
    mark = "\ue000"  # stands for a lone space, so that Strip does not remove it
    steps = [normalizers.NFKC(), normalizers.NFD(), normalizers.StripAccents(), normalizers.Lowercase()]
    steps += [normalizers.Replace(Regex(r"[ \t\r\n]+"), " "), normalizers.Replace(Regex(r"^ $"), mark)]
    clean = normalizers.Sequence([*steps, normalizers.Strip(), normalizers.Replace(mark, " ")])
    seen: dict[str, int] = {}
    table = []
    for token in range(tokenizer.get_vocab_size(with_added_tokens=True)):
        text = tokenizer.decode([token], skip_special_tokens=False)
        key = tokenizer.id_to_token(token) if "\ufffd" in text else (clean.normalize_str(text) or text)
        table.append(seen.setdefault(key, len(seen)))
    return table


def random_texts(rounds: int) -> list[str]:
    rng = random.Random(20)
    return ["".join(rng.choices(ALPHABET, k=rng.randrange(1, 60))) for _ in range(rounds)]


def compare(binary: str, name: str, path: Path, rounds: int) -> int:
    tokenizer = Tokenizer.from_file(str(path))
    plain_file = json.loads(path.read_text()) | {"added_tokens": []}
    plain = Tokenizer.from_str(json.dumps(plain_file))
    texts = random_texts(rounds)
    lines = "".join(json.dumps(t) + "\n" for t in texts)
    bad = 0
    for reference, flags in ((tokenizer, []), (plain, ["--plain"])):
        command = [binary, "tokenize", "--model", str(path.parent), *flags]
        out = subprocess.run(command, input=lines, capture_output=True, text=True, check=True).stdout.splitlines()
        for text, line in zip(texts, out, strict=True):
            expected = reference.encode(text, add_special_tokens=False).ids
            if json.loads(line) != expected:
                bad += 1
                print(f"{name} {flags}: {text!r}\n  ours      {line}\n  reference {expected}")
    print(f"{name}: {2 * rounds} random texts, {bad} differ")
    return bad


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--deepinfer", help="path of the built binary")
    parser.add_argument("--rounds", type=int, default=2000)
    args = parser.parse_args()
    bad = 0
    for name, path in FILES.items():
        if not path.exists():
            sys.exit(f"{path} is missing; make it with: python3 scripts/fetch_tokenizer.py")
        if args.deepinfer:
            bad += compare(args.deepinfer, name, path, args.rounds)
            continue
        tokenizer = Tokenizer.from_file(str(path))
        sha, count = code_points(tokenizer)
        print(f"{name}: code points {sha} ({count} ids)")
        print(f"{name}: compressed  {digest(compressed_map(tokenizer))}")
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
