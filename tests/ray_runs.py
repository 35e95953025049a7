"""What the tests of the Ray pipeline share: logs that must hold whatever died, and where to find whom to kill."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from divopd.config import RunConfig
from divopd.runlog import read_table, validate

SMALL = {"cpus": 0.1}
PLACEMENT = {"explorers": SMALL, "scorers": SMALL, "learners": SMALL, "evaluators": SMALL}


def quiet(*_: Any) -> None:
    pass


def tables(folder: Path) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    """turns, updates, evals of a finished run."""
    validate(folder)
    turns, updates, evals = (read_table(folder, name).to_pandas() for name in ("turns", "updates", "evals"))
    return turns, updates, evals


def check_log(cell: RunConfig, folder: Path) -> None:
    """What holds of every run, however many workers died: each turn once, with one fate; full, fresh batches."""
    turns, updates, _ = tables(folder)
    assert updates["update"].tolist() == list(range(cell.train.updates))
    assert not turns.duplicated(["explorer_batch", "task_index", "run", "turn"]).any()
    assert sorted(turns["arrival"]) == list(range(int(updates["arrived_turns"].iloc[-1])))
    assert ((turns["selected_at"] >= 0) != turns["dropped"].notna()).all()
    chosen = turns[turns["selected_at"] >= 0]
    assert chosen.groupby("selected_at").size().tolist() == [cell.train.batch_rows] * cell.train.updates
    age = chosen["selected_at"] - chosen["version"]
    assert age.min() >= 0 and age.max() <= cell.train.max_staleness
    # whole rollouts arrive, with no hole
    for _, turn in turns.groupby(["explorer_batch", "task_index", "run"]):
        assert sorted(turn["turn"]) == list(range(turn["rollout_turns"].iloc[0]))
    assert (updates["time_end"] > updates["time_start"]).all()
    assert (updates["time_start"].to_numpy()[1:] >= updates["time_end"].to_numpy()[:-1]).all()


def fleets(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Where the fleets of runs that start from now on can be found."""
    from divopd.pipeline.ray import trainer

    found: list[Any] = []
    real = trainer.Fleet

    def kept(config: RunConfig) -> Any:
        found.append(real(config))
        return found[-1]

    monkeypatch.setattr(trainer, "Fleet", kept)
    return found


def end(seat: Any) -> None:
    """Without a word to anyone, as the kernel does when memory runs out."""
    assert seat.pid > 0  # 0 would be this process and all of its group
    os.kill(seat.pid, signal.SIGKILL)
