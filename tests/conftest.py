"""Fixtures of the tests of the command line."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from command import FIXTURE


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A copy of the random fixture that may be damaged."""
    return Path(shutil.copytree(FIXTURE, tmp_path / "checkpoint"))
