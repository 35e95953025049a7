"""The benchmarks run, and their seconds add up."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from divopd.config import RunConfig

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.slow
def test_the_trainers_split_adds_up(tiny_cell: Callable[..., RunConfig], capsys: pytest.CaptureFixture[str]):
    spec = importlib.util.spec_from_file_location("trainer_split", ROOT / "benchmarks" / "trainer_split.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    # three resume points, each of which empties the trainer's watch
    assert len(module.split(tiny_cell(pipeline={"tasks_per_step": 4, "load": 2.0, "save_every": 2}))) == 8
    said = capsys.readouterr().out
    shares = {name.strip(): float(share) for name, share in re.findall(r"^  (.{20}) .* s +(-?[\d.]+) %$", said, re.M)}
    wanted = {"rollout", "teacher", "learner", "evaluation", "environments", "clock, pool and log", "in no stage"}
    assert set(shares) == wanted
    assert sum(shares.values()) == pytest.approx(100, abs=0.5)
    assert all(share > 0 for name, share in shares.items() if name != "in no stage")
    assert -0.1 <= shares["in no stage"] < 30  # seconds of resume points that were lost would be here
    assert "one evaluation of 3 episodes" in said
