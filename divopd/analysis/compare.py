"""A method beside its baseline: runs of one setting and seed are a pair, seeds are what is resampled.

Reads the report's summary (a row a run). Settings weigh the same; a seed that only one of the two has does not count.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from divopd.analysis import metrics
from divopd.analysis.labels import ordered
from divopd.analysis.uncertainty import (
    Interval,
    improvement_probability,
    iqm_by_method,
    mean_gain,
    mean_interval,
    paired_bootstrap,
)
from divopd.seeds import rng

SCORE = "final5_mean"


@dataclass(frozen=True, slots=True)
class Comparison:
    """A method against the baseline over settings. `iqm` is the method's own; `gain` = method - baseline.

    `better`: chance that a run of the method beats one of the baseline in the same setting, ties one half. Intervals
    are stratified bootstraps; without bounds where some setting has a single pair.
    """

    method: str
    settings: int
    pairs: int
    iqm: Interval
    gain: Interval
    better: Interval


def paired_scores(summary: pd.DataFrame, method: str, baseline: str, score: str = SCORE) -> dict[str, np.ndarray]:
    """Setting -> (seeds, 2) scores of baseline and method, a row a seed that both have."""
    theirs = {
        name: summary[summary["method"] == name].set_index(["setting", "seed"])[score] for name in (baseline, method)
    }
    scores = {}
    for setting in summary["setting"].unique():
        sides = [side.xs(setting) for side in theirs.values() if setting in side.index.get_level_values("setting")]
        if len(sides) < len(theirs):
            continue
        wide = pd.concat([sides[0], sides[-1]], axis=1, join="inner").dropna().sort_index()
        if len(wide):
            scores[str(setting)] = wide.to_numpy(dtype=float)
    return scores


def against(summary: pd.DataFrame, method: str, baseline: str, score: str = SCORE) -> Comparison | None:
    """The method against the baseline over all settings that have a pair; None where none has.

    The baseline against itself has no gain to speak of: its `gain` is 0 and `better` one half, without bounds.
    """
    scores = paired_scores(summary, method, baseline, score)
    if not scores:
        return None
    pairs = sum(len(array) for array in scores.values())
    iqm, gain, better = (
        _bootstrap(scores, name, statistic)
        for name, statistic in (("iqm", iqm_by_method), ("gain", mean_gain), ("better", improvement_probability))
    )
    if method == baseline:
        gain, better = Interval(0.0), Interval(0.5)
    return Comparison(method, len(scores), pairs, iqm, gain, better)


def compare(summary: pd.DataFrame, baseline: str, score: str = SCORE) -> list[Comparison]:
    """Every method of the summary against the baseline, in the usual order; those without a pair are left out."""
    found = (against(summary, method, baseline, score) for method in ordered(summary["method"]))
    return [comparison for comparison in found if comparison is not None]


def by_setting(summary: pd.DataFrame, baseline: str, score: str = SCORE) -> pd.DataFrame:
    """A row a (setting, method): pairs, mean paired gain over the baseline, its 95 % t interval (NaN for one pair)."""
    rows = []
    for method in ordered(summary["method"]):
        for setting, pairs in paired_scores(summary, method, baseline, score).items():
            gain = over_seeds(pairs[:, 1] - pairs[:, 0])
            rows.append({"setting": setting, "method": method, "pairs": len(pairs), "gain": gain.value,
                         "gain_low": gain.low, "gain_high": gain.high})  # fmt: skip
    return pd.DataFrame(rows, columns=["setting", "method", "pairs", "gain", "gain_low", "gain_high"])


def over_seeds(values: ArrayLike) -> Interval:
    """Mean of one cell's seeds with its 95 % t interval. NaN values (nothing measured) do not count."""
    known = np.asarray(values, dtype=float)
    known = known[~np.isnan(known)]
    return Interval(*(float(x) for x in mean_interval(known))) if len(known) else Interval(math.nan)


def geometric_over_seeds(values: ArrayLike) -> Interval:
    """Geometric mean of positive values of one cell's seeds with its interval, by way of their logarithms."""
    logs = over_seeds(np.log(np.asarray(values, dtype=float)))
    return Interval(*(math.exp(x) for x in (logs.value, logs.low, logs.high)))


def geometric_over_settings(values: dict[str, np.ndarray], name: str) -> Interval:
    """Geometric mean of positive values, (seeds,) a setting, settings alike, with a stratified bootstrap interval.

    `name` is the seed of its draws.
    """

    def mean_log(arrays: Sequence[np.ndarray]) -> np.ndarray:
        return np.mean([array.mean(axis=(-2, -1)) for array in arrays], axis=0)

    logs = {setting: np.log(np.asarray(each, dtype=float))[:, None] for setting, each in values.items()}
    return _interval(
        logs, *(np.exp(x) for x in paired_bootstrap(logs, mean_log, rng("report", "bootstrap", name), batched=True))
    )


def _bootstrap(
    scores: dict[str, np.ndarray], name: str, statistic: Callable[[Sequence[np.ndarray]], np.ndarray]
) -> Interval:
    """The method's side of a statistic. One stream a statistic: methods with the same seeds are resampled alike."""
    paired = statistic is not improvement_probability
    draws = rng("report", "bootstrap", name)
    point, low, high = paired_bootstrap(scores, statistic, draws, batched=True, paired=paired)
    return _interval(scores, point[1], low[1], high[1])


def _interval(scores: dict[str, np.ndarray], point: ArrayLike, low: ArrayLike, high: ArrayLike) -> Interval:
    if min(len(array) for array in scores.values()) < 2:  # such a setting would add no spread, as if it had none
        return Interval(float(np.asarray(point)))
    return Interval(*(float(np.asarray(x)) for x in (point, low, high)))


def cell_speedup(runs: pd.DataFrame, resource: str, prefix: str = "") -> metrics.Speedup:
    """One cell's speedup over its seeds, `prefix` "sustained_" for the sustained one: metrics.combine."""
    values = runs[f"{prefix}speedup_{resource}"].astype(float)
    bounds = runs[f"{prefix}bound_{resource}"].astype("string").fillna("")
    pairs = zip(values, bounds, strict=True)
    return metrics.combine(metrics.Speedup(None if math.isnan(value) else value, bound) for value, bound in pairs)


def speedup_spread(runs: pd.DataFrame, resource: str, prefix: str = "") -> Interval | None:
    """The interval of a cell's exact speedup over its seeds; None where one of them is a bound or unknown."""
    gain = cell_speedup(runs, resource, prefix)
    values = runs[f"{prefix}speedup_{resource}"].astype(float).dropna()
    return geometric_over_seeds(values) if gain.value is not None and not gain.bound else None
