"""Runs the README's commands and draws what they print:  python scripts/terminal_picture.py docs/terminal.svg"""

from __future__ import annotations

import subprocess
import sys
import textwrap
from html import escape
from pathlib import Path

COMMANDS = [
    (["./deepinfer", "generate", "--quiet", "--prompt", "Once upon a time", "--max-tokens", "70"], None),
    (
        ["./deepinfer", "chat", "--quiet"],
        "What is 27 + 15?\nSort these words by the alphabet: nut, book, hat, muffin\n",
    ),
]
WIDTH, LINE, PAD = 92, 19, 16


def record() -> list[tuple[str, str]]:
    """(colour, line) pairs."""
    lines: list[tuple[str, str]] = []
    for command, typed in COMMANDS:
        shown = " ".join(f'"{a}"' if " " in a else a for a in command if a != "--quiet")
        lines.append(("#8be9fd", "$ " + shown))
        out = subprocess.run(command, input=typed, capture_output=True, text=True, check=True).stdout
        questions = typed.splitlines() if typed else []
        for k, line in enumerate(out.strip().splitlines()):
            if k < len(questions):
                lines.append(("#ffffff", "> " + questions[k]))
            lines += [("#d8d8d8", part) for part in textwrap.wrap(line, WIDTH)]
        lines.append(("#d8d8d8", ""))
    return lines


def main(target: str) -> None:
    lines = record()[:-1]
    height = len(lines) * LINE + 2 * PAD
    body = "".join(
        f'<text x="{PAD}" y="{PAD + LINE * (i + 1) - 5}" fill="{colour}" xml:space="preserve">{escape(line)}</text>\n'
        for i, (colour, line) in enumerate(lines)
    )
    Path(target).write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" width="800" height="{height}" viewBox="0 0 800 {height}" '
        f'font-family="monospace" font-size="14">\n'
        f'<rect width="100%" height="100%" rx="8" fill="#20222c"/>\n{body}</svg>\n'
    )


if __name__ == "__main__":
    main(sys.argv[1])
