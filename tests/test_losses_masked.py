"""Losses where a token's probability is 0, or a number is none: right gradients, or an error that names the row."""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from divopd.learner import DivergedError
from divopd.losses import forward_kl, forward_kl_top_k, jsd, reverse_kl, reverse_kl_top_k
from test_learner import BATCH, VOCAB, base_model, gradient, rollout, same
from test_losses import LOGITS, learner

__all__ = ["base_model"]  # a fixture
APART = st.lists(st.integers(-60, 60), min_size=7, max_size=7, unique=True)  # tenths; no ties, which top-k may break
LOSSES = {
    "reverse_kl": reverse_kl,
    "forward_kl": forward_kl,
    "jsd": jsd,
    "jsd, mix 0.2": lambda s, t: jsd(s, t, mix=0.2),
    **{f"reverse_kl_top_k, {k}": lambda s, t, k=k: reverse_kl_top_k(s, t, k=k) for k in (1, 3, 5, 9)},
    **{f"forward_kl_top_k, {k}": lambda s, t, k=k: forward_kl_top_k(s, t, k=k) for k in (1, 3, 5, 9)},
}


def trl(student: torch.Tensor, teacher: torch.Tensor, beta: float) -> torch.Tensor:
    """TRL's generalized_jsd_loss a token: beta 0 is the forward KL, 1 the reverse one."""
    s, t = student.log_softmax(-1), teacher.log_softmax(-1)
    kl = torch.nn.functional.kl_div
    if beta in (0, 1):
        return kl(*((s, t) if beta == 0 else (t, s)), reduction="none", log_target=True).sum(-1)
    parts = torch.stack([s + math.log1p(-beta), t + math.log(beta)])
    middle = torch.logsumexp(parts, 0)
    either = [kl(middle, x, reduction="none", log_target=True) for x in (t, s)]
    return (beta * either[0] + (1 - beta) * either[1]).sum(-1)


