"""Runs of the command, and what an error of it looks like."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BINARY = Path(os.environ.get("DI_BINARY", ROOT / "deepinfer"))
TINY = ROOT / "models" / "tiny"
FIXTURE = ROOT / "tests" / "golden" / "random-small" / "checkpoint"


def run(
    *args: object, stdin: str | bytes = "", env: dict[str, str] | None = None, launcher: tuple[str, ...] = ()
) -> subprocess.CompletedProcess[bytes]:
    """One run of the command, through `launcher` if given, with the given variables on top of the environment."""
    data = stdin.encode() if isinstance(stdin, str) else stdin
    words = [a if isinstance(a, bytes) else str(a) for a in (*launcher, BINARY, *args)]
    return subprocess.run(words, input=data, capture_output=True, timeout=120, env={**os.environ, **(env or {})})


def ok(*args: object, stdin: str | bytes = "", env: dict[str, str] | None = None) -> str:
    """Standard output of a run that must succeed."""
    done = run(*args, stdin=stdin, env=env)
    assert done.returncode == 0, done.stderr.decode(errors="replace")
    return done.stdout.decode()


def refused(
    *args: object, names: tuple[str, ...] | str, stdin: str | bytes = "", env: dict[str, str] | None = None
) -> str:
    """The sentence of a run that must fail: exit code 2, one line that holds `names`, nothing on standard output."""
    done = run(*args, stdin=stdin, env=env)
    assert done.stdout == b""
    return sentence(done, names)


def sentence(done: subprocess.CompletedProcess[bytes], names: tuple[str, ...] | str) -> str:
    """The one line on standard error of a run that ended with exit code 2; it must hold `names`."""
    stderr = done.stderr.decode()
    assert done.returncode == 2, (done.returncode, stderr)
    lines = stderr.splitlines()
    assert len(lines) == 1 and lines[0].startswith("deepinfer: "), stderr
    for name in (names,) if isinstance(names, str) else names:
        assert name in stderr, f"{name!r} is not in: {stderr}"
    return lines[0]
