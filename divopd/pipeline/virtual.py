"""Explorers, teacher and learner on a deterministic discrete-event clock, in one process.

Update q occupies [T_q, T_q+1) of virtual time. An explorer step ends when its slowest rollout has been scored. Its
rollouts join the pool then, all at once (`pipeline.arrives: step`), or each when it has been scored (`rollout`). After
that the explorer's next step starts, with the weights published last; where `pipeline.sync` is `wait` and an update is
under way (its own arrival may just have set it off), it starts when that one's are published, before the next update.
Everything between two events is computed as one real batch, so the clock costs nothing and the same seed gives the same
events.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..config import RunConfig
from ..rollouts import Direction, Moment, RolloutPolicy
from ..rollouts.student import Student
from ..selection import Rule
from ..timing import Stopwatch
from ..types import Rollout
from .clock import CostModel, arrivals
from .course import Course, Save, StarvedError, Task

__all__ = ["StarvedError", "Task", "VirtualPipeline", "Workers"]


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
    save: Save


@dataclass(order=True, slots=True)
class _Event:
    time: float
    order: int  # ties go to what was scheduled first
    kind: str = field(compare=False)
    load: Any = field(compare=False, default=None)


class VirtualPipeline(Course):
    """A run on the virtual clock. Picklable between events, except for the workers, which `run` is given."""

    def __init__(
        self, config: RunConfig, rule: Rule, tasks: Sequence[str], policy: RolloutPolicy | None = None
    ) -> None:
        super().__init__(config, rule, tasks, policy)
        self.costs = CostModel(config.pipeline)
        self._events: list[_Event] = []
        self._scheduled = 0
        self._waiting: list[Any] = []  # loads of explorers that wait for the weights of the update under way
        for _ in range(config.pipeline.steps_in_flight):
            self._schedule(0.0, "explore")

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update({"_waiting": []} | state)  # which older resume points lack

    def _schedule(self, time: float, kind: str, load: Any = None) -> None:
        heapq.heappush(self._events, _Event(time, self._scheduled, kind, load))
        self._scheduled += 1

    def run(self, workers: Workers, record: Callable[[dict[str, Any]], None], watch: Stopwatch) -> None:
        """Go on to the next published version, which is where a run may be interrupted; `record` gets its row."""
        with watch("clock"):
            if self.version == 0 and self.steps == 0:
                self._evaluate_updates(workers.save)
            while self._events:
                event = heapq.heappop(self._events)
                self.now = event.time
                if event.kind == "publish":
                    self._publish(event.load, workers, record)
                    return
                if event.kind == "explore" and self.config.pipeline.sync == "wait" and self._learner_busy:
                    self._waiting.append(event.load)
                elif event.kind == "explore":
                    self._explore(workers, event.load)
                elif event.kind == "arrive":
                    self._arrive([event.load] if isinstance(event.load, Rollout) else event.load)  # older resume points
                self._learn(workers)

    def _explore(self, workers: Workers, ended: tuple[Sequence[Rollout], Moment] | None) -> None:
        """Start an explorer's next step; `ended` is the step that it played before."""
        self._begin_step(workers.save)
        if ended is not None:
            self.policy_state = self.policy.observe(*ended, self.policy_state)
        config = self.config
        direction = self._direct()
        moment = direction.moment
        rollouts, scored = workers.explore(self._next_tasks(), self.version, direction)
        if self.steps == 0 and config.pipeline.load is not None:
            plain = rollouts
            if not isinstance(self.policy, Student):  # what the student alone would have played, for the clock only
                plain, _ = workers.explore(self._next_tasks(), self.version, Direction(Student(), moment, None))
            self.costs.aim(plain, config.train)
        self.steps += 1
        self._check_harvest(rollouts)
        self.totals["teacher_tokens"] += scored
        for rollout in rollouts:
            rollout.seconds = self._charge(rollout)
            self.task_of[rollout.id] = rollout.task
        seconds = [rollout.seconds for rollout in rollouts]
        for after, numbers in arrivals(config.pipeline, seconds):
            self._schedule(self.now + after, "arrive", [rollouts[i] for i in numbers])
        self._schedule(self.now + max(seconds), "explore", (rollouts, moment))

    def _charge(self, rollout: Rollout) -> float:
        """Add a rollout's costs to the totals; its virtual seconds to the end of scoring."""
        generation, scoring = self.costs.generation(rollout), self.costs.scoring(rollout)
        takeovers = self.costs.takeovers(rollout)
        self._count_takeovers(rollout)
        self.totals["explorer_seconds"] += generation
        self.totals["teacher_seconds"] += scoring
        self.totals["teacher_generation_seconds"] += takeovers
        return generation + takeovers + scoring

    def _learn(self, workers: Workers) -> None:
        q = self.update
        if (chosen := self._choose()) is None:
            return
        batch, weights, row = chosen
        seconds = self.costs.update(batch)
        row |= {"time_end": self.now + seconds, "learner_seconds": seconds}
        row |= workers.learn(batch, q) if weights is None else workers.learn(batch, q, weights)
        self.totals["busy"] += seconds
        self._schedule(self.now + seconds, "publish", row)

    def _publish(self, row: dict[str, Any], workers: Workers, record: Callable[[dict[str, Any]], None]) -> None:
        self._published(row)
        workers.publish()
        record(row)
        self._evaluate_updates(workers.save)
        if self.finished:
            return
        waiting, self._waiting = self._waiting, []
        for ended in waiting:
            self._explore(workers, ended)
        self._learn(workers)
