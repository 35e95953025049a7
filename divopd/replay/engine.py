"""A rule over an arrival stream: the real pool and the real rules, in the order of events of pipeline/virtual.py."""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import pandas as pd

from divopd.analysis.collect import selection_use
from divopd.candidates import Candidates
from divopd.diagnostics import RolloutUse, column_diagnostics, depth_counts
from divopd.pipeline.clock import CostModel
from divopd.pool import Pool
from divopd.replay.source import Arrival, ReplayError, Source, StreamTurn
from divopd.seeds import seed
from divopd.selection import Rule, apply_rule, first_state
from divopd.types import DropReason, Turn

__all__ = ["Outcome", "Replay", "ReplayError"]

USE = ("valid_rollouts", "undecided_rollouts", "never_selected_share", "selected_gini")
BARREN_STEPS = 50  # explorer steps in a row without an update, after which a closed stream is given up
MEANS = ("rollouts", "effective_rollouts", "top_rollout_token_share", "turns_per_rollout", "dead_row_share",
         "kl_per_token", "mean_age", "row_tokens", "learner_seconds", "read_wait", "queue_length")  # fmt: skip


class _Pool(Pool):
    """The pool, told the gate's verdicts: a stream knows them, and holds no log-probs to reach them from."""

    def put(self, turns: Iterable[Turn], time: float) -> None:
        for turn in turns:
            turn.arrival, turn.arrival_time = self._arrived, time
            self._arrived += 1
            self._turns.append(turn)
            self._queue.append((turn, cast(StreamTurn, turn).verdict))


@dataclass
class Outcome:
    """What a rule did with a stream.

    `updates`: a row an update, columns as in updates.parquet plus RolloutUse's. `turns`: a row an arrived turn in
    arrival order, columns as in turns.parquet, `version` as the replay's clock has it. `batches`: arrival numbers in
    the order in which the rule chose them.
    """

    stream: str
    rule: str
    seed: int
    updates: pd.DataFrame
    turns: pd.DataFrame
    batches: list[list[int]]

    def use(self, updates: int) -> dict[str, float]:
        """Never-selected share and Gini as they stood after so many updates, or at the end where there were fewer."""
        if updates >= len(self.updates):
            return selection_use(self.turns)
        return {name: float(self.updates[name].iloc[updates - 1]) for name in USE}

    def summary(self) -> dict[str, Any]:
        """One row: the averages over updates that `divopd report` takes of a run, and totals."""
        u, t = self.updates, self.turns
        if not len(u):
            raise ReplayError(f"{self.stream}, rule {self.rule}: the stream ended before a batch was full")
        last = u.iloc[-1]
        trained = int(u["valid_tokens"].sum())
        scored = int(t["valid_tokens"].sum())
        return {
            "stream": self.stream,
            "rule": self.rule,
            "seed": self.seed,
            "updates": len(u),
            **selection_use(t),
            **{name: float(u[name].mean()) for name in MEANS},
            "load": last["arrival_rate"] / last["drain_rate"],
            "arrived_turns": len(t),
            "arrived_over_trained": len(t) / int(u["rows"].sum()),
            "dead_rows": int(round((u["dead_row_share"] * u["rows"]).sum())),
            "stale_rows": int(last["stale_rows"]),
            "teacher_tokens_per_trained_token": scored / trained if trained else float("nan"),
            "virtual_seconds": float(last["time_end"]),
        }

    def depths(self) -> pd.DataFrame:
        """Selected turns by depth and outcome: counts, and percent of all selected."""
        chosen = self.turns[self.turns["selected_at"] >= 0]
        counts = depth_counts(chosen["turn"].to_numpy(), chosen["success"].to_numpy())
        rows = [
            {"stream": self.stream, "rule": self.rule, "seed": self.seed, "depth": depth, "outcome": outcome,
             "selected": n, "percent": 100 * n / max(len(chosen), 1)}
            for (depth, outcome), n in counts.items()
        ]  # fmt: skip
        return pd.DataFrame(rows)


@dataclass(order=True, slots=True)
class _Event:
    time: float
    order: int  # ties go to what was scheduled first: recorded arrivals before anything else
    kind: str = field(compare=False)
    load: Any = field(compare=False, default=None)


