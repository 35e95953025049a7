import numpy as np

from divopd.selection import Candidates, uniform_order


def uniform(pool: Candidates, budget: int, seed: int) -> np.ndarray:
    """Uniformly random turns of the pool, without replacement, whatever their rollout.

    Each valid turn enters with probability B / n: the unbiased control, E[batch gradient] = mean gradient of the valid
    rows. Numbers are hashes of (seed, q, rollout, turn). Source: ours, a control.
    """
    return uniform_order(pool, seed)[:budget]
