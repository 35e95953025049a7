import numpy as np
from pydantic import PositiveInt

from divopd.selection import Candidates


def prefix_window(pool: Candidates, budget: int, seed: int, *, eta: PositiveInt = 10) -> np.ndarray:
    """Curriculum over depth: early turns of rollouts first, in a window that grows as training goes on.

    Turns 0 .. 1 + q // eta - 1 in arrival order; batches stay full, so the turns beyond the window follow, the nearest
    to it first. Source: TCOD-F2B (arXiv 2604.24005), horizon 1 + step // eta. Ours: there the horizon cuts rollouts
    short, here they are played out and the window selects; eta = 10.
    """
    beyond = np.maximum(pool.turn - pool.update // eta, 0)
    return np.lexsort((pool.arrival, beyond))[:budget]
