"""Batch composition, by hand."""

from __future__ import annotations

import math
import pickle
from typing import Any

import numpy as np
import pytest

from divopd.candidates import Candidates
from divopd.diagnostics import RolloutUse, batch_diagnostics, column_diagnostics, depth_counts, gini
from divopd.types import DropReason, Turn


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
        make_turn(2, 11, start=38, version=5, teacher_mask=np.array([True, False]), rollout_success=True),  # 40
    ]
    result = batch_diagnostics(batch, update=5)
    shares = np.array([30, 10, 40]) / 80
    depths = {name: count for name, count in result.items() if name.startswith("selected_") and count}
    assert depths == {"selected_0_2_failure": 3, "selected_10_up_success": 1}
    assert {name: value for name, value in result.items() if not name.startswith("selected_")} == {
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


def test_columns_give_what_turns_give() -> None:
    batch = [make_turn(0, 0, start=8), make_turn(0, 1, start=18), make_turn(1, 0, prompt_truncated=True)]
    assert column_diagnostics(Candidates.from_turns(batch, 4)) == batch_diagnostics(batch, 4)


def test_depth_classes_by_hand() -> None:
    turn = np.array([0, 1, 2, 5, 6, 9, 10, 29])
    success = np.array([True, False, True, True, False, False, False, True])
    counts = depth_counts(turn, success)
    assert list(counts)[:3] == [("0-2", "failure"), ("0-2", "success"), ("2-4", "failure")]
    assert counts == {
        ("0-2", "failure"): 1, ("0-2", "success"): 1, ("2-4", "failure"): 0, ("2-4", "success"): 1,
        ("4-6", "failure"): 0, ("4-6", "success"): 1, ("6-10", "failure"): 2, ("6-10", "success"): 0,
        ("10+", "failure"): 1, ("10+", "success"): 1,
    }  # fmt: skip


def test_use_of_rollouts_by_hand() -> None:
    """Four rollouts of two turns: both taken; one taken; dead; none taken while one waits, until it is dropped."""
    rollouts = [[make_turn(r, i) for i in range(2)] for r in range(4)]
    use = RolloutUse()
    assert use.row()["valid_rollouts"] == 0 and math.isnan(use.row()["never_selected_share"])
    for r, turns in enumerate(rollouts):
        use.arrive(turns, valid=r != 2)
    assert use.row() == pytest.approx(
        {"valid_rollouts": 0, "undecided_rollouts": 3, "never_selected_share": math.nan, "selected_gini": math.nan},
        nan_ok=True,
    )
    for turn in (rollouts[0][0], rollouts[0][1], rollouts[1][0]):
        turn.selected_at = 5
    rollouts[3][0].dropped = DropReason.STALE
    assert use.row() == pytest.approx(
        {"valid_rollouts": 2, "undecided_rollouts": 1, "never_selected_share": 0.0, "selected_gini": 1 / 6}
    )
    use = pickle.loads(pickle.dumps((use, rollouts)))[0]  # as in a resume point, beside the turns themselves
    use._open[-1].dropped = DropReason.UNREAD  # the run is over: its fate stays open
    assert use.row()["undecided_rollouts"] == 1
    use._open[-1].dropped = DropReason.STALE
    assert use.row() == pytest.approx(
        {"valid_rollouts": 3, "undecided_rollouts": 0, "never_selected_share": 1 / 3, "selected_gini": 4 / 9}
    )
