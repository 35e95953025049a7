import numpy as np

from divopd.selection import Candidates


def success_only(pool: Candidates, budget: int, seed: int) -> np.ndarray:
    """Turns of successful rollouts, in arrival order.

    Batches stay full: where successes do not fill one, turns of failed rollouts follow, in arrival order. Source: ours,
    after rejection sampling on outcomes (RAFT, arXiv 2304.06767).
    """
    return np.lexsort((pool.arrival, ~pool.success))[:budget]
