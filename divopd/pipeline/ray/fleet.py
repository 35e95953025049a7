"""The workers: resources for each, a cluster that has them, and a new worker in the place of one that died."""

from __future__ import annotations

import importlib.util
import math
import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from divopd.config import PlacementConfig, PolicyConfig, RunConfig, WorkersConfig
from divopd.doctor import SetupError
from divopd.pipeline.ray.own_cluster import start

KINDS = ("explorer", "scorer", "learner", "evaluator")
TRIES = 3  # deaths in a row of one worker, without a finished call between


class WorkerLostError(RuntimeError):
    """A worker dies again and again; one line."""


@dataclass(eq=False, slots=True)
class Seat:
    """One worker's place in the fleet: who holds it changes when a worker dies."""

    kind: str
    index: int
    actor: Any = None
    ready: bool = False
    jobs: int = 0  # calls under way
    deaths: int = 0  # in a row
    life: int = 0  # how many have held it
    pid: int = 0  # on its node
    node: str = ""  # Ray's name of it; "": not known yet
    since: float = 0.0  # when it last went from no call to one, in seconds of the run


class Fleet:
    """All workers of a run, placed together or not at all. Raises `SetupError` where the cluster lacks something."""

    def __init__(self, config: RunConfig) -> None:
        self.config, self.placement = config, config.placement
        self.home: Any = None  # a `Home`, once there is a run's folder
        self._ours = connect(self.placement)
        self.seats = [Seat(kind, i) for kind in KINDS for i in range(workers(self.placement, kind).count)]
        self._group: Any = None
        try:
            self._group = reserve(self.placement, self.seats)
        except BaseException:
            self.close()
            raise

    def of(self, kind: str) -> list[Seat]:
        return [seat for seat in self.seats if seat.kind == kind]

    def ready(self, kind: str) -> list[Seat]:
        return [seat for seat in self.of(kind) if seat.ready]

    @property
    def explorers_a_step(self) -> int:
        """Explorers that a step's tasks are dealt out to, at most."""
        return math.ceil(self.placement.explorers.count / self.config.pipeline.steps_in_flight)

    def fill(self, seat: Seat) -> None:
        """Put a new worker on a seat; `start` or `start_learner` must follow. What it held before ends."""
        import ray
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        from divopd.pipeline.ray.weights import GROUP, Direct, is_direct
        from divopd.pipeline.ray.workers import Examiner, Explorer, Rank, Scorer

        if seat.actor is not None:
            ray.kill(seat.actor)
            if seat.kind == "explorer" and is_direct(self.config):  # the learner may be waiting for it
                Direct(self.of("learner")[0].actor, seat.index, 0).call("close_road")
        made = {"explorer": Explorer, "scorer": Scorer, "learner": Rank, "evaluator": Examiner}[seat.kind]
        share = workers(self.placement, seat.kind)
        policy = self._policy(seat)
        threads = lanes(self.config) if seat.kind == "explorer" else 1
        if policy.backend == "vllm":  # many lanes may ask a scorer at once, and `leave` must not wait for a call to end
            threads = 64 if seat.kind == "scorer" else threads + 1
        remote: Any = ray.remote
        if seat.kind == "learner" and is_direct(self.config):
            # rank 0 answers explorers while it trains; who ends a road must not wait for those that are on theirs
            remote = remote(concurrency_groups={GROUP: 2 + self.placement.explorers.count})
        seat.actor = (
            remote(made)
            .options(
                num_cpus=share.cpus,
                num_gpus=share.gpus,
                resources=share.resources or None,
                max_concurrency=threads,
                scheduling_strategy=PlacementGroupSchedulingStrategy(
                    self._group, placement_group_bundle_index=self.seats.index(seat)
                ),
            )
            .remote()
        )
        seat.ready, seat.jobs, seat.life, seat.node = False, 0, seat.life + 1, self._nodes()[seat]

    def _policy(self, seat: Seat) -> PolicyConfig:
        return self.config.teacher if seat.kind == "scorer" else self.config.student

    def start(self, seat: Seat) -> Any:
        """Reference to the end of a new worker's setup; not for the learner's."""
        return seat.actor.setup.remote(self.config, self.home)

    def start_learner(self, saved: str | None) -> list[tuple[Seat, Any]]:
        """New ranks, all of them, from what they saved in a folder or from the student: each with its setup's end."""
        ranks = self.of("learner")
        for seat in ranks:
            self.fill(seat)
        address = ranks[0].actor.address.remote()
        return [
            (seat, seat.actor.setup.remote(self.config, self.home, seat.index, len(ranks), address, saved))
            for seat in ranks
        ]

    def source(self, explorer: Seat, published: Any, epoch: int) -> Any:
        """Where an explorer gets the weights published last: a reference to them, or a `Direct`."""
        from divopd.pipeline.ray.weights import Direct, is_direct

        return Direct(self.of("learner")[0].actor, explorer.index, epoch) if is_direct(self.config) else published

    def whole(self, published: Any, version: int) -> Any:
        """A reference to the weights published last, those of `version`, also where they do not go by the store."""
        from divopd.pipeline.ray.weights import is_direct

        if not is_direct(self.config):
            return published
        # in line with the next publication, which has not begun
        return self.of("learner")[0].actor.fetch.options(num_returns=2).remote(None, version)[1]

    def end_learner(self) -> None:
        """Before anybody waits for an answer of a rank that may never come."""
        import ray

        for seat in self.of("learner"):
            if seat.actor is not None:
                ray.kill(seat.actor)

    def homeless(self) -> list[Seat]:
        """Seats whose place went with its node, as long as Ray has found no other."""
        nodes = self._nodes()
        return [seat for seat in self.seats if not nodes[seat]]

    def _nodes(self) -> dict[Seat, str]:
        from ray.util import placement_group_table

        found = placement_group_table(self._group)["bundles_to_node_id"]
        return {seat: found.get(i, "") for i, seat in enumerate(self.seats)}

    def died(self, seat: Seat, why: BaseException) -> None:
        """Note a death. Raises `WorkerLostError` where this worker does nothing but die, on nodes that live."""
        import ray

        if seat.node in {node["NodeID"] for node in ray.nodes() if not node["Alive"]}:
            return  # Ray needs a while to notice, and until then puts new workers there
        seat.deaths += 1
        if seat.deaths >= TRIES:
            reason = " ".join(str(why).split())[:400]
            raise WorkerLostError(
                f"{seat.kind} {seat.index} died {TRIES} times in a row without finishing a call; last: {reason}"
            )

    def close(self) -> None:
        """End all workers, and the cluster where it is this run's own."""
        import ray
        from ray.util.placement_group import remove_placement_group

        if not ray.is_initialized():
            return
        engines = [
            seat.actor.leave.remote()
            for seat in self.seats
            if seat.ready and seat.kind != "learner" and self._policy(seat).backend == "vllm"
        ]
        if engines:  # their processes are not Ray's
            ray.wait(engines, num_returns=len(engines), timeout=20)
        for seat in self.seats:
            if seat.actor is not None:
                ray.kill(seat.actor)
        if self._group is not None:
            remove_placement_group(self._group)
        if self._ours:
            ray.shutdown()


