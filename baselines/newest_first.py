import numpy as np

from divopd.selection import Candidates, best_first


def newest_first(pool: Candidates, budget: int, seed: int) -> np.ndarray:
    """Turns of the youngest weights first.

    By age = q - version ascending, ties by (rollout, turn). Source: ours, a control: as on-policy as the pool allows.
    """
    return best_first(pool, -pool.age)[:budget]
