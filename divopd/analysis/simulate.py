"""How much too high a peak is: the maximum over noisy evaluations, simulated at the size of the panel."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

WINDOW = 9  # evaluations averaged where the curve that lies behind the noise is estimated
DRAWS = 1000


def smoothed(success: ArrayLike, window: int = WINDOW) -> np.ndarray:
    """(evaluations,) centred moving average of success; near the ends over as many as there are on both sides alike.

    An estimate of the success that the weights have, without the noise of which games were won (ours). What noise is
    left in it makes the bias found from it too small, by a quarter where the curve is flat (docs/metrics.md).
    """
    curve = np.asarray(success, dtype=float)
    total = np.r_[0.0, np.cumsum(curve)]
    at = np.arange(len(curve))
    reach = np.minimum(window // 2, np.minimum(at, len(curve) - 1 - at))
    return (total[at + reach + 1] - total[at - reach]) / (2 * reach + 1)


def peak_bias(truth: ArrayLike, episodes: ArrayLike, rng: np.random.Generator, draws: int = DRAWS) -> float:
    """E[peak] - max(truth): how far the highest of the evaluations lies above the best success, on average.

    `truth` (evaluations,) is the success behind each, in [0, 1]; each is measured on `episodes` games, independently:
    wins are binomial (ours). Games of a fixed panel differ in difficulty, which makes real noise smaller.
    """
    p, n = np.clip(np.asarray(truth, dtype=float), 0.0, 1.0), np.asarray(episodes)
    if p.ndim != 1 or len(p) == 0 or (n < 1).any():
        raise ValueError("need success at one evaluation or more, and at least one episode at each")
    wins = rng.binomial(n, p, size=(draws, len(p)))
    return float((wins / n).max(axis=1).mean() - p.max())
