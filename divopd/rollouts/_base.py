"""What a rollout policy is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, PositiveFloat

from divopd.types import Rollout, RolloutId


class RolloutError(ValueError):
    """A rollout policy that cannot be found or built; one line."""


@dataclass(frozen=True, slots=True)
class Moment:
    """When an explorer step starts, in counts that every policy may use."""

    step: int  # explorer steps before this one
    version: int  # updates behind the weights published last
    updates: int  # updates of the whole run
    max_turns: int  # the environment's limit
    seed: int  # the run's
    environment: str = ""  # its name


class RolloutPolicy(BaseModel):
    """How rollouts are played. Fields are its parameters, settable from YAML; what it remembers is a state apart.

    The state is anything picklable; it is saved in the run's resume points. Nothing here may change an episode that is
    evaluated: evaluation plays without a policy.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)

    LOGGED: ClassVar[Mapping[str, Any]] = {}
    """Parameters that runs were logged without, and their values in a resolved cell that does not state them.

    A parameter may have another default than it had, or than nothing was; cells of before keep meaning, and identity.
    """

    def check(self, environment: str) -> None:
        """Raise `RolloutError` where these parameters do not do for this environment."""

    def initial_state(self) -> Any:
        """What it remembers before the first explorer step."""
        return None

    def depth(self, moment: Moment, state: Any) -> int:
        """The horizon of this explorer step, in turns: what the log shows."""
        return moment.max_turns

    def limit(self, rollout: RolloutId, moment: Moment, state: Any) -> int:
        """The horizon of one rollout, at least 1; `depth` for all unless overridden."""
        return self.depth(moment, state)

    def observe(self, rollouts: Sequence[Rollout], moment: Moment, state: Any) -> Any:
        """The state after the rollouts of one explorer step have ended and been scored. `moment`: when it started."""
        return state


class TeacherTurns(RolloutPolicy):
    """A policy under which the teacher acts on some turns. They get no loss and never enter the pool."""

    teacher_temperature: PositiveFloat = 0.4  # ours

    def teacher_acts(self, rollout: Rollout, moment: Moment, state: Any) -> bool:
        """Whether the teacher acts on the next turn of this rollout, given the turns so far."""
        raise NotImplementedError


class PrefixTurns(RolloutPolicy):
    """A policy whose rollouts begin with actions of an expert's path (divopd/envs/paths.py); then the student plays on.

    These turns count towards the environment's limit. They get no loss and never enter the pool.
    """

    def prefix(self, actions: int, moment: Moment) -> int:
        """How many of a path's actions are played before the student's first turn: fewer than there are."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Direction:
    """A policy at one explorer step: all that the loop of turns asks."""

    policy: RolloutPolicy
    moment: Moment
    state: Any
    prefixes: Mapping[RolloutId, Sequence[str]] = field(default_factory=dict)  # expert actions that rollouts begin with

    def limit(self, rollout: RolloutId) -> int:
        return min(self.moment.max_turns, self.policy.limit(rollout, self.moment, self.state))

    def teacher_acts(self, rollout: Rollout) -> bool:
        policy = self.policy
        return isinstance(policy, TeacherTurns) and policy.teacher_acts(rollout, self.moment, self.state)


def eta_of(table: Mapping[str, int], eta: int | None, environment: str, policy: str) -> int:
    """`eta`, or without one the environment's own. Raises `RolloutError` for an environment that has none."""
    if eta is None and environment not in table:
        known = ", ".join(f"{name} {value}" for name, value in table.items())
        raise RolloutError(
            f"rollout policy {policy}: set 'eta' for {environment or 'this environment'}; known: {known}"
        )
    return table[environment] if eta is None else eta
