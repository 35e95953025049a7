"""The Ray pipeline on a real local cluster: workers are processes, and they are killed."""

from __future__ import annotations

import dataclasses
import json
import os
import pickle
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import load_file

from divopd.config import PlacementConfig, RunConfig
from divopd.doctor import SetupError
from divopd.envs.base import EnvError, Step
from divopd.envs.registry import make_envs
from divopd.pipeline.ray.environments import remote_envs
from divopd.pipeline.ray.steps import RayCourse
from divopd.pipeline.virtual import VirtualPipeline, Workers
from divopd.runlog import mark_evaluated, read_json, read_table
from divopd.selection import load_rule
from divopd.timing import Stopwatch
from divopd.train import train
from ray_runs import PLACEMENT, SMALL, check_log, end, fleets, quiet, tables

pytestmark = pytest.mark.slow


class Arrivals:
    """What came when, and what was chosen of it, noted inside a run."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.arrived: list[tuple[float, bytes]] = []
        self.batches: list[list[tuple[Any, int]]] = []
        arrive, choose = RayCourse._arrive, RayCourse._choose

        def noted(course: RayCourse, rollouts: Any) -> None:
            self.arrived.append((course.now, pickle.dumps(rollouts)))
            arrive(course, rollouts)

        def chosen(course: RayCourse) -> Any:
            if (choice := choose(course)) is not None:
                self.batches.append([(turn.rollout, turn.index) for turn in choice[0]])
            return choice

        monkeypatch.setattr(RayCourse, "_arrive", noted)
        monkeypatch.setattr(RayCourse, "_choose", chosen)


def replayed(cell: RunConfig, arrived: list[tuple[float, bytes]], ends: pd.Series) -> tuple[list[Any], list[Any]]:
    """Rows and batches of the virtual pipeline, told what came when and when updates ended."""
    calm = cell.model_copy(update={"pipeline": cell.pipeline.model_copy(update={"kind": "virtual"})})
    virtual, batches = VirtualPipeline(calm, load_rule("divopd"), ["none"]), []

    class Taken:
        @staticmethod
        def update(batch: Any) -> float:
            return float(ends[virtual.update - 1]) - virtual.now

    virtual._events, virtual.costs = [], Taken()  # type: ignore[assignment]
    for when, rollouts in arrived:
        virtual._schedule(when, "arrive", pickle.loads(rollouts))

    def learn(batch: Any, version: int) -> dict[str, float]:
        batches.append([(turn.rollout, turn.index) for turn in batch])
        return {}

    rows: list[dict[str, Any]] = []
    while not virtual.finished:
        virtual.run(Workers(quiet, learn, quiet, quiet), rows.append, Stopwatch())  # type: ignore[arg-type]
    return rows, batches


def test_an_asynchronous_run_and_the_virtual_pipeline_on_its_arrivals(
    cluster: None,
    ray_cell: Callable[..., RunConfig],
    tiny_models: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    student = {"path": str(tiny_models / "student"), "gap_alarm": 1e-3}
    cell, folder, seen = ray_cell(student=student), tmp_path / "results" / "tiny" / "seed0", Arrivals(monkeypatch)
    steps: list[int] = []
    assert train(cell, folder, lambda done, total, words: steps.append(done)) == "done"
    assert steps == list(range(1, cell.train.updates + 1))
    check_log(cell, folder)
    turns, updates, evals = tables(folder)
    assert evals.groupby("version").size().to_dict() == {0: 3, 3: 3, 6: 3}
    status = read_json(folder, "status.json")
    assert 0 < status["busy"]["explorer"] <= 1 and 0 < status["busy"]["learner"] <= 1
    assert (updates["explorer_seconds"].diff().dropna() >= 0).all() and updates["learner_seconds"].min() > 0
    # asked for a gap, explorers are held against the learner after each sync
    probed = read_table(folder, "parity").to_pandas()
    assert len(probed) and set(probed["version"]) <= set(range(1, cell.train.updates + 1))
    assert (probed["tokens"] > 0).all() and probed["max_gap"].max() < 1e-5
    wait = updates["time_start"] - updates["time_end"].shift(fill_value=0.0)
    assert np.allclose(updates["read_wait"], wait)

    # the virtual pipeline chooses the same turns in the same order
    rows, batches = replayed(cell, seen.arrived, updates["time_end"])
    assert batches == seen.batches and len(batches) == cell.train.updates
    for name in (
        "effective_rollouts",
        "mean_age",
        "kl_per_token",
        "stale_rows",
        "queue_length",
        "never_selected_share",
    ):
        assert np.array_equal([row[name] for row in rows], updates[name], equal_nan=True), name

    # and the report reads it
    from divopd.analysis.report import report

    mark_evaluated(folder)
    out = tmp_path / "out"
    report(tmp_path / "results", out, tmp_path / "figures", "collect", "divopd", (), None)
    assert (pd.read_csv(out / "curves.csv")["version"] == [0, 3, 6]).all()


@pytest.mark.parametrize(
    ("policy", "actor"),
    [({"policy": "recovery", "params": {"patience": 1, "max_turns": 2}}, "teacher"),
     ({"policy": "tcod_b2f", "params": {"eta": 2}}, "expert")],
)  # fmt: skip
def test_the_virtual_clock_drives_ray_workers_to_the_same_log(
    policy: dict[str, Any], actor: str,
    cluster: None, ray_cell: Callable[..., RunConfig], tiny_cell: Callable[..., RunConfig], tmp_path: Path,
) -> None:  # fmt: skip
    """Explorer, scorer, environments and learner in processes of their own compute what one does, to the bit."""
    changes: dict[str, Any] = {"method": {"name": "divopd", "rule": "divopd", "rollout": policy}}
    placement = {"clock": "virtual", "evaluators": {"count": 0}, "environment_processes": 2}
    train(ray_cell(placement=placement, **changes), tmp_path / "ray", quiet)
    train(tiny_cell(**changes), tmp_path / "one", quiet)
    for name in ("turns.parquet", "updates.parquet", "transcripts.parquet", "status.json"):
        assert (tmp_path / "ray" / name).read_bytes() == (tmp_path / "one" / name).read_bytes(), name
    for path in (tmp_path / "one" / "checkpoints").iterdir():  # the order of a checkpoint's metadata is not its own
        one, other = load_file(path), load_file(tmp_path / "ray" / "checkpoints" / path.name)
        assert one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)
    assert actor in read_table(tmp_path / "one", "turns").column("actor").to_pylist()


def test_killed_workers_cost_nothing_but_time(
    cluster: None, ray_cell: Callable[..., RunConfig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two explorers of two lanes; one of each kind of worker is killed, at another update each."""
    import psutil

    found = fleets(monkeypatch)

    def kill(done: int, total: int, words: str) -> None:
        kind = {1: "explorer", 2: "scorer", 3: "environment", 4: "evaluator"}.get(done)
        if kind == "environment":
            [child, *_] = psutil.Process(found[0].of("explorer")[1].pid).children()
            child.kill()
        elif kind is not None:
            end(found[0].of(kind)[0])

    placement = {"explorers": SMALL | {"count": 2}, "lanes": 2, "environment_processes": 2}
    cell = ray_cell(placement=placement)
    assert train(cell, tmp_path / "run", kill) == "done"
    check_log(cell, tmp_path / "run")
    status = read_json(tmp_path / "run", "status.json")
    replaced = status["replaced"]
    assert status["weights"]["direct"] == 0 < status["weights"]["store"]
    assert replaced["explorer"] >= 1 and replaced["scorer"] == 1 and replaced["learner"] == 0
    _, _, evals = tables(tmp_path / "run")
    assert evals.groupby("version").size().to_dict() == {0: 3, 3: 3, 6: 3}


