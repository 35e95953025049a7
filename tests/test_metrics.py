"""Metrics and intervals against values worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from divopd.analysis import metrics
from divopd.analysis.metrics import Cost, Speedup
from divopd.analysis.uncertainty import improvement_probability, iqm, iqm_by_method, paired_bootstrap, wilson
from divopd.paper import reported

CURVE = [0.20, 0.30, 0.25, 0.50, 0.45]
VERSIONS = [0, 10, 20, 30, 40]
TOKENS = [0.0, 100.0, 220.0, 300.0, 420.0]


def test_peak_is_the_highest_evaluation():
    assert metrics.peak(CURVE) == 0.50


def test_final_takes_five_and_the_samples_deviation():
    mean, std = metrics.final([0.9, *CURVE])
    # deviations from 0.34: -.14 -.04 -.09 .16 .11 -> squares sum to .0670, over 4
    assert mean == pytest.approx(0.34)
    assert std == pytest.approx(math.sqrt(0.0670 / 4))
    assert metrics.final([0.5])[0] == 0.5 and math.isnan(metrics.final([0.5])[1])


def test_best_five_are_consecutive():
    # means of five: .34 for .20 .. .45, .38 for .30 .. .40; the five highest would give .41
    assert metrics.best_window([*CURVE, 0.40]) == pytest.approx(0.38)
    assert metrics.best_window([0.2, 0.4]) == pytest.approx(0.3)


def test_the_papers_deviations_are_sample_deviations():
    # 140 games: final-5 of 84.57 +- 1.48 needs whole numbers of wins whose squared deviations sum to 4 or 5 std^2
    wins = round(84.57 * 140 * 5 / 100)

    def fits(divisor: int) -> bool:
        low, high = (divisor * ((1.48 + e) * 1.4) ** 2 for e in (-0.005, 0.005))
        return any(low <= k - wins**2 / 5 <= high for k in range(wins**2 // 5, wins**2 // 5 + 60))

    assert fits(4) and not fits(5)


def test_nauc_is_the_area_under_straight_lines():
    # (.2+.3)/2*10 + (.3+.25)/2*10 + (.25+.5)/2*10 + (.5+.45)/2*10 = 13.75
    assert metrics.nauc(VERSIONS, CURVE, 40) == pytest.approx(13.75 / 40)
    # to 25: 2.5 + 2.75 + (.25 + .375)/2*5 = 6.8125
    assert metrics.nauc(VERSIONS, CURVE, 25) == pytest.approx(6.8125 / 25)


def test_nauc_counts_a_diverged_run_as_zero_after_its_end():
    assert metrics.nauc([0, 10], [0.2, 0.4], 40, diverged=True) == pytest.approx(3.0 / 40)
    with pytest.raises(ValueError, match="last one is 10"):
        metrics.nauc([0, 10], [0.2, 0.4], 40)
    with pytest.raises(ValueError, match="version 0"):
        metrics.nauc([5, 10], [0.2, 0.4], 10)
    with pytest.raises(ValueError, match="increase"):
        metrics.nauc([0, 10, 10], [0.2, 0.4, 0.4], 10)


def test_common_horizon_is_the_shortest_run():
    assert metrics.common_horizon([250, 240, 245]) == 240


@pytest.mark.parametrize(
    ("curve", "target"),
    [(CURVE, 0.50), ([0.2, 0.499], 0.45), ([0.1, 0.35, 0.3], 0.35), ([0.52, 0.54], None), ([0.4, 0.2], None)],
)
def test_default_target(curve: list[float], target: float | None):
    assert metrics.default_target(curve) == target


def test_cost_to_target_is_paid_through_the_first_evaluation_there():
    assert metrics.cost_to_target(CURVE, TOKENS, 0.30) == Cost(100.0, False)
    assert metrics.cost_to_target(CURVE, TOKENS, 0.31) == Cost(300.0, False)
    assert metrics.cost_to_target(CURVE, TOKENS, 0.51) == Cost(420.0, True)
    assert metrics.cost_to_target([0.1 + 0.2], [5.0], 0.3) == Cost(5.0, False)  # to rounding


def test_many_targets_at_once_agree_with_one_by_one():
    targets = [0.05, 0.20, 0.30, 0.31, 0.50, 0.51, 0.9]
    one = [metrics.cost_to_target(CURVE, TOKENS, target) for target in targets]
    wanted = [math.nan if cost.censored else cost.value for cost in one]
    assert np.array_equal(metrics.costs_to_targets(CURVE, TOKENS, targets), wanted, equal_nan=True)


def test_sustained_cost_needs_the_mean_of_three():
    # means: .25 at the third, .35 at the fourth, .40 at the fifth evaluation
    assert metrics.cost_to_target(CURVE, TOKENS, 0.25, 3) == Cost(220.0, False)
    assert metrics.cost_to_target(CURVE, TOKENS, 0.40, 3) == Cost(420.0, False)
    assert metrics.cost_to_target(CURVE, TOKENS, 0.41, 3) == Cost(420.0, True)
    assert metrics.cost_to_target([0.9, 0.9], [1.0, 2.0], 0.5, 3) == Cost(2.0, True)
    with pytest.raises(ValueError, match="5 evaluations, 2 costs"):
        metrics.cost_to_target(CURVE, [1.0, 2.0], 0.5)


def test_speedup_and_its_bounds():
    assert metrics.speedup(Cost(300, False), Cost(100, False)) == Speedup(3.0, "")
    assert metrics.speedup(Cost(300, False), Cost(400, True)) == Speedup(0.75, "<")
    assert metrics.speedup(Cost(300, True), Cost(100, False)) == Speedup(3.0, ">")
    assert metrics.speedup(Cost(300, True), Cost(100, True)) == Speedup(None, "?")
    assert metrics.speedup(Cost(300, False), Cost(0, False)) == Speedup(None, "?")
    assert Speedup(2.0, "<").exact is None and Speedup(2.0).exact == 2.0


def test_geometric_mean_and_reach_rate():
    assert metrics.geometric_mean([1.0, 4.0, None]) == pytest.approx(2.0)
    assert metrics.geometric_mean([None]) is None
    assert metrics.reach_rate([True, False, True, True]) == 0.75
    assert math.isnan(metrics.reach_rate([]))


def test_speedups_combine_to_a_bound_when_one_is_a_bound():
    exact, slow, quick = Speedup(4.0), Speedup(0.25, "<"), Speedup(9.0, ">")
    assert metrics.combine([exact, Speedup(1.0)]) == Speedup(pytest.approx(2.0), "")
    assert metrics.combine([exact, slow]) == Speedup(pytest.approx(1.0), "<")  # (4 x 1/4)^(1/2)
    assert metrics.combine([exact, quick]) == Speedup(pytest.approx(6.0), ">")
    assert metrics.combine([exact, slow, quick]) == Speedup(None, "?")
    assert metrics.combine([exact, Speedup(None, "?")]) == Speedup(None, "?")
    assert metrics.combine([exact, Speedup(None)]) == Speedup(pytest.approx(4.0), "")
    assert metrics.combine([]) == metrics.combine([Speedup(None)]) == Speedup(None)


def test_geometric_mean_of_the_papers_token_speedups():
    table = reported("main_results")
    divopd = table.loc[table["method"] == "divopd", "token_speedup"]
    assert metrics.geometric_mean(divopd) == pytest.approx((2.05 * 1.92 * 2.22 * 1.77 * 1.54 * 1.62) ** (1 / 6))


def test_costs_at_a_version_count_the_updates_behind_it():
    assert metrics.cumulative_at([0, 1, 3, 9], [10, 20, 30]).tolist() == [0, 10, 60, 60]
    assert metrics.running_at([0, 1, 3, 9], [10, 30, 60]).tolist() == [0, 10, 60, 60]
    assert metrics.cumulative_at([0], []).tolist() == [0]


@given(st.lists(st.integers(0, 140), min_size=2, max_size=30), st.integers(1, 19))
def test_speedup_of_a_run_over_itself_is_one(wins: list[int], fifths: int):
    curve = np.array(wins) / 140
    cost = metrics.cost_to_target(curve, np.arange(1, len(wins) + 1), fifths / 20)
    assert metrics.speedup(cost, cost).value in (None, 1.0)
    assert cost.censored == (curve.max() < fifths / 20 - 1e-12)
    area = metrics.nauc(np.arange(len(wins)), curve, len(wins) - 1)
    assert curve.min() - 1e-12 <= area <= curve.max() + 1e-12


def test_wilson_against_worked_values():
    # p = .5, n = 100, z = 1.95996: half-width z/(1+z^2/n) * sqrt(.0025 + z^2/(4 n^2)) = .09617
    low, high = wilson(50, 100)
    assert (float(low), float(high)) == pytest.approx((0.40383, 0.59617), abs=1e-5)
    low, high = wilson([0, 10], [10, 10])
    assert low.tolist() == pytest.approx([0.0, 0.72247], abs=1e-5)
    assert high.tolist() == pytest.approx([0.27753, 1.0], abs=1e-5)
    assert low[0] == 0.0 and high[1] == 1.0
    with pytest.raises(ValueError, match="successes"):
        wilson(5, 4)


def test_iqm_cuts_a_quarter_at_each_end():
    assert iqm([100, 1, 2, 3, 4, 5, 6, -50]) == pytest.approx((2 + 3 + 4 + 5) / 4)
    assert iqm([1.0, 3.0]) == 2.0
    assert iqm_by_method([np.array([[1.0, 10.0]]), np.array([[3.0, 30.0]])]).tolist() == [2.0, 20.0]


def test_improvement_probability_counts_ties_one_half():
    # baseline 1, 2; method 2, 3: of four pairs three are won and one is a tie
    array = np.array([[1.0, 2.0], [2.0, 3.0]])
    assert improvement_probability([array]).tolist() == [0.5, 0.875]
    # a second setting in which the method always loses weighs the same
    assert improvement_probability([array, np.array([[5.0, 1.0]])])[1] == pytest.approx(0.875 / 2)


def test_bootstrap_is_paired_stratified_and_seeded():
    rng = np.random.default_rng(0)
    noise = rng.normal(0, 10, size=(8, 1))
    scores = {"a": np.hstack([noise, noise + 1.0]), "b": np.hstack([noise + 50, noise + 51.0])}

    def gain(arrays):
        return np.mean([(x[:, 1] - x[:, 0]).mean() for x in arrays])

    # seeds differ wildly, pairs do not: the difference has no spread
    point, low, high = paired_bootstrap(scores, gain, np.random.default_rng(1), draws=200)
    assert (float(point), float(low), float(high)) == pytest.approx((1.0, 1.0, 1.0))
    one = paired_bootstrap(scores, iqm_by_method, np.random.default_rng(1), draws=200)
    two = paired_bootstrap(scores, iqm_by_method, np.random.default_rng(1), draws=200)
    assert all(np.array_equal(x, y) for x, y in zip(one, two, strict=True))
    assert (one[1] < one[0]).all() and (one[0] < one[2]).all()
    with pytest.raises(ValueError, match="seed"):
        paired_bootstrap({"a": np.empty((0, 2))}, gain, rng)


def test_bootstrap_interval_covers_about_as_often_as_it_says():
    rng = np.random.default_rng(5)
    covered = 0
    for _ in range(100):
        sample = {"a": rng.normal(0, 1, size=(20, 1))}
        _, low, high = paired_bootstrap(sample, lambda a: a[0].mean(), rng, draws=300)
        covered += bool(low <= 0 <= high)
    assert 85 <= covered <= 100
