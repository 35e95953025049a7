"""The course of a run whose explorers are many and may die: open steps, admission, and real seconds."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from divopd.pipeline.course import Course, Save, Task
from divopd.rollouts import Direction
from divopd.seeds import rng
from divopd.types import Rollout, RolloutId

NONE_TAKEN = {"direct": 0, "store": 0, "seconds": 0.0}
"""How often explorers have taken weights by which road, and how long that took."""


@dataclass(slots=True)
class Step:
    """An explorer step under way: what has not arrived yet, and what has."""

    direction: Direction
    missing: dict[RolloutId, str]
    arrived: list[Rollout] = field(default_factory=list)


class RayCourse(Course):
    """Decides what is played next and takes what comes; `now` is set by whoever has a clock.

    Pickled, it holds every episode that has not arrived as one to be played: a run that goes on plays them again.
    """

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.open: dict[int, Step] = {}
        self.again: list[RolloutId] = []  # episodes of open steps whose explorer or scorer died
        self.rollouts = 0  # arrived
        self.busy = dict.fromkeys(("explorer", "scorer", "learner", "evaluator"), 0.0)  # seconds, all workers of a kind
        self.taken = dict(NONE_TAKEN)
        self.replaced = dict.fromkeys(self.busy, 0)  # workers that died

    def __getstate__(self) -> dict[str, Any]:
        again = [name for step in self.open.values() for name in step.missing]
        return self.__dict__ | {"again": again, "_learner_busy": False, "update": self.version}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update({"taken": dict(NONE_TAKEN)} | state)  # which older resume points lack

    def next_tasks(self, save: Save, in_flight: int) -> tuple[Direction, list[Task]] | None:
        """What an idle explorer plays now: what a dead one left undone, or the next step; None: it waits.

        `in_flight`: episodes that are played or scored at the moment.
        """
        if self.again:
            number = self.again[0][0]
            names = [name for name in self.again if name[0] == number]
            self.again = [name for name in self.again if name[0] != number]
            step = self.open[number]
            tasks = [(name, step.missing[name], rng(self.config.seed, "sample", *name)) for name in names]
            return step.direction, tasks
        if not self._admits(in_flight):
            return None
        self._begin_step(save)
        direction, tasks = self._direct(), self._next_tasks()
        self.open[self.steps] = Step(direction, {name: task for name, task, _ in tasks})
        self.steps += 1
        return direction, tasks

    def _admits(self, in_flight: int) -> bool:
        """Whether a turn of a step that starts now can still be read before it is stale (see docs/ray.md).

        Weights of version v serve updates v to v + delta. With u the next update, v + delta - u + 1 reads can meet such
        a turn: the first fills the pool up to c * B (B for rules that read a batch), and each later one takes B more,
        what the one before has trained. More usable turns ahead of it than that, and it would be played in vain.
        """
        train = self.config.train
        if not self.config.placement.backpressure:
            return True
        pool = train.batch_rows * (1 if self.rule.reads == "batch" else train.pool_factor)
        bound = pool + train.batch_rows * (self.version + train.max_staleness - self.update)
        coming = in_flight * self.pool.arrived / self.rollouts if self.rollouts else 0.0
        return self.pool.usable(self.update, self.rule) + coming < bound

    def redo(self, names: Iterable[RolloutId]) -> None:
        """These episodes were lost: they are played again, with the weights of then."""
        known = [name for name in names if name[0] in self.open and name in self.open[name[0]].missing]
        self.again = sorted({*self.again, *known})

    def awaits(self, rollout: Rollout) -> bool:
        """Whether this episode has not arrived yet."""
        step = self.open.get(rollout.id[0])
        return step is not None and rollout.id in step.missing

    def arrive(self, rollout: Rollout) -> None:
        """A scored episode joins the pool; the last of its step ends the step."""
        number = rollout.id[0]
        step = self.open[number]
        del step.missing[rollout.id]
        self.task_of[rollout.id] = rollout.task
        self.rollouts += 1
        self._count_takeovers(rollout)
        self._arrive(rollout)
        step.arrived.append(rollout)
        if not step.missing:
            del self.open[number]
            step.arrived.sort(key=lambda rollout: rollout.id)
            self._check_harvest(step.arrived)
            moment = step.direction.moment
            self.policy_state = self.policy.observe(step.arrived, moment, self.policy_state)
