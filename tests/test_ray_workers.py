"""Several learner ranks, and workers that hang, on a real local Ray cluster."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import psutil
import pytest

from divopd.config import RunConfig
from divopd.runlog import read_json, read_table
from divopd.train import train
from ray_runs import SMALL, check_log, end, fleets, quiet, tables

pytestmark = pytest.mark.slow
RANKS = {"learners": SMALL | {"count": 2}, "evaluators": {"count": 0}}


def test_two_ranks_log_what_one_does(
    cluster: None, ray_cell: Callable[..., RunConfig], tiny_cell: Callable[..., RunConfig], tmp_path: Path
) -> None:
    """Driven by the virtual clock: the same turns are selected, and loss and gradient are equal to rounding."""
    train(ray_cell(placement=RANKS | {"clock": "virtual"}), tmp_path / "two", quiet)
    train(tiny_cell(), tmp_path / "one", quiet)
    (turns, updates, _), (wanted_turns, wanted, _) = tables(tmp_path / "two"), tables(tmp_path / "one")
    names = ["explorer_batch", "task_index", "run", "turn", "version", "arrival", "selected_at"]
    assert turns[names].equals(wanted_turns[names])
    for name in ("loss", "objective", "drift", "grad_norm"):
        np.testing.assert_allclose(updates[name], wanted[name], rtol=2e-4, atol=2e-6, err_msg=name)
    assert read_json(tmp_path / "two", "status.json") == read_json(tmp_path / "one", "status.json")


def test_a_killed_rank_and_a_worker_that_hangs(
    cluster: None,
    ray_cell: Callable[..., RunConfig],
    tiny_models: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """All ranks go back to the last resume point. A stopped process answers nothing and does not die: it is killed.

    And where a gap is asked for, explorers are held against both ranks after each sync.
    """
    found, seen, stopped = fleets(monkeypatch), [], []

    def disturb(done: int, total: int, words: str) -> None:
        seen.append(done)
        if seen == [1, 2, 3]:
            end(found[0].of("learner")[1])
        if seen == [1]:  # no later than after update 2 its turns are missed, as they may not be older
            stopped.append(psutil.Process(found[0].of("explorer")[0].pid))
            stopped[0].suspend()

    student = {"path": str(tiny_models / "student"), "gap_alarm": 1e-3}
    cell = ray_cell(placement=RANKS | {"call_limit": 15.0}, student=student)
    assert train(cell, tmp_path / "run", disturb) == "done"
    check_log(cell, tmp_path / "run")
    assert seen == [1, 2, 3, 3, 4, 5, 6]  # a resume point every two updates
    replaced = read_json(tmp_path / "run", "status.json")["replaced"]
    assert replaced["learner"] == 1 and replaced["explorer"] >= 1
    assert "explorer 0 is replaced: a call took longer than placement.call_limit, 15 s" in caplog.text
    assert psutil.wait_procs(stopped, timeout=10)[1] == []
    probed = read_table(tmp_path / "run", "parity").to_pandas()
    assert set(probed["version"]) <= set(range(1, 7)) and len(probed)
    assert (probed["tokens"] > 0).all() and probed["max_gap"].max() < 1e-5
