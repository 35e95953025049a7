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
from divopd.policies.road import Road, RoadError, Way, backend_for, gpu_of, host
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
    """Whether explorers take the direct road. `auto`: where vLLM samples, whose memory is another process's."""
    asked = config.placement.weights
    return asked == "direct" or (asked == "auto" and config.student.backend == "vllm")


GROUP = "road"
"""Ray's name for the threads of the learner's rank 0 that answer explorers while it trains."""
GRACE = 15.0  # seconds in which one end of a road notices that the other is gone


class Giver:
    """Rank 0's part of the direct road: what it has published last, for each explorer that asks."""

    def __init__(self) -> None:
        self.stage, self.version = Stage(), -1
        self.device = torch.device("cpu")  # that computes
        self.turn = threading.Condition()  # many may read the stage, or one write it
        self.readers, self.writing = 0, False
        self.roads: dict[int, tuple[Way, Any, Road | None]] = {}  # by explorer; with its store

    def put(self, weights: Iterable[tuple[str, Tensor]], dtype: torch.dtype, version: int) -> None:
        """Publish, as soon as those who take what was there have it."""
        with self.turn:
            self.writing = True
            self.turn.wait_for(lambda: not self.readers)
            try:
                self.stage.fill(weights, dtype)
                self.version = version
            finally:
                self.writing = False
                self.turn.notify_all()

    @contextmanager
    def _reading(self) -> Iterator[None]:
        with self.turn:
            self.turn.wait_for(lambda: not self.writing)
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
        self.roads[explorer] = (way, store, None)
        return way

    def send(self, explorer: int) -> int:
        """Send what was published last; its version. Blocks until it is there. `RoadError`: this road is closed."""
        if explorer not in self.roads:
            raise RoadError("the road for weights is closed")
        way, store, road = self.roads[explorer]
        try:
            if road is None:
                road = Road(way, 0, node(), self.device if way.backend == "nccl" else torch.device("cpu"), store)
                self.roads[explorer] = (way, store, road)
            with self._reading():
                road.give(self.stage.pieces)
                return self.version
        except RoadError:
            self.roads.pop(explorer, None)
            raise

    def close_road(self, explorer: int) -> None:
        """Where it leads, nobody is any more."""
        _, _, road = self.roads.pop(explorer, (None, None, None))
        if road is not None:
            road.close()

    def fetch(self, explorer: int | None = None) -> tuple[int, Packed]:
        """What was published last, for the store: its version, and a copy, as the stage goes on changing."""
        with self._reading():
            return self.version, {
                name: (kind, array.copy()) for name, (kind, array) in pack(self.stage.tensors(), None).items()
            }


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

        if self.way is None:
            memory = ray.get(source.call("stage_memory"))
            mapped = memory is not None and within_reach(memory)
            self.way = ray.get(source.call("open_road", self.policy.gpus, mapped))
        sent = source.call("send")
        here = self.thread.submit(self.policy.receive, self.way, node(), lambda: ray.get(sent))
        while not here.done() and not ray.wait([sent], timeout=0.1)[0]:
            pass
        if here.done() and here.exception():
            source.call("close_road")  # or rank 0 would go on sending
        try:
            version: int = ray.get(sent)
        except ray.exceptions.RayTaskError as error:
            raise RoadError(str(error.cause)) from error
        finally:
            wait([here], GRACE)
            if not here.done():
                raise EngineLostError("weights stopped on their way, and what should take them does not answer")
        here.result()
        return version
