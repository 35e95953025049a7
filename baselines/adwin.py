import math
from typing import Any

import numpy as np
from pydantic import NonNegativeFloat, PositiveInt

from divopd.selection import Candidates, Choice, Rule


class AdaptiveWindow(Rule):
    """Curriculum over depth whose window follows the evidence: it grows while deeper turns are as good to learn from.

    Turns 0 .. H - 1 in arrival order first, then those beyond, the nearest first (batches stay full). Before choosing,
    an audit compares D = mean student - teacher log-prob a token of the turns that this update's read brought: inside
    the window, and of the turns H .. H + step - 1 just beyond. D beyond <= (1 + tolerance) * D inside: H grows by
    `step`; else it shrinks by `step`, to `start` at least; without both, H stays. State: H, saved with the run. Source:
    ADWIN (arXiv 2605.28396), of which only the abstract was read: prefixes to train on, full-rollout probes to audit
    them, a horizon that adapts. Ours: everything else; rollouts are played out, so that each audits the window.
    """

    start: PositiveInt = 2
    step: PositiveInt = 1
    tolerance: NonNegativeFloat = 0.25

    def initial_state(self) -> Any:
        return self.start

    def advance(self, pool: Candidates, budget: int, seed: int, state: Any) -> tuple[Choice, Any]:
        fresh = (pool.first_seen == pool.update) & ~np.isnan(pool.disagreement)  # each turn is heard once
        inside = self._gap(pool, fresh & (pool.turn < state))
        beyond = self._gap(pool, fresh & (pool.turn >= state) & (pool.turn < state + self.step))
        if not math.isnan(inside + beyond):
            grows = beyond <= inside + self.tolerance * abs(inside)
            state = state + self.step if grows else max(state - self.step, self.start)
        depth = np.maximum(pool.turn - state + 1, 0)
        return np.lexsort((pool.arrival, depth))[:budget], state

    def _gap(self, pool: Candidates, rows: np.ndarray) -> float:
        """Mean over tokens; exactly rounded, so that the order of rows does not matter."""
        tokens = int(pool.valid_tokens[rows].sum())
        return math.fsum(pool.disagreement[rows]) / tokens if tokens else math.nan
