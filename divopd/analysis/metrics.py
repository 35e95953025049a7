"""What a learning curve says (arXiv 2609.34838, section 4), as functions of arrays.

`versions` are learner versions (updates behind the evaluated weights), strictly increasing; `success` the success rate
at each, a fraction in [0, 1]; `costs` a resource used up to each, non-decreasing. All are of one length.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

STEP = 0.05  # the default target is a multiple of this
LAST = 5  # evaluations, all after training began, that final-5 and the best five take
SUSTAINED = 3  # evaluations averaged by the sustained version of cost to target


@dataclass(frozen=True, slots=True)
class Cost:
    """Resource used to reach a target. `censored`: the run never got there, `value` is what it had used by its end."""

    value: float
    censored: bool


@dataclass(frozen=True, slots=True)
class Speedup:
    """Baseline's cost over a method's.

    `bound`: "" exact; "<" the method was censored; ">" the baseline was; "?" unknown. `value` is None where it is
    unknown (both were censored, or one of them started at the target, at no cost), and, with bound "", where there is
    nothing to compare.
    """

    value: float | None
    bound: str = ""

    @property
    def exact(self) -> float | None:
        return self.value if self.bound == "" else None


def peak(success: ArrayLike) -> float:
    """Highest success over evaluations. Biased upward: report it, never rank by it alone."""
    return float(np.max(_curve(success)))


def final(success: ArrayLike, last: int = LAST) -> tuple[float, float]:
    """Mean and standard deviation of the last five evaluations (fewer if there are fewer; NaN if there is none).

    The deviation is the sample's (n - 1): the only reading that all of the paper's main table fits. NaN for one value.
    """
    tail = np.asarray(success, dtype=float)[-last:]
    mean = float(tail.mean()) if len(tail) else math.nan
    return mean, float(tail.std(ddof=1)) if len(tail) > 1 else math.nan


def best_window(success: ArrayLike, width: int = LAST) -> float:
    """Highest mean of five consecutive evaluations (of all, if there are fewer; NaN if there is none).

    Our reading of the paper's "best five", which it does not define; less biased upward than the peak.
    """
    curve = np.asarray(success, dtype=float)
    if not len(curve):
        return math.nan
    width = min(width, len(curve))
    return float(np.convolve(curve, np.ones(width) / width, mode="valid").max())


def common_horizon(last_versions: Iterable[int]) -> int:
    """U: the smallest last-evaluated version among the compared runs."""
    return min(last_versions)


def nauc(versions: ArrayLike, success: ArrayLike, horizon: float, diverged: bool = False) -> float:
    """Area under linearly interpolated, unsmoothed success from version 0 to `horizon`, divided by `horizon`.

    A diverged run counts as success 0 after its last evaluation (ours). Raises ValueError if version 0 was not
    evaluated or a run that did not diverge stops before the horizon.
    """
    x, y = _increasing(versions), _curve(success)
    if x[0] != 0:
        raise ValueError(f"nAUC needs an evaluation of version 0; the first one is {x[0]:g}")
    if horizon <= 0:
        return math.nan
    if x[-1] < horizon:
        if not diverged:
            raise ValueError(f"nAUC to version {horizon:g} needs an evaluation there; the last one is {x[-1]:g}")
        x, y = np.r_[x, np.nextafter(x[-1], np.inf), horizon], np.r_[y, 0.0, 0.0]
    inside = x < horizon
    grid = np.r_[x[inside], horizon]
    return float(np.trapezoid(np.r_[y[inside], np.interp(horizon, x, y)], grid) / horizon)


def default_target(success: ArrayLike, step: float = STEP) -> float | None:
    """Largest multiple of `step` not above the baseline's peak; None if that is not above its first evaluation.

    Fixed from the baseline alone, before other methods are read (ours; the paper's six values follow no stated rule).
    """
    curve = _curve(success)
    target = math.floor(float(curve.max()) / step + 1e-9) * step
    return round(target, 10) if target > curve[0] else None


def cost_to_target(success: ArrayLike, costs: ArrayLike, target: float, window: int = 1) -> Cost:
    """Cumulative cost through the first evaluation with success >= target.

    With `window` > 1 the mean of that many consecutive evaluations must reach the target, and the cost is that of the
    last of them, at which it is known.
    """
    curve, used = _curve(success), np.asarray(costs, dtype=float)
    if used.shape != curve.shape:
        raise ValueError(f"{len(curve)} evaluations, {used.size} costs")
    if len(curve) >= window:
        means = np.convolve(curve, np.ones(window) / window, mode="valid")
        hits = np.flatnonzero(means >= target - 1e-12)
        if len(hits):
            return Cost(float(used[hits[0] + window - 1]), False)
    return Cost(float(used[-1]), True)


def costs_to_targets(success: ArrayLike, costs: ArrayLike, targets: ArrayLike) -> np.ndarray:
    """(targets,) `cost_to_target` of many targets at once; NaN where the run is censored."""
    curve, used = _curve(success), np.asarray(costs, dtype=float)
    first = np.searchsorted(np.maximum.accumulate(curve), np.asarray(targets, dtype=float) - 1e-12)
    return np.where(first < len(curve), used[np.minimum(first, len(curve) - 1)], np.nan)


def speedup(baseline: Cost, method: Cost) -> Speedup:
    """C_baseline / C_method. One censored side leaves a bound, two leave nothing."""
    if (baseline.censored and method.censored) or method.value <= 0 or baseline.value <= 0:
        return Speedup(None, "?")
    return Speedup(baseline.value / method.value, "<" if method.censored else ">" if baseline.censored else "")


def geometric_mean(values: Iterable[float | None]) -> float | None:
    """Geometric mean of the values that are there; None if none is."""
    logs = [math.log(value) for value in values if value is not None]
    return math.exp(sum(logs) / len(logs)) if logs else None


def combine(speedups: Iterable[Speedup]) -> Speedup:
    """Geometric mean of the speedups of several runs, censored ones at their bounds: then it is a bound itself.

    Never a mean of the exact ones alone, which would forget the runs that did worst. Unknown where one of them is, and
    where there are bounds of both kinds; those with nothing to compare do not count.
    """
    present = [s for s in speedups if s.value is not None or s.bound]
    bounds = {s.bound for s in present} - {""}
    if "?" in bounds or len(bounds) > 1:
        return Speedup(None, "?")
    return Speedup(geometric_mean(s.value for s in present), bounds.pop() if bounds else "")


def reach_rate(reached: Iterable[bool]) -> float:
    """Share of runs that reached the target; NaN without runs."""
    flags = list(reached)
    return sum(flags) / len(flags) if flags else math.nan


def cumulative_at(versions: ArrayLike, per_update: ArrayLike) -> np.ndarray:
    """Sum of a per-update quantity (update 0, 1, ...) over the updates behind each version.

    A version past the last logged update takes all there is.
    """
    total = np.r_[0.0, np.cumsum(np.asarray(per_update, dtype=float))]
    return total[np.minimum(np.asarray(versions, dtype=int), len(total) - 1)]


def running_at(versions: ArrayLike, running: ArrayLike) -> np.ndarray:
    """The same for a quantity that is logged as a running total at the end of each update."""
    total = np.r_[0.0, np.asarray(running, dtype=float)]
    return total[np.minimum(np.asarray(versions, dtype=int), len(total) - 1)]


def _curve(success: ArrayLike) -> np.ndarray:
    curve = np.asarray(success, dtype=float)
    if curve.ndim != 1 or len(curve) == 0:
        raise ValueError("a learning curve needs at least one evaluation")
    return curve


def _increasing(versions: ArrayLike) -> np.ndarray:
    x = _curve(versions)
    if (np.diff(x) <= 0).any():
        raise ValueError("evaluated versions must increase")
    return x