def workers(placement: PlacementConfig, kind: str) -> WorkersConfig:
    """What the configuration says of one kind."""
    found: WorkersConfig = getattr(placement, f"{kind}s")
    return found


def lanes(config: RunConfig) -> int:
    """Shares of an explorer's step that are played each for itself."""
    tasks = config.pipeline.tasks_per_step * config.pipeline.runs_per_task
    default = tasks if config.student.backend == "vllm" else 1
    return min(config.placement.lanes or default, tasks)


def connect(placement: PlacementConfig) -> bool:
    """Join the cluster, or start one of this machine alone; whether it was started here."""
    if importlib.util.find_spec("ray") is None:
        raise SetupError("pipeline.kind is ray and ray is not installed: run `make install`, or set it to virtual")
    import ray

    if ray.is_initialized():
        return False
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    address, named = placement.address, "placement.address"
    if address is None and (address := os.environ.get("RAY_ADDRESS")):  # as Ray itself does
        named = "RAY_ADDRESS"
    if not address or address == "local":
        start(quiet, placement.patience)
        return True
    # what this process was told about models and threads holds for its workers on every node
    told = {key: value for key, value in os.environ.items() if key.startswith(("HF_", "OMP_", "TOKENIZERS_", "NCCL_"))}
    try:
        ray.init(address=address, runtime_env={"env_vars": told}, **quiet)
    except (ConnectionError, ValueError, RuntimeError) as error:
        said = " ".join(str(error).split())[:200]
        raise SetupError(
            f"{named}: no Ray cluster answers at {address!r} ({said}): start one with `ray start --head`, "
            "set RAY_AUTH_MODE=token if it asks for tokens, or leave the address out"
        ) from error
    return True


def demand(share: WorkersConfig) -> dict[str, float]:
    """What one worker takes, by Ray's names. Never nothing: a place must hold something."""
    needs = {"CPU": share.cpus, "GPU": share.gpus, **share.resources}
    return {name: amount for name, amount in needs.items() if amount} or {"CPU": 0.001}


def reserve(placement: PlacementConfig, seats: Iterable[Seat]) -> Any:
    """A place for every seat, in their order. Raises `SetupError` that says which resource lacks."""
    import ray
    from ray.util.placement_group import placement_group, remove_placement_group

    bundles = [demand(workers(placement, seat.kind)) for seat in seats]
    total: dict[str, float] = {}
    for name, amount in ((name, amount) for bundle in bundles for name, amount in bundle.items()):
        total[name] = total.get(name, 0.0) + amount
    have = ray.cluster_resources()
    lacking = [
        f"{need:g} {name} where the cluster has {have.get(name, 0.0):g}"
        for name, need in sorted(total.items())
        if need > have.get(name, 0.0) + 1e-6
    ]
    mend = "lower count, cpus or gpus under `placement`, or add nodes"
    if lacking:
        raise SetupError(f"the Ray workers need {', and '.join(lacking)}: {mend}")
    group = placement_group(bundles, strategy="PACK")
    if not group.wait(timeout_seconds=placement.patience):
        free = ray.available_resources()
        remove_placement_group(group)
        most = {name: max(bundle.get(name, 0.0) for bundle in bundles) for name in total}
        said = ", ".join(
            f"{total[name]:g} {name} (up to {most[name]:g} on one node; free now: {free.get(name, 0.0):g})"
            for name in sorted(total)
        )
        raise SetupError(
            f"within {placement.patience:g} s the cluster had no place for the Ray workers, which need {said}: "
            f"wait until others have ended, or {mend}"
        )
    return group