class Replay:
    """One rule over one stream. The learner starts an update when the pool is ready and it is idle, as in a run."""

    def __init__(self, source: Source, rule: Rule, updates: int, label: str = "") -> None:
        train = source.train
        self.source, self.rule, self.wanted = source, rule, updates
        self.label = label or rule.name
        self.pool = _Pool(train.batch_rows, train.pool_factor, train.max_staleness, train.retention)
        self.costs = CostModel(source.pipeline)
        self.use = RolloutUse()
        self.published: list[float] = []  # virtual seconds of each
        self.rows: list[dict[str, Any]] = []
        self.batches: list[list[int]] = []
        self._rule_seed, self._rule_state = seed(source.seed, "rule"), first_state(rule)
        self._events: list[_Event] = []
        self._scheduled = self._steps = self._barren = 0
        self._now = self._idle_since = self._busy_seconds = 0.0
        self._drained = 0
        self._busy = False
        self._waiting = 0  # explorers that wait for the weights of the update under way

    def run(self) -> Outcome:
        """Until the wanted number of updates is published, or a recorded stream has ended."""
        for time, arrival in self.source.recorded():
            self._schedule(time, "arrive", arrival)
        for _ in range(self.source.explorers):
            self._schedule(0.0, "explore")
        while self._events and len(self.published) < self.wanted:
            event = heapq.heappop(self._events)
            self._now = event.time
            if event.kind == "publish":
                self._publish(event.load)
            elif event.kind == "explore" and self.source.pipeline.sync == "wait" and self._busy:
                self._waiting += 1
            elif event.kind == "explore":
                self._explore()
            else:
                self._arrive(event.load)
            self._learn()
        self.pool.finish(len(self.published))
        return Outcome(
            self.source.name, self.label, self.source.seed, pd.DataFrame(self.rows), self._turns(), self.batches
        )

    def _schedule(self, time: float, kind: str, load: Any = None) -> None:
        heapq.heappush(self._events, _Event(time, self._scheduled, kind, load))
        self._scheduled += 1

    def _explore(self) -> None:
        self._barren += 1
        if self._barren > BARREN_STEPS:
            raise ReplayError(
                f"{self.source.name}, rule {self.label}: {BARREN_STEPS} explorer steps without an update; "
                "check the stream's prompt limit, dead_share and batch_rows"
            )
        arrivals, end = self.source.explore(self._steps, len(self.published), self._now)
        self._steps += 1
        for time, arrival in arrivals:
            self._schedule(time, "arrive", arrival)
        self._schedule(end, "explore")

    def _arrive(self, arrival: Arrival) -> None:
        version = arrival.version
        if version is None:
            version = bisect_right(self.published, arrival.played_at)
        for turns in arrival.rollouts:
            for turn in turns:
                turn.version = version
            self.pool.put(turns, self._now)
            self.use.arrive(turns, any(turn.verdict is None for turn in turns))

    def _columns(self, turns: Sequence[StreamTurn], update: int) -> Candidates:
        queue = {name: [getattr(turn, name) for turn in turns] for name in ("version", "first_seen", "arrival")}
        return Candidates.from_columns(self.source.rows.take([turn.row for turn in turns]) | queue, update)

    def _learn(self) -> None:
        q = len(self.rows)
        if self._busy or q >= self.wanted or not self.pool.ready(q, self.rule):
            return
        offered = self.pool.draw(q, self.rule)
        candidates = self._columns(cast(list[StreamTurn], offered), q)
        chosen = apply_rule(self.rule, candidates, self.pool.batch_rows, self._rule_seed, self._rule_state)
        self._rule_state = chosen.state
        batch = self.pool.settle(offered, chosen.rows, q)
        seconds = self.costs.update(batch)
        row = {
            "update": q,
            "time_start": self._now,
            "time_end": self._now + seconds,
            "read_wait": self._now - self._idle_since,
            "learner_seconds": seconds,
            "stale_rows": self.pool.discards[DropReason.STALE],
            "queue_length": self.pool.queued + self.pool.pending,
            **column_diagnostics(self._columns(cast(list[StreamTurn], batch), q)),
            **self.use.row(),
        }
        self.batches.append([turn.arrival for turn in batch])
        self.rows.append(row)
        self._drained += len(batch)
        self._busy_seconds += seconds
        self._busy, self._barren = True, 0
        self._schedule(self._now + seconds, "publish", row)

    def _publish(self, row: dict[str, Any]) -> None:
        self.published.append(self._now)
        self._busy = False
        self._idle_since = self._now
        row["arrived_turns"] = self.pool.arrived
        row["arrival_rate"] = self.pool.arrived / self._now
        row["drain_rate"] = self._drained / self._busy_seconds
        waiting, self._waiting = self._waiting, 0
        for _ in range(waiting):
            self._explore()

    def _turns(self) -> pd.DataFrame:
        turns = cast(list[StreamTurn], self.pool.all_turns)
        columns = self.source.rows.take([turn.row for turn in turns])
        rollout = columns.pop("rollout")
        columns |= dict(zip(("explorer_batch", "task_index", "run"), rollout.T, strict=True))
        for name in ("version", "arrival", "arrival_time", "first_seen", "selected_at", "dropped_at"):
            columns[name] = np.array([getattr(turn, name) for turn in turns])
        columns["dropped"] = np.array([str(turn.dropped) if turn.dropped else None for turn in turns], dtype=object)
        columns["prompt_truncated"] = columns["reason"] == DropReason.PROMPT_TRUNCATED.value
        return pd.DataFrame(columns)
