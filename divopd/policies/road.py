"""A road for weights from one process into another's memory: GPU to GPU (NCCL), from host to host (Gloo), or, on one
host, through memory that both have mapped.

Who gives them keeps them on a `Stage`, as they were published last; who takes them may be a worker of vLLM. Between the
two lies a `Road`, a process group of their own beside any that they are in. The group is PyTorch's, so that a CPU takes
the same way as a GPU.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from .base import PolicyError
from .stage import Layout, mapped

CONNECT = 10.0  # seconds to reach rank 0, which listens before anybody is told of it
PATIENCE = 120.0  # seconds for the other side to come, to take or give one piece, and to load what it has mapped
BLOCKING = "TORCH_NCCL_BLOCKING_WAIT"
_making = threading.Lock()


class RoadError(PolicyError):
    """The weights did not arrive: the other side is gone, or nothing came from it. The road is of no more use."""


@dataclass(frozen=True, slots=True)
class Way:
    """What the takers of one road must know. Who gives has rank 0, they have the ranks from 1 on."""

    address: str  # host:port
    size: int  # ranks
    backend: str  # "nccl" or "gloo"
    layout: Layout
    memory: tuple[str, str] | None = None  # of the stage, where takers have mapped it: only word of it travels


class Road:
    """One end of a road. Calls block. They are `RoadError`s where the process at the other end dies (with Gloo at once)
    or nothing moves for `PATIENCE` seconds; NCCL's also where somebody calls `close`.

    `here`: this node's address, by which the others reach it. `store`: rank 0's, from `host`.
    """

    def __init__(self, way: Way, rank: int, here: str, device: torch.device, store: Any = None) -> None:
        self.way, self.rank, self.device = way, rank, device
        host, port = way.address.rsplit(":", 1)
        patience = timedelta(seconds=PATIENCE)
        self._group: Any = None
        self._word = torch.zeros(1, dtype=torch.uint8)
        self._mapped: list[Tensor] = []
        try:
            self._store = store or dist.TCPStore(host, int(port), is_master=False, timeout=timedelta(seconds=CONNECT))
            self._store.set_timeout(patience)
            self._group = _group(self._store, rank, way.size, way.backend, here, patience)
            if way.backend == "nccl":  # which connects in the first call: nobody is to be in it alone
                if rank:
                    self._store.set(f"rank {rank}", "there")
                else:
                    self._store.wait([f"rank {i}" for i in range(1, way.size)], patience)
                self._move(self._word.to(device))
        except RuntimeError as error:  # DistNetworkError and others are
            raise RoadError(f"no road for weights to {way.address}: {_line(error)}") from error
        # the learner computes meanwhile; an engine stands still, and what it copies out of a piece must come first
        beside = device.type == "cuda" and not rank
        self._stream: Any = torch.cuda.stream(torch.cuda.Stream(device)) if beside else nullcontext()

    def give(self, pieces: Iterable[Tensor]) -> None:
        """Send all pieces to every taker; mapped ones when they say that they have loaded them."""
        if self.way.memory:
            self._move(self._word)
            for taker in range(1, self.way.size):
                self._run("recv", [self._word], taker, 0)
            return
        with self._stream:
            for piece in pieces:
                self._move(piece.to(self.device, non_blocking=True))

    def take(self) -> Iterator[tuple[str, Tensor]]:
        """The tensors, one after another as they come. They are the caller's until `done`."""
        if self.way.memory:
            self._move(self._word)
            try:
                self._mapped = self._mapped or mapped(self.way.memory[0], self.way.layout)
            except OSError as error:
                raise RoadError(f"weights of another process cannot be mapped: {error}") from error
        for number, piece in enumerate(self.way.layout):
            if self.way.memory:
                memory = self._mapped[number]
            else:
                memory = torch.empty(piece.size, dtype=torch.uint8, device=self.device)
                self._move(memory)
            for item in piece.items:
                yield item.name, item.view(memory)

    def done(self) -> None:
        """What has been taken is loaded."""
        if self.way.memory:
            self._run("send", [self._word], 0, 0)

    def _move(self, memory: Tensor) -> None:
        """From rank 0 to all others."""
        if self.way.size > 2:
            self._run("broadcast", memory, 0)
        else:  # the same, half as fast again where it is TCP
            self._run(*(("recv", [memory], 0, 0) if self.rank else ("send", [memory], 1, 0)))

    def _run(self, call: str, *args: Any) -> None:
        if (group := self._group) is None:
            raise RoadError("the road for weights is closed")
        try:
            getattr(group, call)(*args).wait(timedelta(seconds=PATIENCE))
            if self.way.backend == "nccl":  # `wait` only puts it in line
                torch.cuda.current_stream(self.device).synchronize()
        except RuntimeError as error:
            self.close()
            raise RoadError(f"weights were lost on the road: {_line(error)}") from error

    def close(self) -> None:
        """Break it off. With NCCL a thread that is on it gets a `RoadError`; with Gloo the other side does."""
        group, self._group = self._group, None  # with which its connections go
        if group is not None:
            group.abort()


class End:
    """Where roads end: keeps the last, along which more may come."""

    def __init__(self) -> None:
        self.road: Road | None = None

    def load(
        self, way: Way, rank: int, here: str, device: torch.device, into: Callable[[Iterator[tuple[str, Tensor]]], None]
    ) -> None:
        """`into` loads the tensors that come, for which a GPU is used if the way needs it. Its errors break it off."""
        try:
            if self.road is None or self.road.way.address != way.address:
                self.close()
                self.road = Road(way, rank, here, device if way.backend == "nccl" else torch.device("cpu"))
            into(self.road.take())
            self.road.done()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        if self.road is not None:
            self.road.close()
        self.road = None


def _group(store: Any, rank: int, size: int, backend: str, here: str, patience: timedelta) -> Any:
    if backend == "nccl":
        # read where a group is made: calls that take too long raise where they wait, and do not end the whole process
        with _making:
            before = os.environ.get(BLOCKING)
            os.environ[BLOCKING] = "1"
            try:
                return dist.ProcessGroupNCCL(store, rank, size, dist.ProcessGroupNCCL.Options())
            finally:
                del os.environ[BLOCKING]
                if before is not None:
                    os.environ[BLOCKING] = before
    gloo: Any = dist.ProcessGroupGloo  # more than its stub says
    options, named = gloo._Options(), "GLOO_SOCKET_IFNAME" in os.environ
    options._devices = [gloo.create_default_device() if named else gloo.create_device(hostname=here)]
    options._timeout = patience
    return gloo(store, rank, size, options)


def host(here: str) -> Any:
    """Where the ranks of a road meet: PyTorch's store, on a free port of this node."""
    return dist.TCPStore(here, 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=PATIENCE))


def gpu_of(device: torch.device) -> str | None:
    """A GPU's UUID; None: a CPU."""
    return str(torch.cuda.get_device_properties(device).uuid) if device.type == "cuda" else None


def backend_for(mine: str | None, theirs: list[str | None]) -> str:
    """nccl where each rank has a GPU of its own, else gloo. GPUs by UUID; None: a CPU."""
    gpus = [mine, *theirs]
    return "nccl" if None not in gpus and len(set(gpus)) == len(gpus) else "gloo"


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__
