import numpy as np
from pydantic import PositiveInt

from divopd.selection import Candidates, Rule, coverage, focus_order


class DivOPD(Rule):
    """Gate, coverage and focus: spread wide over rollouts, look close inside each.

    At most k turns a rollout on the first sweep, those with the largest s(u) = sum over valid tokens of student minus
    teacher log-prob (signed, summed, cached); cap raised by one a sweep while the batch is short. Source: Algorithm 1
    of arXiv 2609.34838.
    """

    cap: PositiveInt = 4  # k, turns a rollout

    def select(self, pool: Candidates, budget: int, seed: int) -> np.ndarray:
        return coverage(pool, focus_order(pool), self.cap, budget)
