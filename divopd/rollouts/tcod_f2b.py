"""TCOD, front to back."""

from __future__ import annotations

from typing import Any

from pydantic import PositiveInt

from divopd.rollouts._base import Moment, RolloutPolicy


class FrontToBack(RolloutPolicy):
    """A temporal curriculum: rollouts are cut short, and the horizon grows by a turn every `eta` updates.

    Horizon 1 + q // eta up to the environment's limit, q the version that the explorer plays with. Source: TCOD-F2B
    (arXiv 2604.24005), a baseline of arXiv 2609.34838. Ours: q for "step"; without an `eta`, the one that reaches the
    limit after half of the run's updates or before.
    """

    eta: PositiveInt | None = None

    def depth(self, moment: Moment, state: Any) -> int:
        eta = self.eta or max(1, moment.updates // 2 // max(1, moment.max_turns - 1))
        return min(1 + moment.version // eta, moment.max_turns)