def test_what_the_cluster_lacks_is_named(cluster: None, ray_cell: Callable[..., RunConfig], tmp_path: Path) -> None:
    for placement, message in (
        (
            {"explorers": SMALL | {"count": 4, "gpus": 1}},
            "need 4 GPU where the cluster has 0: lower count, cpus or gpus",
        ),
        ({"explorers": {"cpus": 1.5}, "scorers": {"cpus": 1.5}}, r"need 3\.2 CPU where the cluster has 2"),
        ({"learners": {"cpus": 0.1, "resources": {"rack": 1}}}, "need 1 rack where the cluster has 0"),
    ):
        with pytest.raises(SetupError, match=message):
            train(ray_cell(placement=placement), tmp_path / "run", quiet)
        assert not (tmp_path / "run").exists()


def plain(step: Step) -> Step:
    """ALFWorld has no score, and NaN equals nothing."""
    return dataclasses.replace(step, score=0.0)


def test_environments_survive_their_processes(tiny_cell: Callable[..., RunConfig]) -> None:
    """A process that dies is followed by one that stands where it stood; errors come through as they are."""
    config = tiny_cell().env
    [local] = make_envs(config, 1)
    first, second, third = remote_envs(config, 3, 2)
    assert first.process is third.process is not second.process
    moves = list(local.reset("gen/train/1").allowed[:3])
    expected = [plain(local.step(move)) for move in moves]
    assert first.reset("gen/train/1") == local.reset("gen/train/1")
    third.reset("gen/train/2")
    seen = []
    for move in moves:
        os.kill(first.process.pid, signal.SIGKILL)
        seen.append(plain(first.step(move)))
    assert seen == expected
    with pytest.raises(EnvError, match="call reset first"):
        second.step("look")
    # the other environment of the killed process: its history is its own
    [other] = make_envs(config, 1)
    begin = other.reset("gen/train/2")
    assert plain(third.step(begin.allowed[0])) == plain(other.step(begin.allowed[0]))
    for env in (first, second):
        env.process.close()


def test_placement_is_checked_and_leaves_old_runs_alone(tiny_cell: Callable[..., RunConfig]) -> None:
    plain = tiny_cell().model_dump(mode="json")
    assert "placement" not in plain and "kind" not in plain["pipeline"]
    assert not {"weights", "call_limit"} & tiny_cell(placement=PLACEMENT).model_dump(mode="json")["placement"].keys()
    with pytest.raises(ValueError, match="explorers.count: at least one"):
        PlacementConfig.model_validate({"explorers": {"count": 0}})
    again = RunConfig.model_validate(json.loads(json.dumps(tiny_cell(placement=PLACEMENT).model_dump(mode="json"))))
    assert again.placement.explorers.cpus == 0.1
