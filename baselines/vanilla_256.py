import numpy as np

from divopd.selection import Candidates, Rule, arrival_order


class VanillaMatchedAccess(Rule):
    """Matched access: sees the c * B turns that DivOPD sees (256 in the paper), and takes the first B to arrive.

    S = the B turns with the lowest arrival number, dead rows included. Source: control of arXiv 2609.34838.
    """

    gated = False

    def select(self, pool: Candidates, budget: int, seed: int) -> np.ndarray:
        return arrival_order(pool)[:budget]
