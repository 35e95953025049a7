"""Intervals. Seeds are the unit that is resampled: paired across methods, stratified by setting."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike

Z95 = 1.959963984540054  # 97.5 % quantile of the normal distribution


def wilson(successes: ArrayLike, trials: ArrayLike, z: float = Z95) -> tuple[np.ndarray, np.ndarray]:
    """Wilson score interval of a proportion (Wilson 1927), element by element: (low, high) in [0, 1]."""
    k, n = np.asarray(successes, dtype=float), np.asarray(trials, dtype=float)
    if (n <= 0).any() or (k < 0).any() or (k > n).any():
        raise ValueError("need 0 <= successes <= trials and at least one trial")
    p, z2 = k / n, z * z
    centre = (p + z2 / (2 * n)) / (1 + z2 / n)
    half = z / (1 + z2 / n) * np.sqrt(p * (1 - p) / n + z2 / (4 * n * n))
    # at 0 and n successes a bound is 0 or 1 exactly; rounding would leave it a hair outside or inside
    return np.where(k == 0, 0.0, centre - half), np.where(k == n, 1.0, centre + half)


def iqm(values: ArrayLike) -> float:
    """Interquartile mean: floor(n / 4) values cut at each end, as rliable does (Agarwal et al. 2021)."""
    ordered = np.sort(np.asarray(values, dtype=float).ravel())
    cut = len(ordered) // 4
    return float(ordered[cut : len(ordered) - cut].mean()) if len(ordered) else math.nan


def paired_bootstrap(
    scores: Mapping[str, np.ndarray],
    statistic: Callable[[Sequence[np.ndarray]], ArrayLike],
    rng: np.random.Generator,
    draws: int = 2000,
    level: float = 0.95,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Point value and percentile interval of a statistic of several runs: (point, low, high).

    `scores[setting]` is (seeds, methods): a row is one seed under every method, so that pairs stay together; rows are
    drawn with replacement inside each setting. `statistic` takes those arrays in the order of settings and returns a
    number or an array. With one seed a setting the interval is the point: it says nothing about seeds.
    """
    arrays = [np.asarray(values, dtype=float) for values in scores.values()]
    if not arrays or any(array.ndim != 2 or len(array) == 0 for array in arrays):
        raise ValueError("each setting needs a (seeds, methods) array with at least one seed")
    samples = []
    for _ in range(draws):
        samples.append(np.asarray(statistic([a[rng.integers(len(a), size=len(a))] for a in arrays]), dtype=float))
    tail = (1 - level) / 2
    low, high = np.nanquantile(np.stack(samples), [tail, 1 - tail], axis=0)
    return np.asarray(statistic(arrays), dtype=float), low, high


def iqm_by_method(arrays: Sequence[np.ndarray]) -> np.ndarray:
    """(methods,) interquartile mean over all settings and seeds: a statistic for `paired_bootstrap`."""
    stacked = np.concatenate(arrays, axis=0)
    return np.array([iqm(stacked[:, j]) for j in range(stacked.shape[1])])


def improvement_probability(arrays: Sequence[np.ndarray], baseline: int = 0) -> np.ndarray:
    """(methods,) chance that a random run of a method beats a random run of the baseline in the same setting.

    Ties count one half; settings weigh the same. A statistic for `paired_bootstrap`.
    """
    chances = []
    for array in arrays:
        difference = array[:, None, :] - array[None, :, baseline, None]
        chances.append(((difference > 0) + 0.5 * (difference == 0)).mean(axis=(0, 1)))
    return np.mean(chances, axis=0)
