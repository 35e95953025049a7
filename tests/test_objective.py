"""The objective against hand-computed values and finite differences."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from divopd.objective import (
    advantage,
    batch_loss,
    ratio,
    reported_value,
    row_loss,
    token_weights,
    weighted_loss,
)
from divopd.selection import Candidates
from divopd.types import Turn

NAN = float("nan")
STUDENT = torch.tensor([[-1.0, -2.0, -3.0], [-0.5, NAN, -9.0], [-1.0, -1.0, -1.0]], dtype=torch.float64)
TEACHER = torch.tensor([[-1.5, -1.0, -7.0], [-2.5, -1.0, NAN], [-2.0, -2.0, -2.0]], dtype=torch.float64)
VALID = torch.tensor([[True, True, False], [True, False, False], [False, False, False]])  # the last row is dead


def test_hand_computed() -> None:
    # A: row 0 (-0.5, 1.0), row 1 (-2.0), row 2 dead
    rows = row_loss(STUDENT, STUDENT, TEACHER, VALID)
    assert rows.tolist() == pytest.approx([-0.25, 2.0, 0.0])
    assert float(batch_loss(STUDENT, STUDENT, TEACHER, VALID)) == pytest.approx(1.75 / 3)  # N = 3
    assert float(batch_loss(STUDENT, STUDENT, TEACHER, VALID, beta=2.0)) == pytest.approx(3.5 / 3)
    assert float(reported_value(STUDENT, TEACHER, VALID)) == pytest.approx(1.75 / 2)
    old = STUDENT - 0.1  # an importance ratio other than 1, and the advantage against the older weights
    expected = [-np.exp(0.1) * (-0.4 + 1.1) / 2, np.exp(0.1) * 1.9, 0.0]
    assert row_loss(STUDENT, old, TEACHER, VALID).tolist() == pytest.approx(expected)


def test_the_gradient_is_minus_the_advantage_shared_out() -> None:
    student = STUDENT.clone().requires_grad_()
    batch_loss(student, student.detach(), TEACHER, VALID).backward()
    expected = [[0.5 / 2 / 3, -1.0 / 2 / 3, 0.0], [2.0 / 3, 0.0, 0.0], [0.0, 0.0, 0.0]]  # NaN outside V_t stays out
    np.testing.assert_allclose(student.grad, expected)


def test_nothing_flows_through_the_advantage_or_the_old_log_probs() -> None:
    old, teacher = STUDENT.clone().requires_grad_(), TEACHER.clone().requires_grad_()
    assert not advantage(teacher, old).requires_grad
    assert not ratio(STUDENT, old).requires_grad


def test_finite_differences_through_a_softmax() -> None:
    torch.manual_seed(0)
    logits = torch.randn(4, 5, 7, dtype=torch.float64, requires_grad=True)
    tokens, teacher = torch.randint(7, (4, 5)), -3 * torch.rand(4, 5, dtype=torch.float64)
    valid = torch.rand(4, 5) < 0.6
    valid[2] = False

    def logprobs(x: torch.Tensor) -> torch.Tensor:
        return x.log_softmax(-1).gather(-1, tokens[..., None])[..., 0]

    old = logprobs(logits).detach()
    assert torch.autograd.gradcheck(lambda x: batch_loss(logprobs(x), old, teacher, valid, 0.7), (logits,))


def test_token_weights_give_the_same_loss_in_any_split() -> None:
    weights = token_weights(VALID)
    assert weights.tolist() == [pytest.approx(row) for row in ([1 / 6, 1 / 6, 0], [1 / 3, 0, 0], [0, 0, 0])]
    new = (STUDENT + 0.2)[VALID]
    flat = [new, STUDENT[VALID], TEACHER[VALID], weights[VALID]]
    parts = [weighted_loss(*(x[i : i + 1] for x in flat)) for i in range(len(new))]
    whole = float(batch_loss(STUDENT + 0.2, STUDENT, TEACHER, VALID))
    assert float(weighted_loss(*flat)) == pytest.approx(whole) == float(sum(parts))


def test_focus_score_is_the_summed_row_loss_at_one_version() -> None:
    """s(u) = |V_u| * l_u / beta where the cached log-probs are those of the learner (paper, section 3)."""
    rng, beta = np.random.default_rng(0), 0.5
    student, teacher = -rng.random((6, 4)).astype(np.float32), -rng.random((6, 4)).astype(np.float32)
    valid = rng.random((6, 4)) < 0.7
    valid[:, 0] = True
    turns = [Turn((0, 0, 0), i, 0, np.arange(9), 3, 7, student[i], teacher[i], valid[i]) for i in range(6)]
    cached, scores, mask = (torch.from_numpy(x) for x in (student, teacher, valid))
    losses = row_loss(cached, cached, scores, mask, beta).numpy()
    np.testing.assert_allclose(Candidates.from_turns(turns, 0).disagreement, valid.sum(1) * losses / beta, atol=1e-6)
