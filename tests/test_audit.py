"""The gradient audit: rows against the learner's own gradient, sketches, identities, and pools made again."""

from __future__ import annotations

from itertools import combinations, product
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from audit_pool import LIVE, POOL, VOCAB, learner, model, rollout  # noqa: F401
from divopd.analysis.audit import checks_table, with_reported
from divopd.audit.gradients import CountSketch, RowGradients, row_gradients
from divopd.audit.measure import (
    Batch,
    audit,
    base_identity,
    base_sampling_error,
    choose,
    covariance_identity,
    focus_identity,
    gate_identity,
    rules_for,
    spearman,
)
from divopd.candidates import Candidates, gate
from divopd.config import MethodConfig
from divopd.learner import Learner
from divopd.objective import row_loss
from divopd.paper import reported
from divopd.selection import RuleError, load_rule
from divopd.types import Turn


def direct(model: Any, turn: Turn) -> tuple[np.ndarray, float]:
    """Gradient of one row's loss and its s(u), from the whole model's logits."""
    model.zero_grad(set_to_none=True)
    logits = model(input_ids=torch.tensor(turn.context[: turn.end])[None]).logits[0].log_softmax(-1)
    where = torch.arange(turn.start, turn.end)
    new = logits[where - 1, torch.tensor(turn.context[turn.start : turn.end])]
    teacher, valid = torch.tensor(turn.teacher_logprobs), torch.tensor(turn.valid_mask())
    row_loss(new[None], new[None].detach(), teacher[None], valid[None]).sum().backward()
    flat = torch.cat([p.grad.reshape(-1) for p in model.parameters() if p.requires_grad])
    return flat.numpy().copy(), float((new.detach() - teacher)[valid].sum())


# gradients -----------------------------------------------------------------------------------------------------------


def test_each_row_is_the_gradient_of_its_own_loss(learner: Learner, model: Any):
    found = row_gradients(learner, POOL)
    assert found.features.shape == (len(POOL), found.parameters)
    for i, turn in enumerate(POOL):
        if gate(turn) is not None:
            assert not found.features[i].any() and np.isnan(found.disagreement[i])
            continue
        gradient, score = direct(model, turn)
        np.testing.assert_allclose(found.features[i], gradient, rtol=1e-4, atol=1e-6)
        assert found.disagreement[i] == pytest.approx(score, rel=1e-4)


def test_rows_average_to_the_batchs_gradient_and_leave_no_trace(learner: Learner):
    before = [p.detach().clone() for p in learner.parameters]
    mean = row_gradients(learner, POOL).features.mean(axis=0)
    assert all(p.grad is None for p in learner.parameters)
    assert all(torch.equal(a, b) for a, b in zip(before, learner.parameters, strict=True))
    kept: list[np.ndarray] = []
    learner.optimizer.register_step_pre_hook(
        lambda *_: kept.append(torch.cat([p.grad.reshape(-1) for p in learner.parameters]).numpy().copy())
    )
    stats = learner.update(POOL)  # also: the hooks are gone, or there would be no gradient to step along
    np.testing.assert_allclose(mean, kept[0], rtol=1e-3, atol=1e-6)
    assert np.linalg.norm(mean) == pytest.approx(stats["grad_norm"], rel=1e-4)


def test_a_sketch_is_the_sketch_of_the_whole_gradient(learner: Learner):
    sketch = CountSketch(256, seed=3)
    whole, small = row_gradients(learner, POOL), row_gradients(learner, POOL, sketch)
    assert small.sketched and small.features.shape == (len(POOL), 256)
    i = LIVE[2]
    out, sizes = torch.zeros(256), [p.numel() for p in learner.parameters]
    for name, part in enumerate(torch.tensor(whole.features[i]).split(sizes)):
        sketch.add(out, name, part)
    np.testing.assert_allclose(small.features[i], out.numpy(), rtol=1e-4, atol=1e-6)


