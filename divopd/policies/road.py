"""A road for weights from one process into another's memory: GPU to GPU (NCCL), or from host to host (Gloo).

Who gives them keeps them on a `Stage`, as they were published last; who takes them may be a worker of vLLM. Between the
two lies a `Road`, a process group of their own beside any that they are in. It carries bytes: the layout, which never
changes, says which tensors they are. Source: this is how trainers feed rollout engines elsewhere too, e.g.
https://docs.vllm.ai/en/latest/training/rlhf/ ; the group is PyTorch's, so that a CPU takes the same way as a GPU.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from .base import PolicyError

PIECE = 64 * 2**20  # bytes that travel together, unless one tensor alone is larger
PATIENCE = 120.0  # seconds for the other side to come, and for one piece
ALIGNED = 16  # bytes; tensors of any type may begin there


class RoadError(PolicyError):
    """The weights did not arrive: the other side is gone, or nothing came from it. The road is of no more use."""


@dataclass(frozen=True, slots=True)
class Item:
    """One tensor: where it lies, and what it is."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int  # byte of its piece

    def view(self, piece: Tensor) -> Tensor:
        """It, in its piece's memory."""
        dtype = getattr(torch, self.dtype)
        size = torch.Size(self.shape).numel() * dtype.itemsize
        return piece[self.begin : self.begin + size].view(dtype).view(self.shape)


Layout = list[tuple[int, list[Item]]]
"""Of each piece: its bytes, and its tensors."""


class Stage:
    """Whole weights in pieces, for others to take at any time; beside a GPU in pinned memory, which it reads best."""

    def __init__(self) -> None:
        self.layout: Layout = []
        self.pieces: list[Tensor] = []

    def fill(self, weights: Iterable[tuple[str, Tensor]], dtype: torch.dtype) -> None:
        """Take the place of what was there. Names, shapes and order are those of the first time; floating-point
        tensors become `dtype`. Holds no more than a piece of what the iterator gives.
        """
        number, group, size = 0, list[tuple[str, Tensor]](), 0
        for name, tensor in weights:
            cast = tensor.detach().to(dtype if tensor.is_floating_point() else tensor.dtype)
            if group and size + cast.nbytes > PIECE:
                self._put(number, group)
                number, group, size = number + 1, [], 0
            group.append((name, cast))
            size += cast.nbytes
        self._put(number, group)
        if torch.cuda.is_available():
            torch.cuda.current_stream().synchronize()

    def _put(self, number: int, group: list[tuple[str, Tensor]]) -> None:
        if number == len(self.pieces):
            items, end = [], 0
            for name, tensor in group:
                items.append(Item(name, str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), end))
                end += -(-tensor.nbytes // ALIGNED) * ALIGNED
            self.layout.append((end, items))
            self.pieces.append(torch.empty(end, dtype=torch.uint8, pin_memory=torch.cuda.is_available()))
        for item, (name, tensor) in zip(self.layout[number][1], group, strict=True):
            if (name, tuple(tensor.shape)) != (item.name, item.shape):
                raise ValueError(f"{name} {tuple(tensor.shape)} where {item.name} {item.shape} was")
            item.view(self.pieces[number]).copy_(tensor, non_blocking=True)

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """What is there, by name, in the stage's own memory."""
        for (_, items), piece in zip(self.layout, self.pieces, strict=True):
            for item in items:
                yield item.name, item.view(piece)


@dataclass(frozen=True, slots=True)
class Way:
    """What the takers of one road must know. Who gives has rank 0, they have the ranks from 1 on."""

    address: str  # host:port
    size: int  # ranks
    backend: str  # "nccl" or "gloo"
    layout: Layout


class Road:
    """One end of a road. Calls block. Where the other side dies they are `RoadError`s: with Gloo at once, or after
    `PATIENCE` seconds in which nothing moves; NCCL notices neither, so that somebody must `close` it.

    `here`: this node's address, by which the others reach it. `store`: rank 0's, from `host`.
    """

    def __init__(self, way: Way, rank: int, here: str, device: torch.device, store: Any = None) -> None:
        self.way, self.rank, self.device = way, rank, device
        host, port = way.address.rsplit(":", 1)
        patience = timedelta(seconds=PATIENCE)
        self._group: Any = None
        try:
            self._store = store or dist.TCPStore(host, int(port), is_master=False, timeout=patience)
            self._group = _group(self._store, rank, way.size, way.backend, here, patience)
        except RuntimeError as error:  # DistNetworkError and others are
            raise RoadError(f"no road for weights to {way.address}: {_line(error)}") from error
        gpu = device.type == "cuda"
        self._stream: Any = torch.cuda.stream(torch.cuda.Stream(device)) if gpu else nullcontext()

    def give(self, pieces: Iterable[Tensor]) -> None:
        """Send all pieces to every taker."""
        with self._stream:
            for piece in pieces:
                self._move(piece.to(self.device, non_blocking=True))

    def take(self) -> Iterator[tuple[str, Tensor]]:
        """The tensors, one after another as they come; each is the caller's to keep."""
        for size, items in self.way.layout:
            piece = torch.empty(size, dtype=torch.uint8, device=self.device)
            with self._stream:
                self._move(piece)
            for item in items:
                yield item.name, item.view(piece)

    def _move(self, piece: Tensor) -> None:
        group = self._group
        try:
            if self.way.size > 2:
                work = group.broadcast(piece, 0)
            else:  # the same, half as fast again where it is TCP
                work = group.recv([piece], 0, 0) if self.rank else group.send([piece], 1, 0)
            work.wait(timedelta(seconds=PATIENCE))
            if piece.is_cuda:  # `wait` only puts it in line
                torch.cuda.current_stream().synchronize()
        except RuntimeError as error:
            self.close()
            raise RoadError(f"weights were lost on the road: {_line(error)}") from error

    def close(self) -> None:
        """Break it off. With NCCL a thread that is on it gets a `RoadError`; with Gloo the other side does."""
        if self._group is not None:
            self._group.abort()


class End:
    """Where roads end: keeps the last, along which more may come."""

    def __init__(self) -> None:
        self.road: Road | None = None

    def take(self, way: Way, rank: int, here: str, device: torch.device) -> Iterator[tuple[str, Tensor]]:
        """See `Road.take`. An iterator that is not run to its end breaks its road off."""
        if self.road is None or self.road.way.address != way.address:
            self.close()
            self.road = Road(way, rank, here, device)
        try:
            yield from self.road.take()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        if self.road is not None:
            self.road.close()
        self.road = None


def _group(store: Any, rank: int, size: int, backend: str, here: str, patience: timedelta) -> Any:
    if backend == "nccl":
        # its watchdog would end the whole process where a call takes too long
        os.environ.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0")
        return dist.ProcessGroupNCCL(store, rank, size, dist.ProcessGroupNCCL.Options())
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


def shapes(layout: Layout) -> Mapping[str, tuple[int, ...]]:
    return {item.name: item.shape for _, items in layout for item in items}


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__
