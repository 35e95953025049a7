"""Several Ray nodes on one machine: raylets and object stores of their own, between which everything travels."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from divopd.config import RunConfig
from divopd.doctor import SetupError
from divopd.pipeline.ray import nodes as places
from divopd.runlog import read_json
from divopd.train import train
from ray_runs import SMALL, check_log, fleets, quiet

pytest.importorskip("ray")
pytestmark = pytest.mark.slow
STORE = {"object_store_memory": 100 << 20}
ELSEWHERE = SMALL | {"resources": {"far": 1}}
LONG = os.environ.get("DIVOPD_LONG_TESTS")


@pytest.fixture
def nodes() -> Iterator[Any]:
    """A head, which has nothing `far`, and a node that has three of it. Ray notices within 2 s that a node is gone."""
    import ray
    from ray.cluster_utils import Cluster

    os.environ.setdefault("RAY_worker_niceness", "0")
    soon = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 500, "health_check_failure_threshold": 4}
    head = {"num_cpus": 1, "resources": {"near": 1}, "include_dashboard": False, "_system_config": soon} | STORE
    made = Cluster(initialize_head=True, head_node_args=head)
    another(made)
    made.wait_for_nodes(timeout=120)
    yield made
    ray.shutdown()
    made.shutdown()


def another(cluster: Any) -> None:
    cluster.add_node(wait=False, num_cpus=1, resources={"far": 3}, **STORE)


def homes(fleet: Any) -> dict[str, str]:
    """The node of each worker."""
    return {f"{seat.kind} {seat.index}": node for seat, node in fleet._nodes().items()}


def lose(cluster: Any, name: str) -> None:
    """The node is gone at once, as by a power cut."""
    [lost] = [node for node in cluster.worker_nodes if node.node_id == name]
    cluster.remove_node(lost, allow_graceful=False)


def test_workers_on_two_nodes_leave_the_log_of_one_process(
    nodes: Any,
    ray_cell: Callable[..., RunConfig],
    tiny_cell: Callable[..., RunConfig],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Learner here and explorer there, driven by the virtual clock."""
    found, seen = fleets(monkeypatch), []
    monkeypatch.setenv("RAY_ADDRESS", nodes.address)
    apart = {"explorers": ELSEWHERE, "learners": SMALL | {"resources": {"near": 1}}, "evaluators": {"count": 0}}
    train(ray_cell(placement=apart | {"clock": "virtual"}), tmp_path / "apart", lambda *_: seen.append(homes(found[0])))
    assert seen[0]["explorer 0"] != seen[0]["learner 0"]
    train(tiny_cell(), tmp_path / "one", quiet)
    for name in ("turns.parquet", "updates.parquet", "transcripts.parquet", "status.json"):
        assert (tmp_path / "apart" / name).read_bytes() == (tmp_path / "one" / name).read_bytes(), name


@pytest.mark.skipif(not LONG, reason="waits for two minutes; DIVOPD_LONG_TESTS=1 runs it")
def test_nodes_that_are_lost(
    nodes: Any, ray_cell: Callable[..., RunConfig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node holds explorers, learner and weights, and is lost: another one goes on. That one is lost as well, and the
    run ends in a line; with a third it goes on.
    """
    found, lost = fleets(monkeypatch), []
    monkeypatch.setenv("RAY_ADDRESS", nodes.address)

    def power_cut(done: int, total: int, words: str) -> None:
        if done == 3 + 2 * len(lost) and len(lost) < 2:  # the first while a checkpoint is under way
            if not lost:
                another(nodes)
                nodes.wait_for_nodes(timeout=120)
            lost.append(homes(found[0])["learner 0"])
            lose(nodes, lost[-1])

    far = {"explorers": ELSEWHERE | {"count": 2}, "learners": ELSEWHERE, "evaluators": {"count": 0}, "patience": 15.0}
    cell = ray_cell(placement=far | {"scorers": SMALL | {"resources": {"near": 0.5}}})
    with pytest.raises(SetupError, match="no node has had a place for .*learner 0.*, whose node is gone"):
        train(cell, tmp_path / "run", power_cut)
    another(nodes)
    nodes.wait_for_nodes(timeout=120)
    assert train(cell, tmp_path / "run", power_cut) == "done"
    assert len(set(lost)) == 2
    check_log(cell, tmp_path / "run")
    replaced = read_json(tmp_path / "run", "status.json")["replaced"]
    assert replaced["learner"] >= 1 and replaced["explorer"] >= 2 and replaced["scorer"] == 0


def test_what_a_node_does_not_see_is_named(
    ray_cell: Callable[..., RunConfig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker looks for folder, models and the run's folder before it loads anything."""
    monkeypatch.setattr(places, "PATIENCE", 0.0)
    run, start = tmp_path / "run", tmp_path / "start"
    start.mkdir()
    monkeypatch.chdir(start)
    student = tmp_path / "student"
    shutil.copytree(ray_cell().student.path, student)
    home = places.Home.here(ray_cell(student={"path": str(student)}), run)
    home.enter(shares=True)
    [mark] = (run / "resume").iterdir()
    mark.unlink()  # as on a disk of its own
    home.enter(shares=False)
    with pytest.raises(SetupError, match=f"does not see {run} .* --out must be on a file system that all nodes share"):
        home.enter(shares=True)
    shutil.rmtree(student)
    with pytest.raises(SetupError, match=f"node .* does not see {student} .* at the same paths on every node"):
        home.enter(shares=False)
    start.rmdir()
    with pytest.raises(SetupError, match=f"does not see {start} .* start divopd in a folder that all nodes have"):
        home.enter(shares=False)
    monkeypatch.chdir(tmp_path)
