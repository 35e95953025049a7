"""Explorers, teacher and learner on a deterministic discrete-event clock, in one process.

Update q occupies [T_q, T_q+1) of virtual time. An explorer step plays its tasks with the weights published last when it
starts; each rollout joins the pool when it has ended and been scored, all its turns together; the explorer's next step
starts when the slowest rollout has ended. Everything between two events is computed as one real batch, so the clock
costs nothing and the same seed gives the same events.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from ..candidates import gate
from ..config import RunConfig
from ..diagnostics import RolloutUse, batch_diagnostics
from ..pool import Pool
from ..rollouts import Direction, Moment, RolloutPolicy
from ..rollouts.student import Student
from ..seeds import rng, seed
from ..selection import Candidates, Rule, apply_rule
from ..timing import Stopwatch
from ..types import Actor, DropReason, Rollout, RolloutId, Turn
from .clock import CostModel

Task = tuple[RolloutId, str, np.random.Generator]
BARREN_STEPS = 50


class StarvedError(RuntimeError):
    """Explorers bring nothing that the learner can train on: without this, the clock would run for ever."""


@dataclass(slots=True)
class Workers:
    """What the pipeline drives; it knows none of their insides.

    `explore(tasks, version, direction)` plays with the weights published last, as the rollout policy directs, and has
    the teacher score: rollouts, tokens scored. `learn(turns, version)` makes one optimizer step: statistics; where the
    rule weighs rows, their weights (n,) come third. `publish()` hands the learner's weights to the explorers.
    `save(version, explorer_step, time)` keeps a checkpoint of the published weights for evaluation.
    """

    explore: Callable[[Sequence[Task], int, Direction], tuple[list[Rollout], int]]
    learn: Callable[..., dict[str, float]]
    publish: Callable[[], None]
    save: Callable[[int, int, float], None]


@dataclass(order=True, slots=True)
class _Event:
    time: float
    order: int  # ties go to what was scheduled first
    kind: str = field(compare=False)
    load: Any = field(compare=False, default=None)


class VirtualPipeline:
    """State of one run. Picklable between events, except for the workers, which `run` is given."""

    def __init__(
        self, config: RunConfig, rule: Rule, tasks: Sequence[str], policy: RolloutPolicy | None = None
    ) -> None:
        train = config.train
        self.config = config
        self.rule = rule
        self.rule_state = rule.initial_state()
        self.policy = policy or Student()
        self.policy_state = self.policy.initial_state()
        self.horizon = config.env.max_turns  # of the last explorer step, in turns
        self.tasks = list(tasks)
        self.pool = Pool(train.batch_rows, train.pool_factor, train.max_staleness, train.retention)
        self.costs = CostModel(config.pipeline)
        self.update = 0  # updates done or under way
        self.version = 0  # weights published last
        self.now = 0.0
        self.steps = 0  # explorer steps started
        self.use = RolloutUse()
        self.task_of: dict[RolloutId, str] = {}
        self.teacher_turns: list[Turn] = []  # arrived, and not yet taken for the log
        self.totals = {"explorer_seconds": 0.0, "teacher_seconds": 0.0, "busy": 0.0, "teacher_tokens": 0, "drained": 0,
                       "takeovers": 0, "teacher_turns": 0, "teacher_generated_tokens": 0,
                       "teacher_generation_seconds": 0.0}  # fmt: skip
        self._events: list[_Event] = []
        self._scheduled = 0
        self._learner_busy = False
        self._idle_since = 0.0
        self._barren = 0  # explorer steps since one brought a turn that passes the gate
        self._refused: Counter[str] = Counter()  # the gate's reasons in those steps
        for _ in range(config.pipeline.explorers):
            self._schedule(0.0, "explore")

    @property
    def finished(self) -> bool:
        return self.version >= self.config.train.updates

    def _schedule(self, time: float, kind: str, load: Any = None) -> None:
        heapq.heappush(self._events, _Event(time, self._scheduled, kind, load))
        self._scheduled += 1

    def run(self, workers: Workers, record: Callable[[dict[str, Any]], None], watch: Stopwatch) -> None:
        """Go on to the next published version, which is where a run may be interrupted; `record` gets its row."""
        with watch("clock"):
            if self.version == 0 and self.steps == 0:
                self._evaluate_updates(workers)
            while self._events:
                event = heapq.heappop(self._events)
                self.now = event.time
                if event.kind == "publish":
                    self._publish(event.load, workers, record)
                    return
                if event.kind == "explore":
                    self._explore(workers, event.load)
                elif event.kind == "arrive":
                    self._arrive(event.load)
                self._learn(workers)

    # explorers -------------------------------------------------------------------------------------------------------

    def _next_tasks(self) -> list[Task]:
        """The next tasks in an order drawn anew for every pass over the training tasks."""
        pipeline, run_seed = self.config.pipeline, self.config.seed
        out: list[Task] = []
        for position in range(pipeline.tasks_per_step):
            index = self.steps * pipeline.tasks_per_step + position
            order = rng(run_seed, "tasks", index // len(self.tasks)).permutation(len(self.tasks))
            task = self.tasks[int(order[index % len(self.tasks)])]
            for run in range(pipeline.runs_per_task):
                name = (self.steps, position, run)
                out.append((name, task, rng(run_seed, "sample", *name)))
        return out

    def _explore(self, workers: Workers, ended: tuple[Sequence[Rollout], Moment] | None) -> None:
        """Start an explorer's next step; `ended` is the step that it played before."""
        evaluation = self.config.evaluation
        if evaluation.every_updates is None and self.steps % evaluation.every_explorer_steps == 0:
            workers.save(self.version, self.steps, self.now)
        if ended is not None:
            self.policy_state = self.policy.observe(*ended, self.policy_state)
        config = self.config
        moment = Moment(self.steps, self.version, config.train.updates, config.env.max_turns, config.seed)
        self.horizon = self.policy.depth(moment, self.policy_state)
        direction = Direction(self.policy, moment, self.policy_state)
        rollouts, scored = workers.explore(self._next_tasks(), self.version, direction)
        if self.steps == 0 and config.pipeline.load is not None:
            plain = rollouts
            if not isinstance(self.policy, Student):  # what the student alone would have played, for the clock only
                plain, _ = workers.explore(self._next_tasks(), self.version, Direction(Student(), moment, None))
            self.costs.aim(plain, config.train)
        self.steps += 1
        self._check_harvest(rollouts)
        self.totals["teacher_tokens"] += scored
        longest = 0.0
        for rollout in rollouts:
            rollout.seconds = self._charge(rollout)
            longest = max(longest, rollout.seconds)
            self.task_of[rollout.id] = rollout.task
            self._schedule(self.now + rollout.seconds, "arrive", rollout)
        self._schedule(self.now + longest, "explore", (rollouts, moment))

    def _charge(self, rollout: Rollout) -> float:
        """Add a rollout's costs to the totals; its virtual seconds to the end of scoring."""
        generation, scoring = self.costs.generation(rollout), self.costs.scoring(rollout)
        by_teacher = [turn.actor is Actor.TEACHER for turn in rollout.turns]
        taught = [turn for turn, teacher in zip(rollout.turns, by_teacher, strict=True) if teacher]
        takeovers = self.costs.takeovers(rollout)
        for name, value in {
            "explorer_seconds": generation,
            "teacher_seconds": scoring,
            "takeovers": sum(now and not before for before, now in pairwise([False, *by_teacher])),
            "teacher_turns": len(taught),
            "teacher_generated_tokens": sum(turn.response_tokens for turn in taught),
            "teacher_generation_seconds": takeovers,
        }.items():
            self.totals[name] += value
        return generation + takeovers + scoring

    def _arrive(self, rollout: Rollout) -> None:
        """The student's turns enter the pool; the teacher's are only logged."""
        mine = [turn for turn in rollout.turns if turn.actor is Actor.STUDENT]
        self.pool.put(mine, self.now)
        self.use.arrive(mine, any(gate(turn) is None for turn in mine))
        for turn in rollout.turns:
            if turn.actor is Actor.TEACHER:
                turn.arrival_time = self.now
                self.teacher_turns.append(turn)

    def _check_harvest(self, rollouts: Sequence[Rollout]) -> None:
        """Raise `StarvedError` after BARREN_STEPS steps in a row without a student turn that can train."""
        turns = [turn for rollout in rollouts for turn in rollout.turns if turn.actor is Actor.STUDENT]
        if any(not self.rule.gated or gate(turn) is None for turn in turns):
            self._barren = 0
            self._refused.clear()
            return
        self._barren += 1
        self._refused.update(str(gate(turn)) for turn in turns)
        if self._barren >= BARREN_STEPS:
            reasons = ", ".join(f"{reason} {count}" for reason, count in self._refused.most_common())
            reasons = reasons or "the teacher acts on every turn"
            raise StarvedError(
                f"update {self.update}: {self._barren} explorer steps in a row brought no turn that can train "
                f"({reasons}); check the prompt limits, the tokenizers and the student's weights"
            )

    # learner ---------------------------------------------------------------------------------------------------------

    def _learn(self, workers: Workers) -> None:
        q = self.update
        if self._learner_busy or q >= self.config.train.updates or not self.pool.ready(q, self.rule):
            return
        offered = self.pool.draw(q, self.rule)
        candidates = Candidates.from_turns(offered, q)
        rows, rule_seed = self.config.train.batch_rows, seed(self.config.seed, "rule")
        chosen = apply_rule(self.rule, candidates, rows, rule_seed, self.rule_state)
        self.rule_state = chosen.state
        batch = self.pool.settle(offered, chosen.rows, q)
        seconds = self.costs.update(batch)
        row = {
            "update": q,
            "time_start": self.now,
            "time_end": self.now + seconds,
            "read_wait": self.now - self._idle_since,
            "learner_seconds": seconds,
            "stale_rows": self.pool.discards[DropReason.STALE],
            "queue_length": self.pool.queued + self.pool.pending,
            **batch_diagnostics(batch, q),
            **self.use.row(),
        }
        row |= workers.learn(batch, q) if chosen.weights is None else workers.learn(batch, q, chosen.weights)
        self.totals["drained"] += len(batch)
        self.totals["busy"] += seconds
        self.update += 1
        self._learner_busy = True
        self._schedule(self.now + seconds, "publish", row)

    def _publish(self, row: dict[str, Any], workers: Workers, record: Callable[[dict[str, Any]], None]) -> None:
        self.version += 1
        self._learner_busy = False
        self._idle_since = self.now
        workers.publish()
        row |= {key: value for key, value in self.totals.items() if key not in ("busy", "drained")}
        row["horizon"] = self.horizon
        row["explorer_steps"] = self.steps
        row["arrived_turns"] = self.pool.arrived
        row["arrival_rate"] = self.pool.arrived / self.now
        row["drain_rate"] = self.totals["drained"] / self.totals["busy"]
        if self.finished:
            self.pool.finish(self.version)
        record(row)
        self._evaluate_updates(workers)
        if not self.finished:
            self._learn(workers)

    def _evaluate_updates(self, workers: Workers) -> None:
        every = self.config.evaluation.every_updates
        last = self.finished and every is None
        if last or (every is not None and (self.version % every == 0 or self.finished)):
            workers.save(self.version, self.steps, self.now)
