import numpy as np

from divopd.selection import Candidates, Rule, arrival_order


class GateOnly(Rule):
    """The gate alone: invalid turns are thrown away, the first B valid ones to arrive train.

    S = the B valid turns with the lowest arrival number. Source: ablation of arXiv 2609.34838.
    """

    def select(self, pool: Candidates, budget: int, seed: int) -> np.ndarray:
        return arrival_order(pool)[:budget]
