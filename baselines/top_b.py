import numpy as np

from divopd.selection import Candidates, Rule, focus_order


class TopB(Rule):
    """Focus without coverage: the B turns of the whole pool with the largest disagreement.

    S = top B by s(u) = sum over valid tokens of student - teacher log-prob, ties by (rollout, turn). Source: control of
    arXiv 2609.34838.
    """

    def select(self, pool: Candidates, budget: int, seed: int) -> np.ndarray:
        return focus_order(pool)[:budget]