@settings(max_examples=6, deadline=None)
@given(st.integers(0, 2**31), st.integers(1, 12), st.integers(2, 40))
def test_inner_products_of_sketches_are_unbiased(data: int, dim: int, size: int):
    rng = np.random.default_rng(data)
    x, y = torch.tensor(rng.normal(size=(2, size)), dtype=torch.float32)
    products = []
    for seed in range(250):
        both = torch.zeros(2, dim)
        for out, vector in zip(both, (x, y), strict=True):
            CountSketch(dim, seed).add(out, 0, vector[: size // 2])  # two tensors of one vector
            CountSketch(dim, seed).add(out, 1, vector[size // 2 :])
        products.append(float(both[0] @ both[1]))
    exact = float(x @ y)
    bound = float((x @ x) * (y @ y) + (x @ y) ** 2) / dim  # of the variance
    assert abs(np.mean(products) - exact) < 5 * np.sqrt(bound / 250)
    assert np.var(products) < 2 * bound


def test_gram_is_plain_linear_algebra():
    features = np.random.default_rng(0).normal(size=(5, 37)).astype(np.float32)
    rows = RowGradients(features, np.zeros(5), 37, False)
    np.testing.assert_allclose(rows.gram(), features.astype(float) @ features.T.astype(float), rtol=1e-12)


# measures ------------------------------------------------------------------------------------------------------------


def hand() -> tuple[list[Turn], RowGradients]:
    """Two rollouts of two turns, the second's last dead; gradients (2, 0), (0, 2), (4, 0) and nothing."""
    turns = rollout(0, 2) + rollout(1, 2, dead=(1,))
    for turn, score in zip(turns, (1.0, 2.0, 3.0), strict=False):  # s(u)
        turn.teacher_logprobs = turn.student_logprobs - np.float32(score / turn.response_tokens)
        turn.action_mask = np.ones(turn.response_tokens, dtype=bool)
    features = np.array([[2, 0], [0, 2], [4, 0], [0, 0]], dtype=np.float32)
    return turns, RowGradients(features, np.array([1.0, 3.0, 2.0, np.nan]), 2, False)


def test_projection_cosine_and_drop_by_hand():
    turns, gradients = hand()
    names = ("vanilla", "top_b")
    found = audit(turns, 0, 2, gradients, {name: load_rule(name) for name in names}, [0, 1])
    # the pool's gradient is (2, 2/3), its square 40/9
    rows = found.rules.set_index("rule")
    # the first two to arrive: (1, 1), product 8/3, square 2
    assert rows.loc["vanilla", "projection"] == pytest.approx(0.6)
    assert rows.loc["vanilla", "cosine"] == pytest.approx((8 / 3) / np.sqrt(2 * 40 / 9))
    assert rows.loc["vanilla", "norm_ratio"] == pytest.approx(np.sqrt(2 / (40 / 9)))
    assert (rows.loc["vanilla", "dropped_turns"], rows.loc["vanilla", "dropped_norm"]) == (0, 0)
    # the two of largest s(u): (2, 1); of the three live turns of their rollouts the first is left, 4 of 4 + 4 + 16
    assert rows.loc["top_b", "projection"] == pytest.approx((4 + 2 / 3) / (40 / 9))
    assert rows.loc["top_b", "dropped_turns"] == pytest.approx(1 / 3)
    assert rows.loc["top_b", "dropped_norm"] == pytest.approx(4 / 24)
    # largest products with (2, 2/3): rows 2 and 0, mean (3, 0)
    assert rows.loc["oracle", "projection"] == pytest.approx(6 / (40 / 9))
    assert (rows["batches"] == 1).all() and (rows["rows"] == 2).all()
    assert found.facts["spearman"] == pytest.approx(0.5)  # ranks 1 2 3 against 1 3 2
    assert (found.facts["rows"], found.facts["dead"], found.facts["rollouts"]) == (4, 1, 2)


def test_row_weights_of_a_rule_count():
    assert Batch(np.array([2, 0]), np.array([3.0, 1.0])).shares(4).tolist() == [0.25, 0, 0.75, 0]
    assert Batch(np.array([2, 0])).shares(3).tolist() == [0.5, 0, 0.5]


def test_spearman_by_hand():
    assert spearman([1, 2, 3, 4], [10, 20, 30, 40]) == pytest.approx(1)
    assert spearman([1, 2, 3, 4], [4, 3, 2, 1]) == pytest.approx(-1)
    assert spearman([1, 2, 2, 3], [1, 2, 3, 4]) == pytest.approx(4.5 / np.sqrt(4.5 * 5))  # a tie takes the mean rank
    assert spearman([1, 2, np.nan, 3], [1, 2, 0, 3]) == pytest.approx(1)
    assert np.isnan(spearman([1, 1], [1, 2]))


def test_vanilla_is_offered_dead_rows_and_b_of_them_and_gated_rules_live_ones():
    pool = Candidates.from_turns(POOL, 0)
    (first,) = choose(load_rule("vanilla"), POOL, pool, 5, [0])
    assert first.rows.tolist() == [0, 1, 2, 3, 4] and not pool.valid[4]
    (gated,) = choose(load_rule("gate_only"), POOL, pool, 5, [0])
    assert gated.rows.tolist() == LIVE[:5]


def test_rules_take_the_runs_parameters():
    method = MethodConfig(name="x", rule="divopd", params={"cap": 2})
    rules = rules_for(method)
    assert {"vanilla", "divopd", "top_b"} <= rules.keys()
    assert rules["divopd"].model_dump()["cap"] == rules["divopd_base"].model_dump()["cap"] == 2
    assert list(rules_for(method, ["top_b"])) == ["top_b"]
    with pytest.raises(RuleError, match="unknown rule"):
        rules_for(method, ["divop"])


# identities, on real gradients ---------------------------------------------------------------------------------------


def close(left: np.ndarray, right: np.ndarray) -> None:
    np.testing.assert_allclose(left, right, atol=1e-6 * np.abs(left).max())


def test_the_gates_mean_over_all_batches(learner: Learner):
    found, n, budget = row_gradients(learner, POOL), len(POOL), 3
    features = found.features.astype(float)
    left, right = (side @ features for side in gate_identity(Candidates.from_turns(POOL, 0)))
    every = [features[list(rows)].mean(axis=0) for rows in combinations(LIVE, budget)]
    close(np.mean(every, axis=0), right)
    close(left, right)
    close(right, n / len(LIVE) * features.mean(axis=0))


def test_bases_mean_over_all_batches_and_what_focus_adds(learner: Learner):
    found, pool, budget = row_gradients(learner, POOL), Candidates.from_turns(POOL, 0), 6
    rules = rules_for(MethodConfig(name="x", rule="divopd", params={"cap": 2}), ["divopd", "divopd_base"])
    seeds = list(range(40))
    base = [batch.rows for batch in choose(rules["divopd_base"], POOL, pool, budget, seeds)]
    (focus,) = choose(rules["divopd"], POOL, pool, budget, [0])
    given = np.bincount(pool.group[base[0]], minlength=4)
    assert given.tolist() == [2, 2, 2, 0] == np.bincount(pool.group[focus.rows], minlength=4).tolist()
    live = [[i for i in LIVE if pool.group[i] == r] for r in range(4)]
    ways = product(*(combinations(rows, n) for rows, n in zip(live, given, strict=True)))
    features = found.features.astype(float)
    batches = [features[[i for part in way for i in part]].mean(axis=0) for way in ways]
    assert len(batches) == 3 * 3
    expected = np.mean(batches, axis=0)
    draws, closed = (side @ features for side in base_identity(pool, base))
    close(closed, expected)
    assert len({tuple(sorted(rows)) for rows in base}) > 4
    # the sampling error of one draw is the spread of all batches
    spread = np.sqrt(np.mean([((b - expected) ** 2).sum() for b in batches])) / np.linalg.norm(expected)
    assert base_sampling_error(pool, base[:1], found.gram()) == pytest.approx(spread, rel=1e-5)
    assert np.linalg.norm(draws - closed) / np.linalg.norm(closed) < 3 * spread / np.sqrt(len(base))
    left, right = (side @ features for side in focus_identity(pool, base[0], focus.rows))
    close(left, features[focus.rows].mean(axis=0) - expected)
    close(left, right)
    assert np.abs(left).max() > 1e-3 * np.abs(expected).max()


@pytest.mark.parametrize("rule", ["vanilla", "vanilla_256", "gate_only", "divopd_base", "divopd", "top_b"])
def test_bias_is_a_covariance_with_the_inclusion(rule: str, learner: Learner):
    found, pool = row_gradients(learner, POOL), Candidates.from_turns(POOL, 0)
    drawn = [batch.rows for batch in choose(load_rule(rule), POOL, pool, 5, range(6))]
    features = found.features.astype(float)
    left, right = (side @ features for side in covariance_identity(drawn, len(POOL)))
    close(left, np.mean([features[rows].mean(axis=0) for rows in drawn], axis=0) - features.mean(axis=0))
    close(left, right)


def test_a_broken_identity_shows():
    turns, gradients = hand()
    rules = {name: load_rule(name) for name in ("vanilla", "divopd", "divopd_base")}
    right = audit(turns, 0, 2, gradients, rules, [0]).checks
    assert (right.loc[right["expected"] == 0, "distance"] < 1e-9).all()
    gradients.features[3] = (0, 5)  # a dead row that trains
    wrong = audit(turns, 0, 2, gradients, rules, [0]).checks.set_index("identity")
    assert wrong.loc["gate", "distance"] > 0.1


# tables ---------------------------------------------------------------------------------------------------------------


def test_the_papers_numbers_stand_beside():
    frame = with_reported(pd.DataFrame({"rule": ["oracle", "divopd", "vanilla", "uniform"]}), "webshop")
    assert frame["rule"].tolist() == ["vanilla", "divopd", "uniform", "oracle"]
    frame = frame.drop(index=2)
    assert frame["reported_projection"].tolist() == [1.32, 1.47, 3.3]
    assert frame["reported_cosine"].tolist() == [0.61, 0.64, 0.84]
    assert set(reported("gradient_alignment")["env"]) == {"alfworld", "scienceworld", "webshop"}


def test_the_page_shows_the_worst_of_each_identity():
    checks = pd.DataFrame({
        "identity": ["gate", "covariance", "covariance"], "rule": ["gate_only", "vanilla", "divopd"],
        "distance": [0.0, 1e-9, 2e-3], "expected": 0.0,
    })  # fmt: skip
    assert checks_table(checks).rows == [
        ["gate", "Gate only", "0.0e+00", "rounding"],
        ["covariance", "largest of 2 rules", "2.0e-03", "rounding"],
    ]
