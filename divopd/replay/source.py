"""Where a replay's turns come from: columns of turns, and the order in which their rollouts arrive."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from divopd.config import PipelineConfig, TrainConfig
from divopd.types import Actor, DropReason, RolloutId, Turn

# what a rule may read of a turn and its rollout, but for what the queue decides (arrival, first_seen, version)
COLUMNS: dict[str, Any] = {
    "turn": np.int64, "prompt_tokens": np.int64, "response_tokens": np.int64, "valid_tokens": np.int64,
    "disagreement": np.float64, "student_nll": np.float64, "teacher_nll": np.float64, "reward": np.float64,
    "success": np.bool_, "rollout_turns": np.int64, "valid": np.bool_, "reason": object,
}  # fmt: skip


class ReplayError(ValueError):
    """A stream or a run that cannot be replayed. One line, for the user to read."""


class Rows:
    """Turns as columns, one row a turn, in blocks that are added one after the other.

    `columns` holds (n,) arrays by the names of COLUMNS and `rollout`, (n, 3) int64. `reason` is the gate's DropReason
    of an invalid turn, else "".
    """

    def __init__(self) -> None:
        self._space: dict[str, np.ndarray] = {name: np.empty(0, dtype=kind) for name, kind in COLUMNS.items()}
        self._space["rollout"] = np.empty((0, 3), dtype=np.int64)
        self._used = 0

    def __len__(self) -> int:
        return self._used

    def add(self, block: Mapping[str, np.ndarray]) -> range:
        """Append a block; the row numbers it got."""
        first, last = self._used, self._used + len(block["turn"])
        if last > len(self._space["turn"]):
            for name, old in self._space.items():
                new = np.empty((2 * last, *old.shape[1:]), dtype=old.dtype)
                new[:first] = old[:first]
                self._space[name] = new
        for name, space in self._space.items():
            space[first:last] = block[name]
        self._used = last
        return range(first, last)

    def take(self, rows: Sequence[int] | np.ndarray) -> dict[str, np.ndarray]:
        """The columns of some rows."""
        index = np.asarray(rows, dtype=np.int64)
        return {name: space[index] for name, space in self._space.items()}

    def column(self, name: str) -> np.ndarray:
        """One column of all rows."""
        return self._space[name][: self._used]


_NO_TOKENS = np.empty(0, dtype=np.int64)


class StreamTurn(Turn):
    """A turn in the pool of a replay: what the pool and the cost model need, and the number of its row.

    It has no tokens and no log-probs: rules see the row's columns. `verdict` is what the gate said of it.
    """

    __slots__ = ("row", "verdict")

    def __init__(self, row: int, rollout: RolloutId, index: int, prompt: int, response: int, reason: str) -> None:
        self.row, self.rollout, self.index = row, rollout, index
        self.verdict = DropReason(reason) if reason else None
        self.start, self.end = prompt, prompt + response
        self.context, self.actor = _NO_TOKENS, Actor.STUDENT
        self.version = self.arrival = self.first_seen = self.selected_at = self.dropped_at = -1
        self.arrival_time = 0.0
        self.dropped = None


def turns_of(rows: Rows, which: range) -> list[StreamTurn]:
    """New turns for a slice of the rows."""
    part = slice(which.start, which.stop)
    ids = [tuple(ids) for ids in rows.column("rollout")[part].tolist()]
    names = ("turn", "prompt_tokens", "response_tokens", "reason")
    lists = [rows.column(name)[part].tolist() for name in names]
    return [StreamTurn(*values) for values in zip(which, ids, *lists, strict=True)]


@dataclass(slots=True)
class Arrival:
    """Rollouts on their way to the pool, in order. `version` None: what the replay had published at `played_at`."""

    rollouts: list[list[StreamTurn]]
    played_at: float  # virtual seconds at which its explorer step started
    version: int | None = None


class Source(Protocol):
    """A stream that a replay can run; one that explores serves one replay."""

    name: str
    rows: Rows
    train: TrainConfig
    pipeline: PipelineConfig
    seed: int  # of the run: the rule draws from seed(seed, "rule")
    explorers: int  # explorer steps to start at time 0; 0 where arrivals are known beforehand

    def recorded(self) -> Sequence[tuple[float, Arrival]]:
        """(virtual seconds, arrival) of all arrivals known beforehand, in order."""

    def explore(self, step: int, version: int, now: float) -> tuple[Sequence[tuple[float, Arrival]], float]:
        """An explorer step with the weights published last: its arrivals, and when it ends (virtual seconds)."""
