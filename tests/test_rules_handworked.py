"""Every shipped rule on a small pool whose choice is worked out in a comment."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from divopd.selection import Candidates, apply_rule, checked_select, draws, load_rule, shipped_rules

NAN = float("nan")
COLUMNS = dict(
    rollout=(0, 0, 0), turn=0, version=5, first_seen=5, arrival=None, prompt_tokens=8, response_tokens=2,
    valid_tokens=1, disagreement=0.0, student_nll=1.0, teacher_nll=1.0, reward=0.0, success=False, rollout_turns=1,
    valid=True,
)  # fmt: skip


def pool_of(*rows: dict[str, Any], update: int = 5) -> Candidates:
    """One row a dict; what it leaves out is the default above, and arrival its place."""
    full = [COLUMNS | {"arrival": i} | row for i, row in enumerate(rows)]
    return Candidates.from_columns({name: [row[name] for row in full] for name in COLUMNS}, update)


def chosen(rule: str, pool: Candidates, budget: int, seed: int = 0, **params: Any) -> list[int]:
    return checked_select(load_rule(rule, params), pool, budget, seed).tolist()


def turns(rollout: tuple[int, int, int], scores: list[float], **change: Any) -> list[dict[str, Any]]:
    """The turns 0, 1, .. of one rollout with these s(u)."""
    same = dict(rollout=rollout, rollout_turns=len(scores)) | change
    return [same | {"turn": i, "disagreement": score} for i, score in enumerate(scores)]


A, B, C = (0, 0, 0), (0, 1, 0), (0, 2, 0)


def dead(**row: Any) -> dict[str, Any]:
    return row | {"valid": False, "valid_tokens": 0, "disagreement": NAN, "student_nll": NAN}


# --- arrival ---------------------------------------------------------------------------------------------------------

LATE = [dict(arrival=3), dead(turn=1, arrival=0), dict(turn=2, arrival=2), dict(turn=3, arrival=1)]


@pytest.mark.parametrize("rule", ["vanilla", "vanilla_256", "gate_only"])
def test_arrival(rule: str) -> None:
    # arrival 0, 1, 2: rows 1, 3, 2; the dead row takes a slot. What tells the three apart is what they are offered.
    assert chosen(rule, pool_of(*LATE), 3) == [1, 3, 2]
    known = load_rule(rule)
    offered = {"vanilla": (False, "batch"), "vanilla_256": (False, "pool"), "gate_only": (True, "pool")}
    assert (known.gated, known.reads) == offered[rule]


def test_success_and_failure_only() -> None:
    pool = pool_of(
        dict(arrival=3, success=True), dict(rollout=B, arrival=2), dict(rollout=C, arrival=1),
        dict(turn=1, arrival=0, success=True),
    )  # fmt: skip
    # successes by arrival: rows 3 and 0; the batch of 3 is filled with the first failure to arrive, row 2
    assert chosen("success_only", pool, 3) == [3, 0, 2]
    assert chosen("failure_only", pool, 3) == [2, 1, 3]


# --- one column ------------------------------------------------------------------------------------------------------

AGES = [
    dict(rollout=B, version=4, rollout_turns=9), dict(rollout=A, version=4, rollout_turns=2),
    dict(rollout=C, version=5, rollout_turns=5), dict(rollout=B, turn=1, version=3, rollout_turns=9),
]  # fmt: skip


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("newest_first", [2, 1, 0, 3]),  # ages 0, 1, 1, 2; A before B
        ("oldest_first", [3, 1, 0, 2]),
        ("shortest_rollout", [1, 2, 0, 3]),  # 2, 5, 9 turns; inside B turn 0 before 1
        ("longest_rollout", [0, 3, 2, 1]),
    ],
)
def test_one_column(rule: str, expected: list[int]) -> None:
    assert chosen(rule, pool_of(*AGES), 4) == expected
    assert chosen(rule, pool_of(*AGES), 2) == expected[:2]


# --- disagreement and uncertainty -------------------------------------------------------------------------------------

SCORED = [
    dict(turn=0, disagreement=6.0, student_nll=8.0, valid_tokens=4),  # a token: 1.5 and 2
    dict(turn=1, disagreement=4.0, student_nll=1.0, valid_tokens=2),  # 2 and 0.5
    dict(turn=2, disagreement=-9.0, student_nll=9.0, valid_tokens=3),  # -3 and 3
    dict(turn=3, disagreement=NAN, student_nll=NAN, valid_tokens=3),
    dict(turn=4, disagreement=1.0, student_nll=1.0, valid_tokens=1),  # 1 and 1
]


def test_disagreement_and_uncertainty() -> None:
    pool = pool_of(*SCORED)
    assert chosen("top_b", pool, 5) == [0, 1, 4, 2, 3]  # signed sums 6, 4, 1, -9
    assert chosen("mean_disagreement", pool, 5) == [1, 0, 4, 2, 3]
    assert chosen("student_uncertainty", pool, 5) == [2, 0, 4, 1, 3]


def test_soft_or() -> None:
    # of 4 scored rows the mid-ranks are 1/8, 3/8, 5/8, 7/8.     d: 5/8, 7/8, 1/8, 3/8    u: 5/8, 1/8, 7/8, 3/8
    # (1 - d)(1 - u) * 64: row 0: 3 * 3 = 9, row 1: 1 * 7 = 7, row 2: 7 * 1 = 7, row 4: 5 * 5 = 25; smallest first
    assert chosen("soft_or", pool_of(*SCORED), 5) == [1, 2, 0, 4, 3]


def test_f_opd() -> None:
    pool = pool_of(
        *turns(A, [1.0, 0.0], version=5),  # D_roll = (1 + 0) / 2 tokens; D_sup 1 and 0
        *turns(B, [0.0], version=4),  # no drift, lag 1
        *turns(C, [-4.0, 4.0], version=5),  # D_roll = 0, D_sup 0 (cut off) and 4
    )
    # a = b = 1: A0 exp(-.707 - 1) = .181, A1 exp(-.707) = .493, B0 1 / 2 = .5, C0 1, C1 exp(-2) = .135
    assert chosen("f_opd", pool, 5) == [3, 2, 1, 0, 4]
    # a = 0: A0 exp(-1) = .37, A1 1, B0 .5, C0 1, C1 .135; A before C
    assert chosen("f_opd", pool, 5, a=0) == [1, 3, 2, 0, 4]


# --- curricula -------------------------------------------------------------------------------------------------------


def test_prefix_window() -> None:
    rows = [dict(turn=3), dict(turn=0), dict(turn=2), dict(turn=1)]
    # q = 5, eta = 5: turns 0 and 1, in arrival order; then turn 2, then 3
    assert chosen("prefix_window", pool_of(*rows), 4, eta=5) == [1, 3, 2, 0]
    assert chosen("prefix_window", pool_of(*rows), 4, eta=6) == [1, 3, 2, 0]  # window 1; beyond it by depth
    assert chosen("prefix_window", pool_of(*rows), 4, eta=1) == [0, 1, 2, 3]  # window 6 holds all


def test_adwin() -> None:
    rule = load_rule("adwin", {"start": 1, "step": 1, "tolerance": 0.5})
    state = rule.initial_state()
    # turn 0: D = 1 a token. Beyond, turn 1: (1.2 + 1.6) / 2 = 1.4 <= 1.5: H = 2, and turns 0 and 1 come by arrival
    grows = pool_of(*turns(B, [1.0, 1.2, 9.0])[::-1], *turns(C, [1.0, 1.6])[::-1])
    first = apply_rule(rule, grows, 5, 0, state)
    assert (first.state, first.rows.tolist()) == (2, [1, 2, 3, 4, 0])
    # inside now 4.8 over four tokens = 1.2; beyond 9 > 1.8: back to H = 1, as far as `start` lets it
    second = apply_rule(rule, grows, 5, 0, first.state)
    assert (second.state, second.rows.tolist()) == (1, [2, 4, 1, 3, 0])
    # turns of earlier reads are not heard again: nothing to audit, H stays
    old = pool_of(*turns(B, [1.0, 1.2], first_seen=4))
    assert apply_rule(rule, old, 2, 0, 2).state == 2


# --- draws -----------------------------------------------------------------------------------------------------------


def test_uniform() -> None:
    pool = pool_of(*turns(A, [0.0] * 4), *turns(B, [0.0] * 4))
    number = draws(pool, 3)
    assert chosen("uniform", pool, 8, seed=3) == sorted(range(8), key=lambda i: -number[i])
    # four rows of eight: each enters half of the time
    counts = np.bincount(np.concatenate([chosen("uniform", pool, 4, seed=s) for s in range(800)]), minlength=8) / 800
    assert (np.abs(counts - 0.5) < 4 * math.sqrt(0.25 / 800)).all()


def test_per() -> None:
    pool = pool_of(*turns(A, [1.0, -8.0, 0.0, NAN]))
    # alpha = 1/3: priorities 1, 2 and nearly 0 -> the first draw is row 1 in 2/3 of the seeds, and 2 comes before NaN
    picks = [chosen("per", pool, 4, seed=s, alpha=1 / 3, epsilon=1e-30) for s in range(2000)]
    share = np.mean([pick[0] == 1 for pick in picks])
    assert abs(share - 2 / 3) < 4 * math.sqrt(2 / 9 / 2000)
    assert all(pick[2:] == [2, 3] for pick in picks)
    # alpha = 0 is uniform
    share = np.mean([chosen("per", pool, 3, seed=s, alpha=0)[0] == 2 for s in range(2000)])
    assert abs(share - 1 / 3) < 4 * math.sqrt(2 / 9 / 2000)
    # beta = 1: weights in proportion to 1 / p^alpha, 1 : 1/2
    weighed = apply_rule(load_rule("per", {"alpha": 1 / 3, "beta": 1.0}), pool, 2, 0, None)
    assert weighed.weights is not None
    by_row = dict(zip(weighed.rows.tolist(), weighed.weights, strict=True))
    assert by_row[0] / by_row[1] == pytest.approx(2.0)


# --- coverage --------------------------------------------------------------------------------------------------------

WIDE = [*turns(A, [1.0, 3.0, 2.0]), *turns(B, [-1.0, -0.5], first_seen=4), *turns(C, [0.0])]


def test_divopd() -> None:
    # B was seen first; k = 1: B's best, A's best, C's; then one more each: B's other, A's second
    assert chosen("divopd", pool_of(*WIDE), 5, cap=1) == [4, 1, 5, 3, 2]
    assert chosen("divopd", pool_of(*WIDE), 4, cap=2) == [4, 3, 1, 2]


def test_divopd_base() -> None:
    pool, number = pool_of(*WIDE), draws(pool_of(*WIDE), 1)
    rank = [sorted(rows, key=lambda i: -number[i]) for rows in ([3, 4], [0, 1, 2], [5])]
    # k = 2: two of B's, two of A's, C's one, in drawn order
    assert chosen("divopd_base", pool, 5, seed=1, cap=2) == [*rank[0], *rank[1][:2], 5]


def test_divopd_k_inf() -> None:
    pool = pool_of(*WIDE)
    assert sorted(chosen("divopd_k_inf", pool, 4)[:2]) == [3, 4]  # all of B, the oldest
    assert all(i in (0, 1, 2) for i in chosen("divopd_k_inf", pool, 4)[2:])  # then A's, until the batch is full


def test_token_capped() -> None:
    pool = pool_of(
        *turns(A, [3.0, 2.0, 1.0], prompt_tokens=8), *turns(B, [5.0, 4.0, -1.0], prompt_tokens=28),
        *turns(C, [0.0], prompt_tokens=98),
    )  # fmt: skip
    # row tokens 10, 30 and 100, mean 220 / 7. share = 0.25, B = 4: C = 31.4. Sweep 1: A gives 10, 20, 30 tokens, B 30,
    # C's only turn, above the cap: rows 0, 1, 2, 3, and 6 is cut off by the budget
    assert chosen("token_capped", pool, 4, share=0.25) == [0, 1, 2, 3]
    # B = 6: C = 47.1, sweep 1 is 0, 1, 2, 3, 6; sweep 2 (94.3) has B's 60 and 90: row 4
    assert chosen("token_capped", pool, 6, share=0.25) == [0, 1, 2, 3, 6, 4]
    # share = 0.1, B = 4: C = 12.6: A's best, B's best (30 > 12.6), C's; sweep 2 (25.1) is A's second
    assert chosen("token_capped", pool, 4, share=0.1) == [0, 3, 6, 1]


@pytest.mark.parametrize("budget", [8, 24, 60])
def test_token_capped_keeps_its_guarantee(budget: int) -> None:
    """No rollout has more tokens than M = max(j C, L), so that effective rollouts >= T / M."""
    rng = np.random.default_rng(budget)
    rows = [
        row | {"prompt_tokens": 20 * (i + 1)}
        for r in range(12)
        for i, row in enumerate(turns((0, r, 0), rng.normal(size=int(rng.integers(1, 12))).tolist()))
    ]
    pool = pool_of(*rows)
    tokens = pool.prompt_tokens + pool.response_tokens
    cap = budget * tokens.mean() / 8
    rule = load_rule("token_capped", {"share": 1 / 8})
    batch = checked_select(rule, pool, budget, 0)
    given = np.bincount(pool.group[batch], weights=tokens[batch])
    firsts = np.array([tokens[batch[pool.group[batch] == r][0]] for r in np.unique(pool.group[batch])])
    # the sweep in which the batch ends: that of its last row
    last = batch[-1]
    inside = batch[pool.group[batch] == pool.group[last]]
    sweep = 1 if last == inside[0] else math.ceil(tokens[inside].sum() / cap)
    bound = max(sweep * cap, firsts.max())
    assert given.max() <= bound
    assert given.sum() ** 2 / np.square(given).sum() >= given.sum() / bound


def test_divopd_focus_first() -> None:
    rows = [
        *turns((0, 0, 0), [1.0, 5.0, 3.0, 4.0]),  # task 0, run 0
        *turns((0, 0, 1), [2.0]),  # task 0, run 1
        dead(rollout=(0, 1, 0), turn=0), *turns((0, 1, 1), [-7.0]),  # task 1: a dead row, which comes last
    ]  # fmt: skip
    pool = pool_of(*rows)
    # task 0 by s(u): rows 1, 3, 2, then 4, 0; task 1: rows 6, 5. All rows hold 10 tokens: B = 6, share 0.5 is 30 tokens
    seeds = {bool(draws(pool, s, per="task")[0] < draws(pool, s, per="task")[6]): s for s in range(20)}
    assert chosen("divopd_focus_first", pool, 6, seed=seeds[True], share=0.5) == [1, 3, 2, 6, 5, 4]
    assert chosen("divopd_focus_first", pool, 6, seed=seeds[False], share=0.5) == [6, 5, 1, 3, 2, 4]
    # two turns a task on the first pass; relaxing brings the third within its tokens, and only then the rest
    assert chosen("divopd_focus_first", pool, 6, seed=seeds[True], share=0.5, turns=2) == [1, 3, 6, 5, 2, 4]
    # share 0.25 is 15 tokens: one turn a task within it, and the rest in the order of tasks
    assert chosen("divopd_focus_first", pool, 6, seed=seeds[True]) == [1, 6, 3, 2, 4, 0]
    # rows 1, 3, 2 are of one rollout, 6, 5 and 4 of three others
    weights = apply_rule(load_rule("divopd_focus_first", {"share": 0.5}), pool, 6, seeds[True], None).weights
    assert weights is not None and weights.tolist() == [1 / 3, 1 / 3, 1 / 3, 1, 1, 1]


def test_every_shipped_rule_has_a_hand_worked_test() -> None:
    text = Path(__file__).read_text()
    missing = [name for name in shipped_rules() if f'"{name}"' not in text]
    others = [p.read_text() for p in Path(__file__).parent.glob("test_rule_*.py")]
    untested = [name for name in missing if not any(f'baselines" / "{name}.py"' in other for other in others)]
    assert untested == [], "a rule's first test by hand: tests/test_rule_NAME.py, as `divopd new-rule` writes it"
