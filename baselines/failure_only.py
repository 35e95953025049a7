import numpy as np

from divopd.selection import Candidates


def failure_only(pool: Candidates, budget: int, seed: int) -> np.ndarray:
    """Turns of failed rollouts, in arrival order.

    Batches stay full: where failures do not fill one, turns of successful rollouts follow, in arrival order. Source:
    ours, the mirror of `success_only`: what the student cannot do yet.
    """
    return np.lexsort((pool.arrival, pool.success))[:budget]
