"""Weights on their way from the learner to everyone, by one of two roads (docs/ray.md).

The store: Ray's object store, into which they are put once, to be read by each without a copy. The direct road: rank 0
of the learner keeps them on a stage, and each explorer has them sent from there into the memory that samples.
"""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from divopd.config import RunConfig
from divopd.policies.base import EngineLostError, Policy, PolicyError
from divopd.policies.road import PATIENCE, Road, RoadError, Way, backend_for, gpu_of, host
from divopd.policies.stage import Stage, within_reach

Packed = dict[str, tuple[str, np.ndarray]]
"""By the checkpoint's names: type, and the numbers as an array, which Ray keeps outside the pickle."""


def pack(weights: Iterable[tuple[str, Tensor]], dtype: torch.dtype | None) -> Packed:
    """Floating-point tensors as `dtype`, if given; others as they are. On a CPU of that type nothing is copied yet."""
    out: Packed = {}
    for name, tensor in weights:
        plain = tensor.detach().to("cpu", dtype if tensor.is_floating_point() else None).contiguous()
        # numpy has no bfloat16: its 16 bits travel as an integer's
        bits = plain.view(torch.int16) if plain.dtype is torch.bfloat16 else plain
        out[name] = (str(plain.dtype).removeprefix("torch."), bits.numpy())
    return out


def unpack(packed: Packed) -> dict[str, Tensor]:
    """Tensors over the packed memory, for reading alone."""
    out = {}
    for name, (kind, array) in packed.items():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # memory of the object store cannot be written
            tensor = torch.from_numpy(array)
        out[name] = tensor.view(torch.bfloat16) if kind == "bfloat16" else tensor
    return out


def is_direct(config: RunConfig) -> bool:
    """Whether explorers take the direct road."""
    return config.weights_directly


GROUP = "road"
"""Ray's name for the threads of the learner's rank 0 that answer explorers while it trains."""
GRACE = 15.0  # seconds in which one end of a road notices that the other is gone


@dataclass(eq=False, slots=True)
class Lane:
    """One explorer's road, as rank 0 has it."""

    way: Way
    store: Any  # where its ends meet
    road: Road | None = None  # as soon as both are there


class Giver:
    """Rank 0's part of the direct road: what it has published last, for each explorer that asks."""

    def __init__(self) -> None:
        self.stage, self.version = Stage(), -1  # -1: what is there is not whole
        self.device = torch.device("cpu")  # that computes
        self.turn = threading.Condition()  # many may read the stage, or one write it
        self.readers, self.writing = 0, False
        self.lanes: dict[int, Lane] = {}  # by explorer

    def quiet(self) -> None:
        """Let those who take what is on the stage have it, and nobody else begin: `put` comes next."""
        with self.turn:
            self.writing = True
            self.turn.wait_for(lambda: not self.readers)

    def put(self, weights: Iterable[tuple[str, Tensor]], dtype: torch.dtype, version: int) -> None:
        """Publish."""
        self.quiet()
        self.version = -1
        try:
            self.stage.fill(weights, dtype)
            self.version = version
        finally:
            with self.turn:
                self.writing = False
                self.turn.notify_all()

    @contextmanager
    def _reading(self) -> Iterator[None]:
        with self.turn:
            self.turn.wait_for(lambda: not self.writing)
            if self.version < 0:
                raise RoadError("the learner failed while it published weights")
            self.readers += 1
        try:
            yield
        finally:
            with self.turn:
                self.readers -= 1
                self.turn.notify_all()

    def stage_memory(self, explorer: int) -> tuple[str, str] | None:
        """See `Stage.memory`."""
        return self.stage.memory

    def open_road(self, explorer: int, gpus: list[str | None], mapped: bool) -> Way:
        """A new road to an explorer's policy, which has these GPUs (by UUID; None: a CPU) and may map the stage."""
        self.close_road(explorer)
        store, backend = host(node()), backend_for(gpu_of(self.device), gpus)
        memory = self.stage.memory if mapped and backend == "gloo" else None
        way = Way(f"{node()}:{store.port}", 1 + len(gpus), backend, self.stage.layout, memory)
        self.lanes[explorer] = Lane(way, store)
        return way

    def send(self, explorer: int) -> int:
        """Send what was published last; its version. Blocks until it is there. `RoadError`: this road is closed."""
        lane = self.lanes.get(explorer)
        try:
            if lane is not None and lane.road is None:
                device = self.device if lane.way.backend == "nccl" else torch.device("cpu")
                lane.road = Road(lane.way, 0, node(), device, lane.store)
            if lane is None or lane.road is None or self.lanes.get(explorer) is not lane:  # closed meanwhile
                raise RoadError("the road for weights is closed")
            with self._reading():
                lane.road.give(self.stage.pieces)
                return self.version
        except RoadError:
            if lane is not None and self.lanes.get(explorer) is lane:  # and not one that was opened since
                self.close_road(explorer)
            raise

    def close_road(self, explorer: int) -> None:
        """Where it leads, nobody is any more."""
        lane = self.lanes.pop(explorer, None)
        if lane is not None and lane.road is not None:
            lane.road.close()

    def fetch(self, explorer: int | None = None, version: int | None = None) -> tuple[int, Packed]:
        """What was published last, for the store: its version, and a copy, as the stage goes on changing.

        Raises `RoadError` where it should be `version` and is not.
        """
        with self._reading():
            if version not in (None, self.version):
                raise RoadError(f"weights of version {self.version} are on the stage, and not {version}")
            packed = pack(self.stage.tensors(), None)
            return self.version, {name: (kind, array.copy()) for name, (kind, array) in packed.items()}


