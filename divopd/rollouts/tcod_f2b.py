"""TCOD, front to back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import PositiveInt

from divopd.rollouts._base import Moment, RolloutPolicy, eta_of

ETA = {"alfworld": 6, "scienceworld": 6, "webshop": 4}
"""Explorer steps a turn: `checkpoint_steps` of TCOD_examples/<environment>/tcod_f2b.yaml in TCOD's code base."""


class FrontToBack(RolloutPolicy):
    """A temporal curriculum: rollouts are cut short, and the horizon grows by a turn every `eta` explorer steps.

    Horizon min(1 + n // eta, environment's limit), n the explorer step; without an `eta`, its environment's in ETA.
    Source: TCOD-F2B (arXiv 2604.24005 and its code base), a baseline of arXiv 2609.34838. Ours: n counts from 0; the
    code base counts from 1, so that each turn comes one explorer step earlier there.

    `counter: version` (ours) counts the updates behind the weights that the explorer plays with instead; without an
    `eta`, it takes the one that reaches the limit after half of the run's updates or before.
    """

    LOGGED: ClassVar[Mapping[str, Any]] = {"counter": "version", "eta": None}

    counter: Literal["explorer_step", "version"] = "explorer_step"
    eta: PositiveInt | None = None

    def check(self, environment: str) -> None:
        if self.counter == "explorer_step":
            eta_of(ETA, self.eta, environment, "tcod_f2b")

    def depth(self, moment: Moment, state: Any) -> int:
        if self.counter == "explorer_step":
            grown = moment.step // eta_of(ETA, self.eta, moment.environment, "tcod_f2b")
        else:
            grown = moment.version // (self.eta or max(1, moment.updates // 2 // max(1, moment.max_turns - 1)))
        return min(1 + grown, moment.max_turns)
