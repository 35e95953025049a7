"""Several learner ranks, and workers that hang, on a real local Ray cluster."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import psutil
import pytest

from divopd.config import RunConfig
from divopd.pipeline.ray.proxies import RemoteTeacher, TeacherLostError
from divopd.runlog import read_json
from divopd.train import train
from ray_runs import SMALL, check_log, end, fleets, quiet, tables

pytestmark = pytest.mark.slow
RANKS = {"learners": SMALL | {"count": 2}, "evaluators": {"count": 0}, "weights": "direct"}


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


def test_a_teacher_that_does_not_answer_is_lost_before_whoever_waits_for_it(cluster: None) -> None:
    import ray

    class Deaf:
        def open(self, *_: object) -> None:
            time.sleep(600)

    actor = ray.remote(Deaf).options(num_cpus=0).remote()
    with pytest.raises(TeacherLostError) as lost:
        RemoteTeacher(3, 2, actor, (0, 0, 0), limit=0.5).session(1)
    assert (lost.value.scorer, lost.value.life) == (3, 2)
    ray.kill(actor)


def test_learners_that_die_an_explorer_that_hangs_and_an_end_in_between(
    cluster: None,
    ray_cell: Callable[..., RunConfig],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A rank is killed before the first resume point and another after it: all go back to the last one. A stopped
    explorer answers nothing and does not die: it is killed. Then the whole run is interrupted, and taken up again.
    """
    found, seen, stopped = fleets(monkeypatch), [], []

    def disturb(done: int, total: int, words: str) -> None:
        seen.append(done)
        if seen in ([1], [1, 1, 2, 3]):
            end(found[0].of("learner")[len(seen) // 4])
        if seen == [1, 1]:  # no later than after update 2 its turns are missed, as they may not be older
            stopped.append(psutil.Process(found[0].of("explorer")[0].pid))
            stopped[0].suspend()
        if done == 5:
            raise KeyboardInterrupt

    cell = ray_cell(placement=RANKS | {"call_limit": 15.0})
    with pytest.raises(KeyboardInterrupt):
        train(cell, tmp_path / "run", disturb)
    assert seen == [1, 1, 2, 3, 3, 4, 5]  # a resume point every two updates
    assert "explorer 0 is replaced: a call took longer than placement.call_limit, 15 s" in caplog.text
    assert psutil.wait_procs(stopped, timeout=10)[1] == []
    assert not (tmp_path / "run" / "status.json").exists()
    later: list[int] = []
    assert train(cell, tmp_path / "run", lambda done, total, words: later.append(done)) == "done"
    assert later == [5, 6]
    check_log(cell, tmp_path / "run")
    replaced = read_json(tmp_path / "run", "status.json")["replaced"]
    assert replaced["learner"] == 2 and replaced["explorer"] >= 1
    weights = read_json(tmp_path / "run", "status.json")["weights"]
    assert weights["direct"] >= 2 and weights["store"] == 0 < weights["seconds"] and "by the store" not in caplog.text
    names = sorted(path.name[:6] for path in (tmp_path / "run" / "checkpoints").iterdir())
    assert names == ["v00000", "v00003", "v00006"]
