"""mypy, as one of the tests: it takes one core for most of a minute, which the others can use beside it."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("mypy") is None, reason="mypy is not installed here")
def test_mypy_has_nothing_to_say() -> None:
    root = Path(__file__).resolve().parent.parent
    run = subprocess.run([sys.executable, "-m", "mypy"], cwd=root, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
