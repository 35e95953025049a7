"""Gate, columns, coverage, focus: against hand-worked examples and a literal reading of Algorithm 1."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from divopd.selection import (
    Candidates,
    available_rules,
    checked_select,
    coverage,
    draws,
    focus_order,
    gate,
    load_rule,
    uniform_order,
)
from divopd.types import DropReason, Turn

Row = tuple[tuple[int, int, int], int, float, int]  # rollout, turn, s(u), first seen


def make_turn(rollout=(0, 0, 0), index=0, **change: Any) -> Turn:
    fields: dict[str, Any] = dict(
        rollout=rollout, index=index, version=0, context=np.arange(10), start=4, end=7,
        student_logprobs=np.array([-1.0, -2.0, -3.0], np.float32),
        teacher_logprobs=np.array([-1.5, -0.5, -4.0], np.float32),
        action_mask=np.array([True, True, False]),
    )  # fmt: skip
    return Turn(**(fields | change))


def pool_of(rows: list[Row], update: int = 9) -> Candidates:
    turns = []
    for arrival, (rollout, index, score, first_seen) in enumerate(rows):
        one = make_turn(rollout, index, end=5, action_mask=np.array([True]), first_seen=first_seen, arrival=arrival)
        one.student_logprobs, one.teacher_logprobs = np.array([-5.0], np.float32), np.array([-5.0 - score], np.float32)
        turns.append(one)
    return Candidates.from_turns(turns, update)


def names(pool: Candidates, chosen: np.ndarray) -> list[tuple[tuple[int, ...], int]]:
    return [(tuple(int(x) for x in pool.rollout[i]), int(pool.turn[i])) for i in chosen]


def literal(rows: list[Row], cap: int | None, budget: int, key: Any) -> list[int]:
    """Algorithm 1, steps 4 to 7, word by word."""
    groups: dict[tuple[int, int, int], list[int]] = {}
    for i, row in enumerate(rows):
        groups.setdefault(row[0], []).append(i)
    order = sorted(groups, key=lambda r: (min(rows[i][3] for i in groups[r]), r))
    for turns in groups.values():
        turns.sort(key=key)
    chosen: list[int] = []
    given_by: Counter[tuple[int, int, int]] = Counter()
    limit = cap if cap is not None else len(rows)
    while len(chosen) < budget and len(chosen) < len(rows):
        for rollout in order:
            while groups[rollout] and given_by[rollout] < limit and len(chosen) < budget:
                chosen.append(groups[rollout].pop(0))
                given_by[rollout] += 1
        limit += 1
    return chosen


@st.composite
def pools(draw: Any) -> list[Row]:
    rollouts = draw(st.lists(st.tuples(*[st.integers(0, 11)] * 3), max_size=6, unique=True))
    rows = [
        (rollout, index, float(draw(st.integers(-2, 2))), draw(st.integers(0, 3)))
        for rollout in rollouts
        for index in range(draw(st.integers(1, 7)))
    ]
    return draw(st.permutations(rows))


caps = st.one_of(st.none(), st.integers(1, 5))


# --- gate -----------------------------------------------------------------------------------------------------------

NAN, INF = np.float32("nan"), np.float32("inf")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({}, None),
        ({"response_truncated": True, "valid_action": False}, None),
        ({"teacher_mask": np.array([False, True, True])}, None),
        ({"teacher_logprobs": np.array([-1, -1, -INF], np.float32)}, None),  # not at a valid token
        ({"prompt_truncated": True}, DropReason.PROMPT_TRUNCATED),
        ({"prompt_truncated": True, "teacher_logprobs": None}, DropReason.PROMPT_TRUNCATED),  # the first one counts
        ({"end": 4}, DropReason.NO_TOKENS),
        ({"end": 11}, DropReason.NO_TOKENS),
        ({"start": 0, "end": 3}, DropReason.NO_TOKENS),
        ({"teacher_logprobs": None}, DropReason.NO_TEACHER_SCORES),
        ({"teacher_logprobs": np.zeros(2, np.float32)}, DropReason.NO_TEACHER_SCORES),
        ({"action_mask": None}, DropReason.EMPTY_ACTION_MASK),
        ({"action_mask": np.zeros(3, bool)}, DropReason.EMPTY_ACTION_MASK),
        ({"teacher_mask": np.ones(4, bool)}, DropReason.TEACHER_MASK_MISALIGNED),
        ({"teacher_mask": np.array([False, False, True])}, DropReason.NO_VALID_TOKEN),
        ({"student_logprobs": None}, DropReason.NON_FINITE),
        ({"student_logprobs": np.array([-1, NAN, -1], np.float32)}, DropReason.NON_FINITE),
        ({"teacher_logprobs": np.array([-INF, -1, -1], np.float32)}, DropReason.NON_FINITE),
    ],
)
def test_gate(change: dict[str, Any], reason: DropReason | None) -> None:
    turn = make_turn(**change)
    assert gate(turn) is reason
    columns = Candidates.from_turns([turn], 0)
    assert columns.valid[0] == (reason is None)
    assert np.isnan(columns.disagreement[0]) == (reason is not None)


# --- columns --------------------------------------------------------------------------------------------------------


def test_columns_hold_sums_over_valid_tokens() -> None:
    columns = Candidates.from_turns([make_turn(version=3, rollout_turns=5, rollout_success=True, reward=0.5)], update=5)
    assert columns.disagreement[0] == pytest.approx((-1 - 2) - (-1.5 - 0.5))
    assert columns.student_nll[0] == pytest.approx(3.0) and columns.teacher_nll[0] == pytest.approx(2.0)
    assert (columns.valid_tokens[0], columns.prompt_tokens[0], columns.response_tokens[0]) == (2, 4, 3)
    assert (columns.age[0], columns.rollout_turns[0], columns.success[0], columns.reward[0]) == (2, 5, True, 0.5)


def test_columns_are_read_only_and_groups_follow_numbers_not_text() -> None:
    columns = pool_of([((10, 0, 0), 0, 0, 0), ((9, 0, 0), 0, 0, 0), ((9, 0, 11), 0, 0, 0), ((9, 0, 2), 0, 0, 0)])
    assert columns.group.tolist() == [3, 0, 2, 1]
    with pytest.raises(ValueError, match="read-only"):
        columns.turn[0] = 1
    assert len(Candidates.from_turns([], 0)) == 0


# --- coverage and focus ---------------------------------------------------------------------------------------------

A, B, C = (0, 0, 0), (0, 1, 0), (0, 2, 0)
HAND = [(A, 0, 1.0, 2), (A, 1, 3.0, 2), (A, 2, 2.0, 2), (B, 0, -1.0, 1), (B, 1, -0.5, 2), (C, 0, 0.0, 2)]


@pytest.mark.parametrize(
    ("cap", "budget", "expected"),
    [
        # B holds the turn first seen longest ago, so it goes first; A and C tie and go by id
        (1, 3, [(B, 1), (A, 1), (C, 0)]),
        (2, 4, [(B, 1), (B, 0), (A, 1), (A, 2)]),
        (1, 5, [(B, 1), (A, 1), (C, 0), (B, 0), (A, 2)]),
        (1, 99, [(B, 1), (A, 1), (C, 0), (B, 0), (A, 2), (A, 0)]),
        (None, 4, [(B, 1), (B, 0), (A, 1), (A, 2)]),
    ],
)
def test_hand_worked(cap: int | None, budget: int, expected: list[Any]) -> None:
    pool = pool_of(HAND)
    assert names(pool, coverage(pool, focus_order(pool), cap, budget)) == expected


@settings(deadline=None, max_examples=150)
@given(pools(), caps, st.integers(0, 30))
def test_focus_is_algorithm_1(rows: list[Row], cap: int | None, budget: int) -> None:
    pool = pool_of(rows)
    chosen = coverage(pool, focus_order(pool), cap, budget)
    assert chosen.tolist() == literal(rows, cap, budget, key=lambda i: (-rows[i][2], rows[i][1]))


@settings(deadline=None, max_examples=100)
@given(pools(), caps, st.integers(0, 30), st.integers(0, 99))
def test_base_is_algorithm_1_with_drawn_order(rows: list[Row], cap: int | None, budget: int, seed: int) -> None:
    pool = pool_of(rows)
    number = draws(pool, seed)
    chosen = coverage(pool, uniform_order(pool, seed), cap, budget)
    assert chosen.tolist() == literal(rows, cap, budget, key=lambda i: -number[i])


@settings(deadline=None, max_examples=100)
@given(pools(), st.integers(1, 5), st.integers(1, 30), st.integers(0, 99))
def test_spread_and_focus_keep_their_promises(rows: list[Row], cap: int, budget: int, seed: int) -> None:
    pool = pool_of(rows)
    focus = coverage(pool, focus_order(pool), cap, budget)
    base = coverage(pool, uniform_order(pool, seed), cap, budget)
    rollouts = len({row[0] for row in rows})
    if len(rows) >= budget:
        assert len(focus) == budget
        assert len(set(pool.group[focus].tolist())) >= min(rollouts, math.ceil(budget / cap))
    # focus never changes how many turns a rollout gives
    assert Counter(pool.group[focus].tolist()) == Counter(pool.group[base].tolist())


def test_nan_goes_last() -> None:
    pool = Candidates.from_turns([make_turn(index=0, teacher_logprobs=None), make_turn(index=1), make_turn(index=2)], 0)
    assert focus_order(pool).tolist() == [1, 2, 0]


# --- draws ----------------------------------------------------------------------------------------------------------


def test_draws_do_not_depend_on_the_rest_of_the_pool() -> None:
    rows = [((0, r, 0), t, 0.0, 0) for r in range(4) for t in range(3)]
    alone, together = pool_of(rows[:3]), pool_of(rows[::-1])
    assert draws(together, 7)[::-1][:3].tolist() == draws(alone, 7).tolist()
    assert len(set(draws(together, 7).tolist())) == len(rows)
    assert len(set(draws(together, 7, per="rollout").tolist())) == 4
    assert draws(together, 8).tolist() != draws(together, 7).tolist() != draws(pool_of(rows[::-1], 10), 7).tolist()


def test_order_inside_a_rollout_is_uniform() -> None:
    pool = pool_of([(A, 0, 0, 0), (A, 1, 0, 0), (A, 2, 0, 0)])
    seen = Counter(tuple(uniform_order(pool, seed).tolist()) for seed in range(3000))
    expected = 3000 / 6
    assert set(seen) == set(itertools.permutations(range(3)))
    assert sum((n - expected) ** 2 / expected for n in seen.values()) < 20.5  # chi-square, 5 degrees, p = 0.001


def test_draws_are_uniform_and_uncorrelated_between_neighbours() -> None:
    pool = pool_of([((0, r, 0), t, 0.0, 0) for r in range(200) for t in range(20)])
    number = draws(pool, 0)
    assert np.abs(np.histogram(number, 10, (0, 1))[0] - 400).max() < 80  # 4 standard deviations
    assert abs(np.corrcoef(number[1:], number[:-1])[0, 1]) < 0.06


# --- identities that hold for any full batch (paper, section 3) ------------------------------------------------------


@pytest.fixture(scope="module")
def biased() -> tuple[Candidates, np.ndarray]:
    """A pool with unequal rollouts, and a gradient of each row that depends on its rollout and its score."""
    rng = np.random.default_rng(0)
    rows = [((0, r, 0), t, float(rng.normal()), r % 3) for r, n in enumerate([1, 2, 9, 5, 7, 3]) for t in range(n)]
    pool = pool_of(rows)
    return pool, np.stack([pool.group + rng.normal(size=len(pool)), pool.disagreement, pool.turn**2], axis=1)


@pytest.mark.parametrize("rule", sorted(available_rules()))
def test_bias_is_a_covariance(rule: str, biased: tuple[Candidates, np.ndarray]) -> None:
    pool, gradient = biased
    budget, runs = 10, 50
    included, estimate = np.zeros(len(pool)), np.zeros(3)
    for seed in range(runs):
        chosen = checked_select(load_rule(rule), pool, budget, seed)
        included[chosen] += 1 / runs
        estimate += gradient[chosen].mean(axis=0) / runs
    covariance = (included[:, None] * gradient).mean(axis=0) - included.mean() * gradient.mean(axis=0)
    np.testing.assert_allclose(estimate - gradient.mean(axis=0), len(pool) / budget * covariance, atol=1e-10)


def test_gate_scales_the_gradient_by_the_live_share(biased: tuple[Candidates, np.ndarray]) -> None:
    pool, gradient = biased
    dead = pool.turn % 4 == 3
    gradient = np.where(dead[:, None], 0.0, gradient)
    live, budget = np.flatnonzero(~dead), 5
    runs = [gradient[live[np.argsort(draws(pool, s)[live])[:budget]]].mean(axis=0) for s in range(4000)]
    error = np.std(runs, axis=0) / math.sqrt(len(runs))
    expected = len(pool) / (len(pool) - dead.sum()) * gradient.mean(axis=0)
    assert (np.abs(np.mean(runs, axis=0) - expected) < 4 * error).all()


def test_base_expectation_and_focus_minus_base(biased: tuple[Candidates, np.ndarray]) -> None:
    pool, gradient = biased
    budget, base, focus = 14, load_rule("divopd_base"), load_rule("divopd").select(pool, 14, 0)
    given_by = np.bincount(pool.group[focus], minlength=6)
    mean_of = np.stack([gradient[pool.group == r].mean(axis=0) for r in range(6)])
    expected = (given_by[:, None] / budget * mean_of).sum(axis=0)
    runs = []
    for seed in range(3000):
        chosen = base.select(pool, budget, seed)
        assert (np.bincount(pool.group[chosen], minlength=6) == given_by).all()
        runs.append(gradient[chosen].mean(axis=0))
    error = np.std(runs, axis=0) / math.sqrt(len(runs))
    assert (np.abs(np.mean(runs, axis=0) - expected) < 4 * error).all()
    kept = np.isin(np.arange(len(pool)), focus)
    gap = np.zeros(3)
    for r, n in enumerate(given_by):
        mine = pool.group == r
        if 0 < n < mine.sum():
            difference = gradient[mine & kept].mean(axis=0) - gradient[mine & ~kept].mean(axis=0)
            gap += n * (mine.sum() - n) / mine.sum() * difference / budget
    np.testing.assert_allclose(gradient[focus].mean(axis=0) - expected, gap, atol=1e-10)
