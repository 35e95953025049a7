"""The peak's bias against its exact value."""

from __future__ import annotations

from math import comb

import numpy as np
import pytest

from divopd.analysis.simulate import peak_bias, smoothed


def exact(truth: list[float], n: int) -> float:
    """E[max of independent binomials] / n - max(truth): E[max] = sum over k of 1 - prod of P(wins <= k)."""

    def at_most(k: int, p: float) -> float:
        return sum(comb(n, i) * p**i * (1 - p) ** (n - i) for i in range(k + 1))

    return sum(1 - np.prod([at_most(k, p) for p in truth]) for k in range(n)) / n - max(truth)


def test_one_game_by_hand():
    # two fair coins: one of them wins with 3/4
    assert exact([0.5, 0.5], 1) == pytest.approx(0.25)
    assert peak_bias([0.5, 0.5], 1, np.random.default_rng(0), draws=20_000) == pytest.approx(0.25, abs=0.01)


@pytest.mark.parametrize(("truth", "n"), [([0.3, 0.6, 0.6, 0.6], 20), ([0.1, 0.9], 50), ([0.7] * 10, 128)])
def test_bias_agrees_with_its_exact_value(truth: list[float], n: int):
    got = peak_bias(truth, [n] * len(truth), np.random.default_rng(1), draws=8000)
    assert got == pytest.approx(exact(truth, n), abs=0.002)


def test_no_bias_without_noise_or_choice():
    rng = np.random.default_rng(2)
    assert peak_bias([0.0, 1.0], 10, rng) == 0.0
    assert peak_bias([0.4], 100, rng, draws=20_000) == pytest.approx(0.0, abs=0.002)
    with pytest.raises(ValueError, match="episode"):
        peak_bias([0.4], [0], rng)
    with pytest.raises(ValueError, match="evaluation"):
        peak_bias([], [], rng)


def test_smoothing_by_hand():
    assert smoothed([0.0, 0.3, 0.6, 0.3, 0.3]).tolist() == pytest.approx([0.0, 0.3, 0.3, 0.4, 0.3])
    assert smoothed([0.2, 0.4, 0.9], window=1).tolist() == pytest.approx([0.2, 0.4, 0.9])
    line = np.linspace(0.1, 0.9, 9)
    assert smoothed(line) == pytest.approx(line)  # a straight rise stays what it is
