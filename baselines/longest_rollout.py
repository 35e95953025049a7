import numpy as np

from divopd.selection import Candidates, best_first


def longest_rollout(pool: Candidates, budget: int, seed: int) -> np.ndarray:
    """Turns of the rollouts with the most turns first.

    By the length of the turn's rollout descending (all its turns, also those no longer in the pool), ties by (rollout,
    turn). Source: ours, a control: the opposite of spreading wide.
    """
    return best_first(pool, pool.rollout_turns)[:budget]
