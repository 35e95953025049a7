"""The pool and the weights of one update of a finished run, made again.

Logs hold no tokens, but the same seed gives the same run: it is run again up to that update, into a folder that is
thrown away, and every turn that arrives must be the recorded one, in every word, count and batch. Its summed
log-probabilities may differ by TOLERANCE: other processors and builds of torch add up floats in another order.
"""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from divopd import runlog
from divopd.candidates import gate
from divopd.config import LossConfig, RunConfig
from divopd.learner import Learner
from divopd.pool import Pool
from divopd.runlog import RunLogError
from divopd.schema import turn_row
from divopd.selection import Rule
from divopd.train import Progress, Trainer
from divopd.types import DropReason, Turn

# nats a scored token, of ten tokens at least; measured between two machines and torch builds: 2e-5 a turn at most, over
# 25,000 turns of seven runs, up to the last update (docs/audit.md)
TOLERANCE = 1e-5
_SUMS = ("disagreement", "student_nll", "teacher_nll")
_NOT_THE_GATE = (DropReason.STALE, DropReason.EXPIRED, DropReason.UNREAD)


@dataclass(frozen=True, slots=True, eq=False)
class Moment:
    """Update q of a run, just before its batch is chosen."""

    config: RunConfig
    update: int
    turns: list[Turn]  # what DivOPD's read offers, in arrival order, and the dead rows that its gate discards from it
    learner: Learner  # weights of version q
    run: Trainer  # all else that the run is made of
    seen: list[Turn]  # every student turn that had arrived, in arrival order


class _Reached(Exception):
    """Not an error: the update that was asked for is about to be trained."""


class _PoolAt(Pool):
    """A pool that remembers all arrivals, and what waited just before the draw of one update."""

    def __init__(self, like: Pool, update: int) -> None:
        super().__init__(like.batch_rows, like.pool_factor, like.max_staleness, like.retention)
        self.at = update
        self.seen: list[Turn] = []
        self.before = Pool(like.batch_rows, like.pool_factor, like.max_staleness, like.retention)

    def put(self, turns: Iterable[Turn], time: float) -> None:
        turns = list(turns)
        super().put(turns, time)
        self.seen += turns

    def draw(self, update: int, rule: Rule | type[Rule]) -> list[Turn]:
        if update == self.at:  # in one copy, so that turns of a rollout go on sharing their tokens
            self.before._pending, self.before._queue = copy.deepcopy((self._pending, self._queue))
        return super().draw(update, rule)


class _Rerun(Trainer):
    """The run again, up to the update at which it is to be looked at."""

    def __init__(self, config: RunConfig, folder: Path, update: int) -> None:
        super().__init__(config, folder)
        self.at = update
        self.pipeline.pool = self.tap = _PoolAt(self.pipeline.pool, update)

    def _learn(self, turns: Sequence[Any], version: int, weights: np.ndarray | None = None) -> dict[str, float]:
        if version == self.at:
            raise _Reached
        return super()._learn(turns, version, weights)

    def _save(self, version: int, explorer_step: int, time: float) -> None:
        """No checkpoints: nothing is evaluated."""


def rebuild(run_dir: Path, update: int, progress: Progress) -> Moment:
    """The pool of update `update` and the learner's weights at it.

    Raises RunLogError, in one line, where the run is unfinished, of another code or another loss than the paper's,
    lacks that update, or where what is rebuilt differs from turns.parquet by more than TOLERANCE allows.
    """
    config = runlog.read_config(run_dir)
    if config.method.loss != LossConfig():  # s(u) and the row gradients are those of the paper's loss
        loss = f"{config.method.loss.name}, {config.method.loss.reduction}"
        raise RunLogError(f"{run_dir} was trained on another loss ({loss}); audit a run of the paper's loss")
    done = int(runlog.read_json(run_dir, "status.json")["updates"])
    if not done:
        raise RunLogError(f"{run_dir} diverged at its first update: there is no batch to audit")
    if not 0 <= update < done:
        raise RunLogError(f"{run_dir} has no update {update}: choose --update from 0 to {done - 1}")
    runlog.require_same(run_dir, config, "restore what the run was made with, or train it again")
    recorded = runlog.read_table(run_dir, "turns").to_pylist()
    with tempfile.TemporaryDirectory() as folder:
        run = _Rerun(config, Path(folder), update)
        try:
            run.run(lambda version, _, words: progress(version, update, words))
        except _Reached:
            pass
        else:
            raise RunLogError(f"{run_dir}: made again, the run ends before update {update}; {_ELSEWHERE}")
    _check(run_dir, recorded, [turn_row(turn, run.pipeline.task_of[turn.rollout]) for turn in run.tap.seen], update)
    turns = _offered(run.tap.before, update)
    if not any(gate(turn) is None for turn in turns):
        raise RunLogError(f"{run_dir}: no turn that can train was queued at update {update}; choose another --update")
    return Moment(config, update, turns, run.learner, run, run.tap.seen)


def _offered(pool: Pool, update: int) -> list[Turn]:
    """What a gated rule's read of c * B takes out of the pool, dead rows put back, in arrival order."""
    waiting = [turn for turn, _ in chain(pool._pending, pool._queue)]
    kept = pool.draw(update, Rule)
    refused = [turn for turn in waiting if turn.dropped is not None and turn.dropped not in _NOT_THE_GATE]
    for turn in refused:
        turn.first_seen = update  # as an ungated read would have stamped them
    return sorted([*kept, *refused], key=lambda turn: turn.arrival)


_ELSEWHERE = "the run was made on another machine or by other code: train it again here"


def _check(run_dir: Path, recorded: list[dict[str, Any]], rebuilt: list[dict[str, Any]], update: int) -> None:
    """Raise RunLogError at the first turn that is not as recorded, as far as its life had come at `update`."""
    by_arrival = {row["arrival"]: row for row in recorded if row["arrival"] >= 0}
    for row in rebuilt:
        have = by_arrival.get(row["arrival"])
        wrong = "missing" if have is None else _difference(_until(have, update), row)
        if wrong:
            where = f"{run_dir}/turns.parquet: turn with arrival {row['arrival']}"
            raise RunLogError(f"{where} cannot be made again ({wrong}); {_ELSEWHERE}")


def _until(row: dict[str, Any], update: int) -> dict[str, Any]:
    """A logged turn as it stood once the batch of `update` had been chosen."""
    out = dict(row)
    for name in ("first_seen", "selected_at", "dropped_at"):
        if out[name] > update:
            out[name] = -1
    if out["dropped_at"] < 0:
        out["dropped"] = None
    return out


def _difference(recorded: dict[str, Any], rebuilt: dict[str, Any]) -> str:
    near = TOLERANCE * max(10, recorded["valid_tokens"])
    for name, value in recorded.items():
        now = rebuilt[name]
        known = value is not None and now is not None
        if now != value and not (name in _SUMS and known and abs(now - value) <= near):
            return f"{name} {value} recorded, {now} now"
    return ""
