"""The course of a run: its tasks, queue, rule and counters, and what a step, an arrival, a choice and a new version do
to them. It knows no clock: pipelines decide when these things happen, and how long they take.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from ..candidates import gate
from ..config import RunConfig
from ..diagnostics import RolloutUse, batch_diagnostics
from ..pool import Pool
from ..rollouts import Direction, Moment, PrefixTurns, RolloutPolicy
from ..rollouts.student import Student
from ..seeds import rng, seed, task_order
from ..selection import Candidates, Rule, apply_rule, first_state
from ..types import Actor, DropReason, Rollout, RolloutId, Turn

Task = tuple[RolloutId, str, np.random.Generator]
Save = Callable[[int, int, float], None]
"""Keeps a checkpoint of the published weights for evaluation: (version, explorer step, time)."""
BARREN_STEPS = 50
log = logging.getLogger("divopd")


class StarvedError(RuntimeError):
    """Explorers bring nothing that the learner can train on: without this, the clock would run for ever."""


class Course:
    """State of one run. Picklable between events."""

    # of the class, for resume points that were written before these were
    paths: Mapping[str, Sequence[str]] = {}  # of experts, by task, where the policy's rollouts begin with them
    failed_replays = 0  # rollouts whose expert actions did not go as in their path

    def __init__(
        self, config: RunConfig, rule: Rule, tasks: Sequence[str], policy: RolloutPolicy | None = None
    ) -> None:
        train = config.train
        self.config = config
        self.rule = rule
        self.rule_state = first_state(rule)
        self.policy = policy or Student()
        self.policy_state = self.policy.initial_state()
        self.horizon = config.env.max_turns  # of the last explorer step, in turns
        self.tasks = list(tasks)
        self.pool = Pool(train.batch_rows, train.pool_factor, train.max_staleness, train.retention)
        self.update = 0  # updates done or under way
        self.version = 0  # weights published last
        self.now = 0.0
        self.steps = 0  # explorer steps started
        self.use = RolloutUse()
        self.task_of: dict[RolloutId, str] = {}
        self.teacher_turns: list[Turn] = []  # and an expert's: arrived, and not yet taken for the log
        self.totals = {"explorer_seconds": 0.0, "teacher_seconds": 0.0, "busy": 0.0, "teacher_tokens": 0, "drained": 0,
                       "takeovers": 0, "teacher_turns": 0, "teacher_generated_tokens": 0,
                       "teacher_generation_seconds": 0.0}  # fmt: skip
        self._learner_busy = False
        self._idle_since = 0.0
        self._barren = 0  # explorer steps since one brought a turn that passes the gate
        self._refused: Counter[str] = Counter()  # the gate's reasons in those steps

    @property
    def finished(self) -> bool:
        return self.version >= self.config.train.updates

    # explorers -------------------------------------------------------------------------------------------------------

    def _next_tasks(self) -> list[Task]:
        """The next tasks in an order drawn anew for every pass over the training tasks."""
        pipeline, run_seed = self.config.pipeline, self.config.seed
        out: list[Task] = []
        for position in range(pipeline.tasks_per_step):
            index = self.steps * pipeline.tasks_per_step + position
            order = task_order(run_seed, index // len(self.tasks), len(self.tasks))
            task = self.tasks[int(order[index % len(self.tasks)])]
            for run in range(pipeline.runs_per_task):
                name = (self.steps, position, run)
                out.append((name, task, rng(run_seed, "sample", *name)))
        return out

    def _begin_step(self, save: Save) -> None:
        """Keep a checkpoint where evaluation counts explorer steps and one is due."""
        evaluation = self.config.evaluation
        if evaluation.every_updates is None and self.steps % evaluation.every_explorer_steps == 0:
            save(self.version, self.steps, self.now)

    def _direct(self) -> Direction:
        """How the explorer step that starts now plays."""
        config = self.config
        limit, name = config.env.max_turns, config.env.name
        moment = Moment(self.steps, self.version, config.train.updates, limit, config.seed, name)
        self.horizon = self.policy.depth(moment, self.policy_state)
        return Direction(self.policy, moment, self.policy_state, self._prefixes(moment))

    def _prefixes(self, moment: Moment) -> dict[RolloutId, Sequence[str]]:
        """The expert actions with which the next step's rollouts begin."""
        if not isinstance(self.policy, PrefixTurns):
            return {}
        tasks = [(name, self.paths[task]) for name, task, _ in self._next_tasks()]
        return {name: path[: self.policy.prefix(len(path), moment)] for name, path in tasks}

    def _count_takeovers(self, rollout: Rollout) -> None:
        """Add what the teacher did itself to the totals."""
        by_teacher = [turn.actor is Actor.TEACHER for turn in rollout.turns]
        taught = [turn for turn, teacher in zip(rollout.turns, by_teacher, strict=True) if teacher]
        self.totals["takeovers"] += sum(now and not before for before, now in pairwise([False, *by_teacher]))
        self.totals["teacher_turns"] += len(taught)
        self.totals["teacher_generated_tokens"] += sum(turn.response_tokens for turn in taught)

    def _arrive(self, rollouts: Sequence[Rollout]) -> None:
        """Rollouts join the queue together, in this order, before anybody reads."""
        for rollout in rollouts:
            self._put(rollout)

    def _put(self, rollout: Rollout) -> None:
        """The student's turns enter the pool; the teacher's and an expert's are only logged."""
        mine = [turn for turn in rollout.turns if turn.actor is Actor.STUDENT]
        self.pool.put(mine, self.now)
        self.use.arrive(mine, any(gate(turn) is None for turn in mine))
        for turn in rollout.turns:
            if turn.actor is not Actor.STUDENT:
                turn.arrival_time = self.now
                self.teacher_turns.append(turn)
        if getattr(rollout, "failed_replay", ""):  # which older resume points lack
            self.failed_replays += 1
            then = "the student goes on from there" if mine else "nothing is left to the student"
            log.warning("rollout %s of %s leaves the expert's path: %s; %s",
                        ".".join(map(str, rollout.id)), rollout.task, rollout.failed_replay, then)  # fmt: skip

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

    def _choose(self) -> tuple[list[Turn], np.ndarray | None, dict[str, Any]] | None:
        """Start the next update, if it may start now: its batch, the rule's weights, and what of its row is known."""
        q = self.update
        if self._learner_busy or q >= self.config.train.updates or not self.pool.ready(q, self.rule):
            return None
        offered = self.pool.draw(q, self.rule)
        candidates = Candidates.from_turns(offered, q)
        rows, rule_seed = self.config.train.batch_rows, seed(self.config.seed, "rule")
        chosen = apply_rule(self.rule, candidates, rows, rule_seed, self.rule_state)
        self.rule_state = chosen.state
        batch = self.pool.settle(offered, chosen.rows, q)
        row = {
            "update": q,
            "time_start": self.now,
            "read_wait": self.now - self._idle_since,
            "stale_rows": self.pool.discards[DropReason.STALE],
            "queue_length": self.pool.queued + self.pool.pending,
            **batch_diagnostics(batch, q),
            **self.use.row(),
        }
        self.totals["drained"] += len(batch)
        self.update += 1
        self._learner_busy = True
        return batch, chosen.weights, row

    def _published(self, row: dict[str, Any]) -> None:
        """The update's weights are out: complete its row with the run's counters."""
        self.version += 1
        self._learner_busy = False
        self._idle_since = self.now
        row |= {key: value for key, value in self.totals.items() if key not in ("busy", "drained")}
        row["horizon"] = self.horizon
        row["explorer_steps"] = self.steps
        row["arrived_turns"] = self.pool.arrived
        row["arrival_rate"] = self.pool.arrived / self.now
        row["drain_rate"] = self.totals["drained"] / self.totals["busy"]
        if self.finished:
            self.pool.finish(self.version)

    def _evaluate_updates(self, save: Save) -> None:
        """Keep a checkpoint of the version just published where one is due."""
        every = self.config.evaluation.every_updates
        last = self.finished and every is None
        if last or (every is not None and (self.version % every == 0 or self.finished)):
            save(self.version, self.steps, self.now)
