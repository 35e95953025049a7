"""Whole weights that lie ready for others: as bytes, in pieces, and in memory that other processes can map."""

from __future__ import annotations

import mmap
import os
import secrets
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass

import torch
from torch import Tensor

PIECE = 128 * 2**20  # bytes that travel together, unless one tensor alone is larger
ALIGNED = 16  # bytes; tensors of any type may begin there


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


@dataclass(frozen=True, slots=True)
class Piece:
    """Tensors that travel together."""

    at: int  # byte of the giver's memory
    size: int  # bytes
    items: list[Item]


Layout = list[Piece]


class Stage:
    """Whole weights in pieces, for others to take at any time: in memory that they can map, where the system has such.

    Beside a GPU it is pinned, for the copies from and to it.
    """

    def __init__(self) -> None:
        self.layout: Layout = []
        self.pieces: list[Tensor] = []
        self._name, self._file = f"divopd-{secrets.token_hex(8)}", -1
        if hasattr(os, "memfd_create"):
            self._file = os.memfd_create(self._name)

    def __del__(self) -> None:
        if self._file >= 0:
            os.close(self._file)

    @property
    def memory(self) -> tuple[str, str] | None:
        """Where processes of this host can open it, and the name by which they know it."""
        return (f"/proc/{os.getpid()}/fd/{self._file}", self._name) if self._file >= 0 else None

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
            at = self.layout[-1].at + -(-self.layout[-1].size // mmap.PAGESIZE) * mmap.PAGESIZE if self.layout else 0
            self.layout.append(Piece(at, max(end, ALIGNED), items))  # nothing of no size can be mapped
            self.pieces.append(self._allocate(self.layout[-1]))
        for item, (name, tensor) in zip(self.layout[number].items, group, strict=True):
            if (name, tuple(tensor.shape)) != (item.name, item.shape):
                raise ValueError(f"{name} {tuple(tensor.shape)} where {item.name} {item.shape} was")
            item.view(self.pieces[number]).copy_(tensor, non_blocking=True)

    def _allocate(self, piece: Piece) -> Tensor:
        if self._file < 0:
            return torch.empty(piece.size, dtype=torch.uint8, pin_memory=torch.cuda.is_available())
        os.ftruncate(self._file, piece.at + piece.size)
        memory = torch.frombuffer(mmap.mmap(self._file, piece.size, offset=piece.at), dtype=torch.uint8)
        if torch.cuda.is_available():  # unpinned it is slower, no more
            refused = torch.cuda.cudart().cudaHostRegister(memory.data_ptr(), piece.size, 0)
            with suppress(RuntimeError):  # CUDA says it again at the next call, which is to be this one
                if int(refused):
                    torch.zeros(1, device="cuda")
        return memory

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """What is there, by name, in the stage's own memory."""
        for piece, memory in zip(self.layout, self.pieces, strict=True):
            for item in piece.items:
                yield item.name, item.view(memory)


def shapes(layout: Layout) -> Mapping[str, tuple[int, ...]]:
    return {item.name: item.shape for piece in layout for item in piece.items}


def within_reach(memory: tuple[str, str]) -> bool:
    """Whether this process can map a stage's memory: it is on this host, and this user's."""
    path, name = memory
    try:
        return name in os.readlink(path) and os.access(path, os.R_OK)
    except OSError:
        return False


def mapped(path: str, layout: Layout) -> list[Tensor]:
    """The pieces of another process's stage, for reading alone. Raises OSError."""
    with open(path, "rb") as file, warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # which says that it cannot be written
        end = layout[-1].at + layout[-1].size
        whole = torch.frombuffer(mmap.mmap(file.fileno(), end, access=mmap.ACCESS_READ), dtype=torch.uint8)
    return [whole[piece.at : piece.at + piece.size] for piece in layout]