def node() -> str:
    """The address of this node."""
    import ray

    return str(ray.util.get_node_ip_address())


@dataclass(frozen=True, slots=True)
class Direct:
    """Where an explorer asks for weights, in place of a reference to them."""

    rank: Any  # handle of the learner's rank 0
    explorer: int
    epoch: int  # which differs from rank to rank

    def call(self, method: str, *args: Any, returns: int = 1) -> Any:
        """Reference to the answer of rank 0, which it gives beside whatever else it does."""
        call = getattr(self.rank, method).options(concurrency_group=GROUP, num_returns=returns)
        return call.remote(self.explorer, *args)


@dataclass(frozen=True, slots=True)
class Taken:
    """How weights came: which version (the one asked for, or one after it), by which road, in which time."""

    version: int
    road: str  # "direct", "store"
    seconds: float
    trouble: str | None = None  # why the direct road is closed from now on


class Taker:
    """An explorer's side."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.way: Way | None = None
        self.epoch, self.closed = -1, False  # of whose road; whether it has failed
        self.thread = ThreadPoolExecutor(1)

    def take(self, source: Any, version: int) -> Taken:
        """Weights into the policy, from a reference or a `Direct`. Ray's errors mean that they, or rank 0, are gone."""
        import ray

        begin, trouble, packed = time.perf_counter(), None, source
        if isinstance(source, Direct):
            if source.epoch != self.epoch:
                self.way, self.epoch, self.closed = None, source.epoch, False
            if not self.closed:
                try:
                    return Taken(self._direct(source), "direct", time.perf_counter() - begin)
                except EngineLostError:
                    raise
                except PolicyError as error:
                    self.closed, trouble = True, str(error)
            asked, packed = source.call("fetch", returns=2)
            version = ray.get(asked)
        self.policy.load_weights(unpack(ray.get(packed)), version)
        return Taken(version, "store", time.perf_counter() - begin, trouble)

    def _direct(self, source: Direct) -> int:
        """The version that has come. Raises `PolicyError` where none has, and what Ray says where rank 0 is gone."""
        import ray

        errors = ray.exceptions
        try:
            if self.way is None:
                memory = ray.get(source.call("stage_memory"))
                mapped = memory is not None and within_reach(memory)
                self.way = ray.get(source.call("open_road", self.policy.gpus, mapped))
        except errors.RayTaskError as error:
            raise RoadError(f"no road for weights: {error.cause}") from error
        sent = source.call("send")
        here = self.thread.submit(self.policy.receive, self.way, node(), lambda: ray.get(sent))
        while not here.done() and not ray.wait([sent], timeout=0.1)[0]:
            pass
        failed, patience = here.done() and here.exception() is not None, GRACE
        if failed:
            source.call("close_road")  # or rank 0 would go on sending
        try:
            version: int = ray.get(sent, timeout=GRACE if failed else None)
            patience = PATIENCE  # all is on its way, and may need a while to be loaded
        except errors.RayTaskError as error:
            source.call("close_road")  # with which the place goes where this end may still wait for the other
            patience = PATIENCE + GRACE
            raise RoadError(" ".join(str(error.cause).split())) from error
        except errors.GetTimeoutError as error:
            raise RoadError(" ".join(str(here.exception()).split())) from error
        finally:
            wait([here], patience)
            if not here.done():
                raise EngineLostError("weights stopped on their way, and what should take them does not answer")
        here.result()
        return version
