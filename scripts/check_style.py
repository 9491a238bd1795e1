"""Format, lint and layering checks: clang-format, ruff, include order. `--fix` formats in place.

Layering: an include may only point to the folders that the including folder is allowed to use (docs/architecture.md).
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent

# folder -> folders it may include, besides itself. Downwards only; the exceptions are those of docs/architecture.md.
BASE = {"base"}
TENSOR = BASE | {"tensor"}
DEVICE = TENSOR | {"device"}
LOWER = DEVICE | {"kernels", "comm", "net"}
ALLOWED = {
    "base": set(),
    "tensor": BASE,
    "device": TENSOR,
    "kernels": DEVICE,
    "comm": DEVICE,
    "net": BASE,
    "text": BASE,
    "vision": TENSOR,
    "grammar": BASE,
    "weights": DEVICE | {"kernels"},
    "parallel": LOWER | {"weights"},
    "cache": LOWER | {"weights", "parallel"},
    "model": LOWER | {"weights", "parallel", "cache"},
    "sampling": LOWER,
    "sched": LOWER | {"cache", "parallel"},
    "engine": LOWER | {"weights", "parallel", "cache", "model", "sampling", "sched", "text", "vision", "grammar"},
    "cluster": LOWER
    | {"weights", "parallel", "cache", "model", "sampling", "sched", "text", "vision", "grammar", "engine"},
}
ALLOWED["serve"] = ALLOWED["cluster"] | {"cluster"}
ALLOWED["cli"] = ALLOWED["serve"] | {"serve"}

INCLUDE = re.compile(r'^\s*#include "([^"]+)"', re.M)


def tracked(*patterns: str) -> list[Path]:
    out = subprocess.run(["git", "ls-files", *patterns], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [ROOT / line for line in out.splitlines() if (ROOT / line).exists()]


def layering() -> list[str]:
    problems = []
    for file in tracked("src/*.h", "src/*.cc", "src/*.cu", "src/*.cuh"):
        folder = file.relative_to(ROOT / "src").parts[0]
        if folder not in ALLOWED:
            problems.append(f"{file.relative_to(ROOT)}: folder '{folder}' has no place in the layering")
            continue
        for target in INCLUDE.findall(file.read_text()):
            used = target.split("/")[0]
            if used != folder and used != "deepinfer" and used not in ALLOWED[folder]:
                problems.append(f"{file.relative_to(ROOT)}: {folder} may not include {target}")
    return problems


def headers_are_guarded() -> list[str]:
    return [
        f"{file.relative_to(ROOT)}: no #pragma once"
        for file in tracked("src/*.h", "include/*.h")
        if "#pragma once" not in file.read_text()
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fix", action="store_true", help="format in place instead of complaining")
    fix = parser.parse_args().fix
    problems = layering() + headers_are_guarded()
    for line in problems:
        print(line)
    native = [
        str(f)
        for f in tracked(
            "src/*.h",
            "src/*.cc",
            "src/*.cu",
            "src/*.cuh",
            "include/*.h",
            "python/*.cc",
            "bench/*.cc",
            "bench/*.h",
            "fuzz/*.cc",
        )
    ]
    clang = subprocess.run([BIN / "clang-format", *(["-i"] if fix else ["--dry-run", "-Werror"]), *native], cwd=ROOT)
    lint = subprocess.run([BIN / "ruff", "check", "--quiet", *(["--fix"] if fix else []), "."], cwd=ROOT)
    layout = subprocess.run([BIN / "ruff", "format", "--quiet", *([] if fix else ["--check"]), "."], cwd=ROOT)
    return int(bool(problems) or clang.returncode or lint.returncode or layout.returncode)


if __name__ == "__main__":
    sys.exit(main())
