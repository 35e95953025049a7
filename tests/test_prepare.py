"""What a suite compiles ahead: the tasks that its runs will play, as far as that can be known."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from divopd.config import RunConfig
from divopd.envs.prepare import prepare, reach, tasks_of
from divopd.envs.registry import eval_tasks, train_tasks
from divopd.provenance import ROOT
from divopd.runlog import read_config, read_table
from divopd.train import train
from train_runs import quiet

RUNS = sorted(path.parent for path in (ROOT / "results").glob("*-reference/alfworld*/**/turns.parquet"))


def played(run: Path) -> set[str]:
    return set(read_table(run, "turns").column("task").to_pylist())


def test_the_reference_runs_played_nothing_else(monkeypatch: pytest.MonkeyPatch):
    """Runs whose load doubled as their students learned to win sooner are among them."""
    monkeypatch.chdir(ROOT)
    assert len(RUNS) > 30
    for run in RUNS:
        config = read_config(run)
        [(_, tasks)] = tasks_of([config])
        assert played(run) <= set(tasks), run
        assert len(tasks) <= len(train_tasks(config.env)) + config.evaluation.episodes


@pytest.mark.slow
def test_a_small_run_compiles_little_and_misses_nothing(tiny_cell: Callable[..., RunConfig], tmp_path: Path):
    env = tiny_cell().env.model_dump() | {"train_tasks": "gen/train/0:2000"}
    cells = [tiny_cell(env=env, seed=seed, train={"updates": 3, "batch_rows": 8}) for seed in (0, 1)]
    [(found, tasks)] = tasks_of(cells)
    assert found.train_tasks == "" and len(set(tasks)) == len(tasks)
    panel = eval_tasks(cells[0].env, cells[0].evaluation.episodes)
    assert set(panel) < set(tasks) and len(tasks) <= 2 * reach(cells[0]) + len(panel) < 150
    train(cells[0], tmp_path / "run", quiet)
    assert played(tmp_path / "run") <= set(tasks)
    few = tiny_cell()
    assert set(tasks_of([few])[0][1]) == {*train_tasks(few.env), *panel}  # four tasks: all of them
    seen: list[tuple[int, int]] = []
    assert prepare([few], 1, lambda done, total, words: seen.append((done, total))) == 7 and seen == [(7, 7)]


def test_more_work_reaches_further(tiny_cell: Callable[..., RunConfig]):
    base = reach(tiny_cell())
    assert reach(tiny_cell(train={"updates": 12, "batch_rows": 8})) > base
    assert reach(tiny_cell(train={"updates": 6, "batch_rows": 32})) > base
    assert reach(tiny_cell(pipeline={"tasks_per_step": 4, "load": 9.0})) > base
    assert reach(tiny_cell(pipeline={"tasks_per_step": 4, "load": 2.0, "runs_per_task": 4})) < base
