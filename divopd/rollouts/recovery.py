"""Teacher recovery (+R)."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import NonNegativeInt, PositiveInt

from divopd.rollouts._base import Moment, TeacherTurns
from divopd.types import Actor, Rollout


class Recovery(TeacherTurns):
    """The teacher takes over a rollout that is stuck, for a few turns, and the student goes on from there.

    After `patience` (p) consecutive student turns without progress the teacher acts, for up to `max_turns` (m) turns;
    m is a budget of the rollout. On only from `warmup_updates` learner updates on. Source: arXiv 2609.34838, teacher
    recovery; p, m and warm-up are the setting's. Ours: a turn makes no progress when its action is invalid or equals
    the previous turn's while the allowed actions are unchanged (`Step.progress`), any other turn starts the count anew;
    the teacher keeps acting until the budget is spent, or, with `hand_back: progress`, until its first turn that makes
    progress, and what is left of the budget serves the next takeover; warm-up counts the updates behind the weights
    that the explorer plays with; the teacher samples at temperature 0.4. With `memory` > 1 (ours) a turn makes no
    progress either when its action is that of one of the last `memory` turns: walking to and fro between two places
    repeats no action in succession, so that `Step.progress` does not see it.
    """

    patience: PositiveInt
    max_turns: PositiveInt
    warmup_updates: NonNegativeInt = 0
    hand_back: Literal["budget", "progress"] = "budget"
    memory: PositiveInt = 1

    def teacher_acts(self, rollout: Rollout, moment: Moment, state: Any) -> bool:
        turns = rollout.turns
        spent = sum(turn.actor is Actor.TEACHER for turn in turns)
        if moment.version < self.warmup_updates or spent >= self.max_turns or not turns:
            return False
        if turns[-1].actor is Actor.TEACHER:
            return self.hand_back == "budget" or not turns[-1].progress
        last = range(len(turns) - self.patience, len(turns))
        return last.start >= 0 and all(self._stuck(rollout, i) for i in last)

    def _stuck(self, rollout: Rollout, index: int) -> bool:
        """Whether this turn is the student's and made no progress."""
        turn, before = rollout.turns[index], rollout.turns[max(0, index - self.memory) : max(0, index - 1)]
        again = any(turn.action == other.action for other in before)
        return turn.actor is Actor.STUDENT and (again or not turn.progress)
