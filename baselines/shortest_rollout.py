import numpy as np

from divopd.selection import Candidates, best_first


def shortest_rollout(pool: Candidates, budget: int, seed: int) -> np.ndarray:
    """Turns of the rollouts with the fewest turns first.

    By the length of the turn's rollout ascending (all its turns, also those no longer in the pool), ties by (rollout,
    turn). Source: ours, a control: most rollouts that a batch can finish.
    """
    return best_first(pool, -pool.rollout_turns)[:budget]
