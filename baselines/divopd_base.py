import numpy as np
from pydantic import PositiveInt

from divopd.selection import Candidates, Rule, coverage, uniform_order


class DivOPDBase(Rule):
    """Gate and coverage without focus: at most k turns a rollout on the first sweep, drawn uniformly inside it.

    Groups by oldest first-seen, then rollout id; cap raised by one a sweep while the batch is short; inside a rollout a
    random order seeded by (seed, q, rollout). Source: Algorithm 1 of arXiv 2609.34838 with step 5 replaced.
    """

    cap: PositiveInt = 4  # k, turns a rollout

    def select(self, pool: Candidates, budget: int, seed: int) -> np.ndarray:
        return coverage(pool, uniform_order(pool, seed), self.cap, budget)
