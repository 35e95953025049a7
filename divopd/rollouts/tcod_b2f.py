"""TCOD, back to front."""

from __future__ import annotations

from typing import Any

from pydantic import PositiveInt

from divopd.rollouts._base import Moment, PrefixTurns, eta_of
from divopd.types import RolloutId

ETA = {"alfworld": 5, "scienceworld": 5, "webshop": 4}
"""Explorer steps an action: `checkpoint_steps` of TCOD_examples/<environment>/tcod_b2f.yaml in TCOD's code base."""


class BackToFront(PrefixTurns):
    """A temporal curriculum: the student starts near the end of an expert's path, an action earlier every `eta` steps.

    It starts after max(0, n - 1 - k // eta) of an expert's n actions, k the explorer step; without an `eta`, its
    environment's in ETA. What is before is played as the expert has it, and stands in the chat as if the student had
    said it; prefix and student together have the environment's limit of turns. Source: TCOD-B2F (arXiv 2604.24005 and
    its code base). Ours: k counts from 0, where the code base counts from 1; the experts (docs/methods.md), where the
    paper has its teacher's successes; the whole chat, where the code base shows the last actions alone; and a path that
    is as long as the limit leaves the student its last turn.
    """

    eta: PositiveInt | None = None

    def check(self, environment: str) -> None:
        eta_of(ETA, self.eta, environment, "tcod_b2f")

    def _left(self, moment: Moment) -> int:
        """Actions of a path that are left to the student, if it has as many."""
        return 1 + moment.step // eta_of(ETA, self.eta, moment.environment, "tcod_b2f")

    def depth(self, moment: Moment, state: Any) -> int:
        """Of an expert's actions, how many are left to the student at most; rollouts are not cut."""
        return min(self._left(moment), moment.max_turns)

    def limit(self, rollout: RolloutId, moment: Moment, state: Any) -> int:
        return moment.max_turns

    def prefix(self, actions: int, moment: Moment) -> int:
        return max(0, min(actions - self._left(moment), moment.max_turns - 1))
