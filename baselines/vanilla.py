import numpy as np

from divopd.selection import Candidates, Rule, arrival_order


class Vanilla(Rule):
    """First in, first out: the next B turns that are not stale, dead rows included.

    S = the B turns with the lowest arrival number. Source: the asynchronous baseline of arXiv 2609.34838, section 4.
    """

    gated = False
    reads = "batch"

    def select(self, pool: Candidates, budget: int, seed: int) -> np.ndarray:
        return arrival_order(pool)[:budget]
