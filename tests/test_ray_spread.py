"""One explorer step spread over several explorers is the step that one would play."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from divopd.config import RunConfig
from divopd.runlog import read_json
from divopd.train import train
from ray_runs import SMALL, check_log, end, fleets, quiet, tables

pytestmark = pytest.mark.slow
STEP = ["explorer_batch", "task_index", "run"]
STEPS = {"every_updates": None, "every_explorer_steps": 2, "episodes": 2, "batch": 2}


def spread(ray_cell: Callable[..., RunConfig], count: int, **changes: Any) -> RunConfig:
    """The tiny cell with so many explorers of one step, evaluated by explorer steps."""
    placement = {"explorers": SMALL | {"count": count}, "evaluators": {"count": 0}} | changes.pop("placement", {})
    return ray_cell(placement=placement, evaluation=STEPS, train={"updates": 4, "batch_rows": 8}, **changes)


def steps_of(turns: pd.DataFrame) -> dict[int, list[tuple[int, str]]]:
    """Tasks by place, of each explorer step that arrived."""
    rollouts = turns.drop_duplicates(STEP).sort_values(STEP)
    return {
        int(step): list(zip(part["task_index"], part["task"], strict=True))
        for step, part in rollouts.groupby("explorer_batch")
    }


def checkpoints(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "checkpoints").iterdir())


def check_steps(turns: pd.DataFrame, tasks: int = 4) -> None:
    """Each step has all its tasks, arrives at once, one after another."""
    turns = turns.sort_values("arrival")
    step = turns["explorer_batch"].to_numpy()
    assert (np.diff(step) >= 0).all()
    assert (turns.groupby("explorer_batch")["arrival_time"].nunique() == 1).all()
    assert all([place for place, _ in found] == list(range(tasks)) for found in steps_of(turns).values())


def test_on_the_virtual_clock_order_and_counts_are_one_workers(
    cluster: None, ray_cell: Callable[..., RunConfig], tiny_cell: Callable[..., RunConfig], tmp_path: Path
) -> None:
    """Without Ray, and with one, two and four explorers: what arrived when, what was chosen, where checkpoints lie."""
    alone = tiny_cell(evaluation=STEPS, train={"updates": 4, "batch_rows": 8})
    train(alone, tmp_path / "0", quiet)
    for count in (1, 2, 4):
        train(spread(ray_cell, count, placement={"clock": "virtual"}), tmp_path / str(count), quiet)
    wanted, rows, _ = tables(tmp_path / "0")
    check_steps(wanted)
    for count in (1, 2, 4):
        turns, updates, _ = tables(tmp_path / str(count))
        for name in (*STEP, "turn", "task", "version", "arrival", "arrival_time", "selected_at", "response_tokens"):
            assert turns[name].tolist() == wanted[name].tolist(), (count, name)
        assert np.allclose(turns["disagreement"], wanted["disagreement"], atol=1e-4, equal_nan=True)
        for name in ("time_start", "arrived_turns", "stale_rows", "mean_age", "explorer_steps", "teacher_tokens"):
            assert updates[name].tolist() == rows[name].tolist(), (count, name)
        assert checkpoints(tmp_path / str(count)) == checkpoints(tmp_path / "0")


@pytest.mark.parametrize("sync", ["latest", "wait"])
def test_on_real_clocks_steps_are_one_workers(
    cluster: None, ray_cell: Callable[..., RunConfig], tmp_path: Path, sync: str
) -> None:
    """The same tasks in each step, which is one, of one version, and counts as one; and what `sync` promises."""
    found = {}
    for count in (1, 2, 4) if sync == "latest" else (2,):
        cell = spread(ray_cell, count, pipeline={"sync": sync}, placement={"backpressure": False})
        train(cell, tmp_path / str(count), quiet)
        check_log(cell, tmp_path / str(count))
        turns, updates, _ = tables(tmp_path / str(count))
        check_steps(turns)
        assert (turns.groupby("explorer_batch")["version"].nunique() == 1).all()  # by the store all take the same
        found[count] = steps_of(turns)
        saved = [int(name.split("-e")[1].split(".")[0]) for name in checkpoints(tmp_path / str(count))]
        assert all(step % 2 == 0 for step in saved[:-1])  # the last is that of the end
        first = turns.drop_duplicates("explorer_batch").sort_values("explorer_batch")
        for ended, version in zip(first["arrival_time"], first["version"].iloc[1:], strict=False):
            started = int((updates["time_start"] <= ended).sum())
            assert version >= (started if sync == "wait" else int((updates["time_end"] <= ended).sum()) - 1)
    shared = set.intersection(*(set(steps) for steps in found.values()))
    assert len(shared) >= 2
    for steps in found.values():
        assert {step: steps[step] for step in shared} == {step: found[max(found)][step] for step in shared}


def test_a_dead_explorers_share_is_played_again(
    cluster: None, ray_cell: Callable[..., RunConfig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The step that it was playing ends all the same, whole, and arrives as one."""
    seats = fleets(monkeypatch)

    def kill(done: int, total: int, words: str) -> None:
        if done in (1, 2):
            end(seats[0].of("explorer")[done])

    cell = spread(ray_cell, 4)
    assert train(cell, tmp_path / "run", kill) == "done"
    check_log(cell, tmp_path / "run")
    turns, _, _ = tables(tmp_path / "run")
    check_steps(turns)
    assert read_json(tmp_path / "run", "status.json")["replaced"]["explorer"] >= 1
