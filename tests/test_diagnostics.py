"""Batch composition, by hand."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from divopd.diagnostics import batch_diagnostics, gini
from divopd.types import Turn


def make_turn(rollout: int, index: int = 0, start: int = 8, version: int = 3, **change: Any) -> Turn:
    fields: dict[str, Any] = dict(
        context=np.arange(100), start=start, end=start + 2, action_mask=np.ones(2, bool),
        student_logprobs=np.array([-1.0, -2.0], np.float32), teacher_logprobs=np.array([-2.0, -2.5], np.float32),
    )  # fmt: skip
    return Turn((0, rollout, 0), index, version, **(fields | change))


def test_batch_diagnostics_by_hand() -> None:
    batch = [
        make_turn(0, 0, start=8),  # 10 row tokens
        make_turn(0, 1, start=18, version=4),  # 20
        make_turn(1, 0, start=8, prompt_truncated=True, teacher_logprobs=None),  # 10, dead
        make_turn(2, 0, start=38, version=5, teacher_mask=np.array([True, False])),  # 40
    ]
    result = batch_diagnostics(batch, update=5)
    shares = np.array([30, 10, 40]) / 80
    assert result == {
        "rows": 4,
        "rollouts": 3,
        "effective_rollouts": pytest.approx(1 / (shares**2).sum()),
        "top_rollout_token_share": pytest.approx(0.5),
        "turns_per_rollout": pytest.approx(4 / 3),
        "dead_row_share": pytest.approx(0.25),
        "kl_per_token": pytest.approx((1.5 + 1.5 + 1.0) / 5),
        "mean_age": pytest.approx((2 + 1 + 2 + 0) / 4),
        "max_age": 2,
        "row_tokens": 80,
        "response_tokens": 8,
        "valid_tokens": 5,
    }


def test_one_rollout_is_one_effective_rollout_and_equal_ones_count_in_full() -> None:
    assert batch_diagnostics([make_turn(0, i) for i in range(5)], 3)["effective_rollouts"] == pytest.approx(1)
    assert batch_diagnostics([make_turn(r) for r in range(5)], 3)["effective_rollouts"] == pytest.approx(5)


def test_an_empty_batch_and_a_dead_batch() -> None:
    empty = batch_diagnostics([], 0)
    assert empty["rows"] == 0 and math.isnan(empty["effective_rollouts"])
    dead = batch_diagnostics([make_turn(0, prompt_truncated=True)], 3)
    assert dead["dead_row_share"] == 1 and math.isnan(dead["kl_per_token"])


@pytest.mark.parametrize(("values", "expected"), [([3, 3, 3], 0.0), ([0, 0, 0, 8], 0.75), ([1, 2, 3], 2 / 9)])
def test_gini(values: list[float], expected: float) -> None:
    assert gini(np.array(values)) == pytest.approx(expected)
    pairs = np.abs(np.subtract.outer(values, values)).sum() / (2 * len(values) ** 2 * np.mean(values))
    assert gini(np.array(values)) == pytest.approx(pairs)
