import numpy as np

from divopd.selection import Candidates, Rule, coverage, uniform_order


class DivOPDNoCap(Rule):
    """Coverage's order of rollouts without its cap: the oldest rollouts give all their turns.

    As `divopd_base` with k = infinity; the order inside a rollout matters only for the last one. Source: ablation of
    arXiv 2609.34838.
    """

    def select(self, pool: Candidates, budget: int, seed: int) -> np.ndarray:
        return coverage(pool, uniform_order(pool, seed), None, budget)
