"""The arrival stream of a finished run, from its turns.parquet and updates.parquet.

Replay does not change what was generated: another rule would have trained another student, whose rollouts nobody has.
Arrivals keep their recorded times and contents. What is replayed is the queue: every turn is stamped with the number of
updates that the *replayed* learner had published when the turn's explorer step started, so that its age means what it
means in a run. For the run's own rule this is the recorded version.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from divopd import runlog
from divopd.files import RunLogError
from divopd.replay.engine import Outcome
from divopd.replay.source import COLUMNS, Arrival, Rows, turns_of
from divopd.types import DropReason

_GATE = [reason.value for reason in list(DropReason)[: list(DropReason).index(DropReason.STALE)]]


class Recorded:
    """A run's arrivals. Raises RunLogError for a log that is missing, corrupt, unfinished or of another schema.

    Arrival times, and the learner's step from the run's cost model and the replayed batch's own tokens. At equal times
    arrivals go before publications.
    """

    explorers = 0

    def __init__(self, run_dir: Path) -> None:
        runlog.read_json(run_dir, "status.json")  # an unfinished run has not logged the turns that still wait
        self.config = runlog.read_config(run_dir)
        self.run_dir, self.name = run_dir, run_dir.as_posix()
        self.train, self.pipeline, self.seed = self.config.train, self.config.pipeline, self.config.seed
        turns = runlog.read_table(run_dir, "turns").to_pandas()
        turns = turns[turns["actor"] == "student"].sort_values("arrival", ignore_index=True)
        if not (turns["arrival"] == np.arange(len(turns))).all():
            raise RunLogError(f"{run_dir / 'turns.parquet'} lacks arrivals; delete {run_dir} and run this cell again")
        if turns.empty:
            raise RunLogError(f"{run_dir / 'turns.parquet'} holds no student turn, so there is nothing to replay")
        self.turns, self.updates = turns, runlog.read_table(run_dir, "updates").to_pandas()
        if self.updates.empty:
            raise RunLogError(f"{run_dir} diverged at its first update, so there is none to replay")
        self.rows = Rows()
        self.rows.add(_columns(turns))
        self._played_at = self._starts()

    def recorded(self) -> Sequence[tuple[float, Arrival]]:
        ids = self.turns[["explorer_batch", "task_index", "run"]].to_numpy()
        first = np.flatnonzero(np.r_[True, (np.diff(ids, axis=0) != 0).any(axis=1)]).tolist()
        times, played_at = self.turns["arrival_time"].tolist(), self._played_at.tolist()
        out: list[tuple[float, Arrival]] = []
        step = None
        for a, b in zip(first, [*first[1:], len(ids)], strict=True):
            turns = turns_of(self.rows, range(a, b))
            if self.pipeline.arrives == "step" and ids[a, 0] == step:
                out[-1][1].rollouts.append(turns)
            else:
                out.append((times[a], Arrival([turns], played_at[a])))
            step = ids[a, 0]
        return out

    def explore(self, step: int, version: int, now: float) -> tuple[Sequence[tuple[float, Arrival]], float]:
        raise AssertionError("a recorded stream explores nothing")

    def _starts(self) -> np.ndarray:
        """(n,) virtual seconds at which each turn's explorer step started.

        An explorer starts its next step when its slowest rollout has arrived: with every step's end known, the starts
        are the ends in turn. They are then kept inside the time in which the recorded version was the published one.
        """
        turns = self.turns
        ends = turns.groupby("explorer_batch")["arrival_time"].max()
        free = [0.0] * self.pipeline.steps_in_flight
        starts = {}
        for batch in range(int(ends.index.max()) + 1):
            starts[batch] = heapq.heappop(free) if free else 0.0
            heapq.heappush(free, ends.get(batch, starts[batch]))
        start = turns["explorer_batch"].map(starts).to_numpy(dtype=float)
        published = np.r_[0.0, self.updates["time_end"].to_numpy(), np.inf]
        version = np.minimum(turns["version"].to_numpy(), len(published) - 2)
        return np.clip(start, published[version], np.nextafter(published[version + 1], -np.inf))


def _columns(turns: pd.DataFrame) -> dict[str, np.ndarray]:
    """A log's rows as the gate and `Candidates` see them: invalid turns without scores, each with its reason."""
    block: dict[str, np.ndarray] = {}
    scored = (turns["valid_tokens"] > 0) & turns["disagreement"].notna() & ~turns["prompt_truncated"]
    valid = scored.to_numpy(dtype=bool)
    for name, kind in COLUMNS.items():
        if name not in ("valid", "reason"):
            block[name] = turns[name].to_numpy(dtype=kind)
    for name in ("disagreement", "student_nll", "teacher_nll"):
        block[name] = np.where(valid, block[name], np.nan)
    block["valid_tokens"] = np.where(valid, block["valid_tokens"], 0)
    reason = np.full(len(turns), "", dtype=object)
    reason[~valid] = DropReason.NO_VALID_TOKEN.value
    reason[~valid & (block["valid_tokens"] == 0) & (turns["valid_tokens"] > 0)] = DropReason.NON_FINITE.value
    reason[~valid & (block["response_tokens"] <= 0)] = DropReason.NO_TOKENS.value
    reason[~valid & turns["prompt_truncated"].to_numpy(dtype=bool)] = DropReason.PROMPT_TRUNCATED.value
    known = turns["dropped"].isin(_GATE).to_numpy() & ~valid  # the log of a gated rule says it itself
    reason[known] = turns["dropped"].to_numpy()[known]
    return block | {
        "rollout": turns[["explorer_batch", "task_index", "run"]].to_numpy(dtype=np.int64),
        "valid": valid,
        "reason": reason,
    }


def batches_match(source: Recorded, outcome: Outcome) -> int:
    """How many of the run's updates trained on exactly the turns that the replay selected for them."""
    logged: dict[int, set[int]] = {}
    for update, arrival in source.turns.loc[source.turns["selected_at"] >= 0, ["selected_at", "arrival"]].to_numpy():
        logged.setdefault(int(update), set()).add(int(arrival))
    return sum(set(batch) == logged.get(q) for q, batch in enumerate(outcome.batches))
