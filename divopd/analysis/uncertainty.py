"""Intervals. Seeds are the unit that is resampled: paired across methods, stratified by setting."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import ArrayLike

Z95 = 1.959963984540054  # 97.5 % quantile of the normal distribution
TIE = 1e-9  # scores this close are equal: means of rates differ by far more, or by rounding alone


@dataclass(frozen=True, slots=True)
class Interval:
    """A value with its 95 % interval; `low` and `high` are NaN where nothing is known about the spread."""

    value: float
    low: float = math.nan
    high: float = math.nan

    @property
    def known(self) -> bool:
        """Whether there are bounds."""
        return not math.isnan(self.low)


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


def mean_interval(values: ArrayLike) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Mean over seeds and its 95 % Student t interval: (mean, low, high) of (seeds, ...) values.

    For the few seeds of one cell: a percentile bootstrap of three seeds cannot leave their range and covers 75 %. NaN
    bounds for one seed.
    """
    x = np.asarray(values, dtype=float)
    if x.ndim == 0 or len(x) == 0:
        raise ValueError("an interval over seeds needs at least one seed")
    mean, n = x.mean(axis=0), len(x)
    if n == 1:
        return mean, np.full_like(mean, np.nan), np.full_like(mean, np.nan)
    half = _t95(n - 1) * x.std(axis=0, ddof=1) / math.sqrt(n)
    return mean, mean - half, mean + half


@cache
def _t95(freedom: int) -> float:
    """97.5 % quantile of Student's t, to rounding: its distribution is a finite sum (Abramowitz & Stegun 26.7.3-4)."""
    low, high = 0.0, math.pi / 2
    while low < (angle := (low + high) / 2) < high:
        low, high = (angle, high) if _t_inside(angle, freedom) < 0.95 else (low, angle)
    return math.sqrt(freedom) * math.tan(angle)


def _t_inside(angle: float, freedom: int) -> float:
    """P(|t| < sqrt(freedom) * tan(angle)) of Student's t with a whole number of degrees of freedom."""
    odd = freedom % 2
    term = math.sin(angle) * (math.cos(angle) if odd else 1.0)
    total = term if freedom > 1 else 0.0
    for k in range(2 + odd, freedom, 2):
        term *= (k - 1) / k * math.cos(angle) ** 2
        total += term
    return 2 / math.pi * (angle + total) if odd else total


def paired_bootstrap(
    scores: Mapping[str, np.ndarray],
    statistic: Callable[[Sequence[np.ndarray]], ArrayLike],
    rng: np.random.Generator,
    draws: int = 2000,
    level: float = 0.95,
    batched: bool = False,
    paired: bool = True,
    fewer: int = 1,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Point value and percentile interval of a statistic of several runs: (point, low, high).

    `scores[setting]` is (seeds, methods): a row is one seed under every method, so that pairs stay together; rows are
    drawn with replacement inside each setting, n - 1 of its n seeds: with n of n the spread of a mean is too small by
    sqrt((n - 1) / n), which for three seeds is a fifth (McCarthy & Snowden 1985). `statistic` takes those arrays in the
    order of settings and returns a number or an array; a `batched` one takes all draws at once, as (draws, seeds,
    methods), and returns (draws, ...): those of this module are. Without `paired` each method's seeds are drawn by
    themselves: for a statistic that compares all seeds with all, which pairs would bias. With one seed a setting the
    interval is the point: it says nothing about seeds. `fewer` = 0 draws n of n.
    """
    arrays = [np.asarray(values, dtype=float) for values in scores.values()]
    if not arrays or any(array.ndim != 2 or len(array) == 0 for array in arrays):
        raise ValueError("each setting needs a (seeds, methods) array with at least one seed")
    drawn = []  # (draws, seeds, methods) each
    for a in arrays:
        rows = rng.integers(len(a), size=(draws, max(1, len(a) - fewer), 1 if paired else a.shape[1]))
        drawn.append(np.take_along_axis(a[None], rows, axis=1))
    if batched:
        samples = np.asarray(statistic(drawn), dtype=float)
    else:
        samples = np.stack([np.asarray(statistic([d[i] for d in drawn]), dtype=float) for i in range(draws)])
    tail = (1 - level) / 2
    low, high = np.nanquantile(samples, [tail, 1 - tail], axis=0)
    return np.asarray(statistic(arrays), dtype=float), low, high


def iqm_by_method(arrays: Sequence[np.ndarray]) -> np.ndarray:
    """(methods,) interquartile mean over all settings and seeds: a statistic for `paired_bootstrap`."""
    ordered = np.sort(np.concatenate(arrays, axis=-2), axis=-2)
    cut = ordered.shape[-2] // 4
    return ordered[..., cut : ordered.shape[-2] - cut, :].mean(axis=-2)


def improvement_probability(arrays: Sequence[np.ndarray], baseline: int = 0) -> np.ndarray:
    """(methods,) chance that a random run of a method beats a random run of the baseline in the same setting.

    Ties, to TIE, count one half; settings weigh the same (Agarwal et al. 2021). For `paired_bootstrap`, not paired.
    """
    chances = []
    for array in arrays:
        difference = array[..., :, None, :] - array[..., None, :, baseline, None]
        chances.append(((difference > TIE) + 0.5 * (abs(difference) <= TIE)).mean(axis=(-3, -2)))
    return np.mean(chances, axis=0)


def mean_gain(arrays: Sequence[np.ndarray], baseline: int = 0) -> np.ndarray:
    """(methods,) mean difference to the baseline of the same seed; settings weigh the same. For `paired_bootstrap`."""
    return np.mean([(array - array[..., [baseline]]).mean(axis=-2) for array in arrays], axis=0)