def value_and_gradient(loss: Any, student: torch.Tensor, teacher: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    student = student.clone().requires_grad_()
    each = loss(student, teacher)
    return each.detach(), torch.autograd.grad(each.sum(), student)[0]


@settings(max_examples=40, deadline=None)
@given(LOGITS, LOGITS)
def test_values_and_gradients_are_trls(a: list[float], b: list[float]):
    s, t = torch.tensor([a], dtype=torch.float64), torch.tensor([b], dtype=torch.float64)
    for name, beta in (("forward_kl", 0), ("reverse_kl", 1), ("jsd", 0.5), ("jsd, mix 0.2", 0.2)):
        torch.testing.assert_close(
            value_and_gradient(LOSSES[name], s, t), value_and_gradient(lambda x, y, b=beta: trl(x, y, b), s, t)
        )


@pytest.mark.parametrize("name", LOSSES)
@settings(max_examples=30, deadline=None)
@given(APART, APART, st.sets(st.integers(0, 6), max_size=6))
def test_a_vocabulary_masked_in_both_is_a_smaller_one(name: str, a: list[int], b: list[int], masked: set[int]):
    """Value and gradient over the tokens that are left, computed without the others; the others' gradient is 0."""
    s, t = torch.tensor([[a], [b]], dtype=torch.float64) / 10
    left, out = sorted(set(range(7)) - masked), sorted(masked)
    small, small_gradient = value_and_gradient(LOSSES[name], s[:, left], t[:, left])
    s[:, out], t[:, out] = -torch.inf, -torch.inf
    value, gradient = value_and_gradient(LOSSES[name], s, t)
    torch.testing.assert_close(value, small)
    torch.testing.assert_close(gradient[:, left], small_gradient)
    assert (gradient[:, out] == 0).all()


@pytest.mark.parametrize("name", [name for name in LOSSES if not name.startswith("forward")])
@settings(max_examples=30, deadline=None)
@given(APART, APART, st.sets(st.integers(0, 6), max_size=6))
def test_a_token_that_only_the_student_lacks(name: str, a: list[int], b: list[int], masked: set[int]):
    """As where its probability is 0 because its logit is far below (e^-800 is 0 in float64), by plain arithmetic."""
    s, t = torch.tensor([[a], [b]], dtype=torch.float64) / 10
    out = sorted(masked)
    far, lacks = s.clone(), s.clone()
    far[:, out], lacks[:, out] = -800.0, -torch.inf
    want, want_gradient = value_and_gradient(LOSSES[name], far, t)
    value, gradient = value_and_gradient(LOSSES[name], lacks, t)
    assert value.isfinite().all() and gradient.isfinite().all()
    torch.testing.assert_close(value, want)
    torch.testing.assert_close(gradient, want_gradient)


def test_what_one_lacks_and_the_other_needs_is_infinite():
    s, t = torch.tensor([[0.0, 0.0, 2.0]]), torch.tensor([[0.0, 0.0, -torch.inf]])
    assert reverse_kl(s, t).item() == forward_kl(t, s).item() == torch.inf
    assert reverse_kl_top_k(s, t, k=1).item() == torch.inf
    assert forward_kl(s, t).isfinite() and jsd(s, t).item() < math.log(2)


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
@pytest.mark.parametrize("whose", ["student", "teacher"])
def test_a_number_that_is_none_spoils_its_row_alone(name: str, bad: float, whose: str):
    torch.manual_seed(1)
    s, t = torch.randn(2, 3, 7, dtype=torch.float64)
    whole = value_and_gradient(LOSSES[name], s, t)
    (s if whose == "student" else t)[1, 4] = bad
    value, gradient = value_and_gradient(LOSSES[name], s, t)
    assert value[1].isnan()
    for found, want in zip((value, gradient), whole, strict=True):
        torch.testing.assert_close(found[[0, 2]], want[[0, 2]])


# --- in an update --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["sampled_reverse_kl", "reverse_kl", "jsd", "forward_kl_top_k"])
def test_a_row_whose_loss_is_not_finite_is_named(base_model: Any, name: str):
    """A student whose logits are NaN after one token, which one row's context holds and no other's."""
    turns = [copy.copy(turn) for number in (1, 2, 3) for turn in rollout(number, 2)]
    for turn in turns:
        turn.context = np.where(turn.context == 7, 8, turn.context)
    last = turns[5]
    last.context[last.start + int(np.flatnonzero(last.valid_mask())[-1]) - 1] = 7
    one = learner(base_model, name=name)
    with torch.no_grad():
        one.model.get_input_embeddings().weight[7] = torch.nan
    before = [p.detach().clone() for p in one.parameters]
    with pytest.raises(DivergedError, match=r"^update 3: loss nan \(row 5: rollout 0/3/0, turn 1\), grad"):
        one.update(turns, 3)
    assert all(torch.equal(a, b) or a.isnan().any() for a, b in zip(before, one.parameters, strict=True))


@pytest.mark.parametrize("name", ["sampled_reverse_kl", "reverse_kl", "jsd", "reverse_kl_top_k"])
def test_a_student_whose_head_masks_a_padded_vocabulary_trains(base_model: Any, name: str):
    """The update is that of logits which are far below instead of -inf."""
    turns = [copy.copy(turn) for turn in BATCH]
    for turn in turns:
        turn.context = turn.context % 50
    found = []
    for low in (-torch.inf, -1e4):
        one = learner(base_model, name=name)
        pad = torch.zeros(VOCAB).index_fill(0, torch.arange(50, VOCAB), low)
        one.model.get_output_embeddings().register_forward_hook(lambda _, __, out, pad=pad: out + pad)
        found.append(gradient(one, turns))
    assert found[0][0]["loss"] == pytest.approx(found[1][0]["loss"], rel=1e-5)
    same(found[0][1], found[1][1])
