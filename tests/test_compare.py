"""Methods beside their baseline: pairs, gains and intervals by hand, and how often intervals hold the truth."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest

from divopd.analysis import compare
from divopd.analysis.uncertainty import (
    Interval,
    improvement_probability,
    iqm_by_method,
    mean_gain,
    mean_interval,
    paired_bootstrap,
)


def runs(*rows: tuple[str, str, int, float]) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=["setting", "method", "seed", "final5_mean"])


TWO = runs(
    ("a", "vanilla", 0, 0.2), ("a", "vanilla", 1, 0.4), ("a", "divopd", 1, 0.5), ("a", "divopd", 0, 0.4),
    ("b", "vanilla", 0, 0.6), ("b", "divopd", 0, 0.5), ("b", "divopd", 2, 0.9),  # seed 2 has no pair
    ("c", "divopd", 0, 0.1),  # no baseline
)  # fmt: skip


def test_pairs_are_runs_of_one_setting_and_seed():
    scores = compare.paired_scores(TWO, "divopd", "vanilla")
    assert {name: array.tolist() for name, array in scores.items()} == {
        "a": [[0.2, 0.4], [0.4, 0.5]],
        "b": [[0.6, 0.5]],
    }
    assert compare.paired_scores(TWO, "top_b", "vanilla") == {}


def test_a_comparison_by_hand():
    one = compare.against(TWO, "divopd", "vanilla")
    assert one is not None and (one.settings, one.pairs) == (2, 3)
    # gains .2 and .1 in a, -.1 in b: (.15 - .1) / 2; of a's four pairs .4/.5 against .2/.4 three win and one ties
    assert one.gain.value == pytest.approx(0.025)
    assert one.better.value == pytest.approx((3.5 / 4 + 0) / 2)
    assert one.iqm.value == pytest.approx((0.4 + 0.5 + 0.5) / 3)
    assert not one.gain.known and not one.iqm.known  # b has one pair: nothing is known of its spread
    assert compare.against(TWO, "top_b", "vanilla") is None
    itself = compare.against(TWO, "vanilla", "vanilla")
    assert itself is not None and (itself.gain, itself.better) == (Interval(0.0), Interval(0.5))
    assert [c.method for c in compare.compare(TWO, "vanilla")] == ["vanilla", "divopd"]


def test_a_constant_gain_has_no_spread_however_much_seeds_differ():
    rows = [("a", m, i, x + g) for i, x in enumerate((0.1, 0.5, 0.9)) for m, g in (("vanilla", 0.0), ("divopd", 0.05))]
    one = compare.against(runs(*rows), "divopd", "vanilla")
    assert one is not None and one.gain.known
    assert (one.gain.value, one.gain.low, one.gain.high) == pytest.approx((0.05, 0.05, 0.05))
    assert one.iqm.low < one.iqm.value < one.iqm.high
    table = compare.by_setting(runs(*rows), "vanilla").set_index("method")
    assert table.loc["divopd", ["pairs", "gain", "gain_low", "gain_high"]].tolist() == pytest.approx(
        [3, 0.05, 0.05, 0.05]
    )


def test_t_interval_by_hand():
    # 1, 2, 3: mean 2, s = 1, t(2) = 4.3027 -> 4.3027 / sqrt(3) = 2.4842
    mean, low, high = mean_interval([1.0, 2.0, 3.0])
    assert (float(mean), float(low), float(high)) == pytest.approx((2.0, -0.4842, 4.4842), abs=1e-4)
    several = mean_interval([[1.0, 5.0], [2.0, 5.0], [3.0, 5.0]])
    assert [x.tolist() for x in several] == [pytest.approx(v, abs=1e-4) for v in ([2, 5], [-0.4842, 5], [4.4842, 5])]
    assert math.isnan(mean_interval([3.0])[1])
    with pytest.raises(ValueError, match="at least one seed"):
        mean_interval([])


# scipy.stats.t.ppf(0.975, n - 1)
@pytest.mark.parametrize(
    ("seeds", "quantile"),
    [(2, 12.706204736174694), (3, 4.302652729749462), (4, 3.1824463052837078), (5, 2.7764451051977934),
     (6, 2.5705818356363146), (10, 2.262157162798205), (21, 2.085963447265864), (61, 2.0002978220142604),
     (201, 1.9718962236339088)],
)  # fmt: skip
def test_t_quantiles_are_exact(seeds: int, quantile: float):
    x = np.arange(seeds) % 2.0
    t = (float(mean_interval(x)[2]) - x.mean()) / (x.std(ddof=1) / np.sqrt(seeds))
    assert t == pytest.approx(quantile, rel=1e-12)


def test_scores_that_rounding_alone_tells_apart_are_ties():
    same = 0.1 + 0.2  # 0.30000000000000004
    rows = [("a", m, i, x) for i in range(3) for m, x in (("vanilla", 0.3), ("divopd", same if i else 0.3))]
    one = compare.against(runs(*rows), "divopd", "vanilla")
    assert one is not None and one.better.value == 0.5


def test_means_over_seeds_leave_out_what_was_not_measured():
    assert compare.over_seeds([0.4, np.nan]).value == 0.4
    assert math.isnan(compare.over_seeds([np.nan]).value)
    # logs 0 and log 4: mean log 2, half-width 12.7062047 * log 4 / sqrt 2 / sqrt 2
    gain = compare.geometric_over_seeds([1.0, 4.0])
    assert gain.value == pytest.approx(2.0)
    assert (gain.low, gain.high) == pytest.approx((2 * 4**-6.353102368, 2 * 4**6.353102368))
    over = compare.geometric_over_settings({"a": np.array([4.0]), "b": np.array([1.0])}, "x")
    assert over.value == pytest.approx(2.0) and not over.known


def test_the_bootstraps_spread_of_a_mean_is_its_standard_error():
    # two seeds 0 and 1: one of them is drawn, variance 1/4 = s^2 / n; drawing both would give 1/8
    means: list[float] = []

    def mean(arrays):
        means.append(float(np.mean(arrays[0])))
        return means[-1]

    paired_bootstrap({"a": np.array([[0.0], [1.0]])}, mean, np.random.default_rng(0), draws=2000)
    assert np.var(means[:2000]) == pytest.approx(0.25, abs=0.005)


@pytest.mark.parametrize("statistic", [iqm_by_method, mean_gain, improvement_probability])
def test_all_draws_at_once_are_the_draws_one_by_one(statistic):
    rng = np.random.default_rng(3)
    scores = {"a": rng.normal(size=(4, 3)), "b": rng.normal(size=(3, 3))}
    for paired in (True, False):
        one, all_ = (
            paired_bootstrap(scores, statistic, np.random.default_rng(1), draws=50, batched=b, paired=paired)
            for b in (False, True)
        )
        assert all(np.allclose(x, y, rtol=0, atol=1e-12) for x, y in zip(one, all_, strict=True))


def test_the_chance_of_improvement_lies_where_its_draws_do():
    # seeds differ more than methods: of nine comparisons six are won; drawn as pairs, those of a seed with itself, all
    # won, would count for more than a third
    rows = [("a", m, i, x + g) for i, x in enumerate((0.1, 0.5, 0.9)) for m, g in (("vanilla", 0.0), ("divopd", 0.05))]
    one = compare.against(runs(*rows), "divopd", "vanilla")
    assert one is not None and one.better.value == pytest.approx(6 / 9)
    scores = compare.paired_scores(runs(*rows), "divopd", "vanilla")
    means = []
    for paired in (True, False):

        def mean_of_draws(arrays):
            means.append(improvement_probability(arrays)[..., 1].mean())
            return improvement_probability(arrays)

        paired_bootstrap(scores, mean_of_draws, np.random.default_rng(0), draws=4000, batched=True, paired=paired)
    assert means[0] > 0.72 and means[2] == pytest.approx(6 / 9, abs=0.01)  # means[1], [3]: the data themselves


@pytest.mark.parametrize(("settings", "seeds"), [(6, 3), (6, 5)])
def test_the_stratified_interval_covers_about_as_often_as_it_says(settings: int, seeds: int):
    rng = np.random.default_rng(7)
    level = rng.normal(0.5, 0.1, size=(settings, 1))
    population = level + rng.normal(0, 0.05, size=(settings, 20_000))
    truth = float(iqm_by_method([population.reshape(-1, 1)])[0])
    truths, hits, repeats = (truth, 0.02), np.zeros(2), 200
    for _ in range(repeats):
        base = level + rng.normal(0, 0.05, size=(settings, seeds))
        method = base + 0.02 + rng.normal(0, 0.03, size=base.shape)
        scores = {str(i): np.stack([base[i], method[i]], axis=1) for i in range(settings)}

        for k, (statistic, at) in enumerate(((iqm_by_method, 0), (mean_gain, 1))):
            _, low, high = paired_bootstrap(scores, statistic, rng, draws=400, batched=True)
            hits[k] += low[at] <= truths[k] <= high[at]
    assert (hits / repeats > 0.86).all() and (hits / repeats <= 1).all(), hits / repeats
