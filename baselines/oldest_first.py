import numpy as np

from divopd.selection import Candidates, best_first


def oldest_first(pool: Candidates, budget: int, seed: int) -> np.ndarray:
    """Turns of the oldest weights first: as few as possible go stale unused.

    By version ascending, ties by (rollout, turn). Source: ours, a control: earliest deadline first.
    """
    return best_first(pool, -pool.version)[:budget]
