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
    """An explorer step in flight: what has not been played and scored yet, and what has, in this order."""

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
        self.waiting = self.due = 0  # steps that wait for the weights of the update under way, or may take them now
        self.rollouts = 0  # arrived
        self.busy = dict.fromkeys(("explorer", "scorer", "learner", "evaluator"), 0.0)  # seconds, all workers of a kind
        self.taken = dict(NONE_TAKEN)
        self.replaced = dict.fromkeys(self.busy, 0)  # workers that died

    def __getstate__(self) -> dict[str, Any]:
        again = [name for step in self.open.values() for name in step.missing]
        idle = {"again": again, "_learner_busy": False, "update": self.version, "waiting": 0, "due": 0}
        return self.__dict__ | idle

    def __setstate__(self, state: dict[str, Any]) -> None:
        # which older resume points lack
        self.__dict__.update({"taken": dict(NONE_TAKEN), "waiting": 0, "due": 0} | state)

    def next_tasks(self, save: Save, in_flight: int) -> tuple[Direction, list[Task]] | None:
        """What idle explorers play now: what a dead one left undone, or the next step; None: they wait.

        `in_flight`: episodes that are played or scored at the moment.
        """
        if self.again:
            number = self.again[0][0]
            names = [name for name in self.again if name[0] == number]
            self.again = [name for name in self.again if name[0] != number]
            step = self.open[number]
            tasks = [(name, step.missing[name], rng(self.config.seed, "sample", *name)) for name in names]
            return step.direction, tasks
        if self.free <= 0 or not self._admits(in_flight) or not self._synchronised():
            return None
        self._begin_step(save)
        direction, tasks = self._direct(), self._next_tasks()
        self.open[self.steps] = Step(direction, {name: task for name, task, _ in tasks})
        self.steps += 1
        return direction, tasks

    @property
    def free(self) -> int:
        """Steps that may be in flight besides those that are."""
        return self.config.pipeline.steps_in_flight - len(self.open)

    def _synchronised(self) -> bool:
        """Whether the next step may start: not while an update is under way whose weights it must have."""
        if self.config.pipeline.sync == "latest" or not self._learner_busy:
            self.due = 0
            return True
        if self.due:  # the learner goes on at once, and has given away what these steps waited for
            self.due -= 1
            return True
        self.waiting = self.free
        return False

    def _published(self, row: dict[str, Any]) -> None:
        super()._published(row)
        self.waiting, self.due = 0, self.waiting

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
        if self.config.pipeline.arrives == "step":  # held until their step is whole
            coming += sum(len(rollout.turns) for step in self.open.values() for rollout in step.arrived)
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
        """A scored episode joins the pool, at once or with all of its step; the last of its step ends the step."""
        number, pipeline = rollout.id[0], self.config.pipeline
        step = self.open[number]
        del step.missing[rollout.id]
        self.task_of[rollout.id] = rollout.task
        self._count_takeovers(rollout)
        step.arrived.append(rollout)
        if pipeline.arrives == "rollout":
            self.rollouts += 1
            self._arrive([rollout])
        if not step.missing:
            del self.open[number]
            by_task = sorted(step.arrived, key=lambda rollout: rollout.id)
            if pipeline.arrives == "step":
                self.rollouts += len(by_task)
                self._arrive(by_task if pipeline.order == "task" else step.arrived)
            step.arrived = by_task
            self._check_harvest(step.arrived)
            moment = step.direction.moment
            self.policy_state = self.policy.observe(step.arrived, moment, self.policy_state)
