"""The direct road for weights between Ray's workers: what explorers take, and when it is closed or its learner dead."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from divopd.config import PolicyConfig, RunConfig
from divopd.pipeline.ray import weights
from divopd.pipeline.ray.coordinator import Coordinator
from divopd.pipeline.ray.weights import GROUP, Direct, Giver, Taker
from divopd.policies.hf import HFPolicy, load_model
from divopd.runlog import read_json
from divopd.train import train
from ray_runs import SMALL, check_log, quiet

pytestmark = pytest.mark.slow


@pytest.fixture
def taker(tiny_models: Path) -> Taker:
    return Taker(HFPolicy(load_model(PolicyConfig(path=str(tiny_models / "student"))), 0))


@pytest.fixture
def learner(cluster: None, tiny_models: Path) -> Iterator[Callable[..., Any]]:
    """Starts one; which never sends anything (`deaf`), or fails to (`broken`), where `trouble` says so."""
    import ray

    class Learner(Giver):  # in here, so that Ray takes it along
        """Rank 0 without what it computes: every weight is the number of its version."""

        def start(self, folder: str, trouble: str) -> None:
            self.model, self.trouble = load_model(PolicyConfig(path=folder)), trouble

        def publish(self, version: int) -> None:
            own = HFPolicy(self.model, 0).weights()
            self.put(((n, torch.full_like(w, version)) for n, w in own.items()), torch.float32, version)

        def send(self, explorer: int) -> int:
            if self.trouble == "deaf":
                time.sleep(600)
            if self.trouble == "broken":
                time.sleep(2)  # the other end waits by now
                raise OSError("no socket left")
            return super().send(explorer)

    started = []

    def start(trouble: str = "") -> Any:
        remote: Any = ray.remote
        started.append(remote(concurrency_groups={GROUP: 3})(Learner).options(num_cpus=0).remote())
        started[-1].start.remote(str(tiny_models / "student"), trouble)
        return started[-1]

    yield start
    for actor in started:
        ray.kill(actor)


def holds(taker: Taker, version: int) -> bool:
    policy: Any = taker.policy
    return policy.version == version and all((tensor == version).all() for tensor in policy.weights().values())


def test_explorers_take_what_was_published_last_until_the_road_is_closed(
    taker: Taker, learner: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then it is said once, and the store is taken. A learner that dies on the road is Ray's error, by which the
    coordinator knows whose death it is. To the next learner leads another road; on another host it is sent.
    """
    import ray

    def take(epoch: int, version: int) -> tuple[int, str, str | None]:
        found = taker.take(Direct(ranks[epoch], 0, epoch), version)
        assert found.seconds > 0
        return found.version, found.road, found.trouble

    ranks = [learner(), learner("deaf"), learner(), learner("broken")]
    ray.get([rank.publish.remote(1) for rank in ranks])  # in line with their start, as what explorers ask for is not
    for version in (1, 2, 3):
        ray.get(ranks[0].publish.remote(version))
        # asked for the version that was the newest when the step was handed out: what there is by now
        assert take(0, max(1, version - 1)) == (version, "direct", None) and holds(taker, version)
    assert taker.way is not None and taker.way.memory is not None
    ray.get(Direct(ranks[0], 0, 0).call("close_road"))
    ray.get(ranks[0].publish.remote(4))
    assert take(0, 4) == (4, "store", "the road for weights is closed") and holds(taker, 4)
    ray.get(ranks[0].publish.remote(5))
    assert take(0, 5) == (5, "store", None) and holds(taker, 5)

    threading.Timer(1.0, ray.kill, (ranks[1],)).start()
    begin = time.monotonic()
    with pytest.raises(ray.exceptions.RayActorError):
        take(1, 5)
    assert time.monotonic() - begin < 12
    monkeypatch.setattr(weights, "within_reach", lambda memory: False)
    assert take(2, 1) == (1, "direct", None) and holds(taker, 1)
    assert taker.way is not None and taker.way.memory is None
    begin = time.monotonic()
    assert take(3, 1) == (1, "store", "no socket left") and holds(taker, 1)
    assert time.monotonic() - begin < 15


@pytest.mark.skipif("DIVOPD_LONG_TESTS" not in os.environ, reason="40 s: DIVOPD_LONG_TESTS=1 runs it")
def test_turns_under_weights_that_the_coordinator_has_not_heard_of(
    cluster: None, ray_cell: Callable[..., RunConfig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """News of a publication come late, and explorers are faster: their turns wait for it, and no age is negative."""
    learned, hand_out = Coordinator._learned, Coordinator._hand_out
    late: list[tuple[float, Any]] = []
    early: list[int] = []

    def hold_back(self: Coordinator, *news: Any) -> None:
        late.append((time.monotonic() + 5, news))

    def release(self: Coordinator) -> None:
        if late and (self.early or time.monotonic() > late[0][0]):
            early.append(len(self.early))
            learned(self, *late.pop()[1])
        hand_out(self)

    monkeypatch.setattr(Coordinator, "_learned", hold_back)
    monkeypatch.setattr(Coordinator, "_hand_out", release)
    placement = {"explorers": SMALL | {"count": 2}, "evaluators": {"count": 0}, "weights": "direct"}
    cell = ray_cell(placement=placement | {"backpressure": False}, train={"updates": 3, "batch_rows": 8})
    assert train(cell, tmp_path / "run", quiet) == "done"
    check_log(cell, tmp_path / "run")
    assert any(early)
    assert read_json(tmp_path / "run", "status.json")["weights"]["store"] == 0
