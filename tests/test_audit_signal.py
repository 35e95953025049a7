"""The audit's second reference: the loss over the vocabulary, of whose gradient a sampled token's is one draw."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from audit_pool import POOL, VOCAB, learner, model, rollout  # noqa: F401
from divopd.audit.batches import Batch, Truth, fate
from divopd.audit.gradients import exact, row_gradients
from divopd.learner import DivergedError, Learner
from divopd.logprobs import Reference


def test_the_mean_over_what_might_have_been_sampled_is_the_whole_gradient(learner: Learner, model: Any):
    """One response token, all 64 of them in turn, each weighted by its probability."""
    from transformers import Qwen3ForCausalLM

    torch.manual_seed(9)
    teacher = Qwen3ForCausalLM(model.config)
    [turn] = rollout(7, 1)
    turn.end = turn.start + 1
    turn.action_mask = np.ones(1, dtype=bool)
    context = torch.tensor(turn.context[: turn.start])[None]
    with torch.no_grad():
        student, theirs = (m(context).logits[0, -1].log_softmax(-1).numpy() for m in (learner.model, teacher))
    mean = 0.0
    for token in range(VOCAB):
        turn.context = np.append(turn.context[: turn.start], token)
        turn.student_logprobs, turn.teacher_logprobs = student[[token]], theirs[[token]]
        mean = mean + np.exp(student[token]) * row_gradients(learner, [turn]).features[0].astype(float)
    whole = row_gradients(exact(learner, Reference(teacher, VOCAB)), [turn]).features[0]
    assert np.linalg.norm(whole) > 1e-3
    np.testing.assert_allclose(mean, whole, atol=2e-5 * np.abs(whole).max() + 1e-7)


def test_a_row_without_a_gradient_is_named(learner: Learner):
    """Weights that are not finite, as of a run that diverged: no table with a hole in it."""
    row_gradients(learner, POOL)
    with torch.no_grad():
        learner.model.get_input_embeddings().weight[7] = torch.nan
    with pytest.raises(DivergedError, match=r"^row 0: rollout 0/0/0, turn 0: its gradient is not finite"):
        row_gradients(learner, POOL)


def test_cosines_by_hand():
    """Three rows in the plane; the pool's whole gradient points along x."""
    sampled = np.array([[1.0, 1.0], [1.0, -1.0], [0.0, 2.0]])
    whole = np.array([[2.0, 0.0], [0.0, 0.0], [1.0, 0.0]])
    truth = Truth(sampled @ sampled.T, sampled @ whole.T, whole @ whole.T, np.full(3, 1 / 3))
    assert truth.pool == pytest.approx(1 / np.sqrt(2))  # (2/3, 2/3) against (1, 0)
    found = truth.of([Batch(np.array([0, 1]))])  # sampled (1, 0), whole (1, 0)
    assert found == pytest.approx({"true_cosine": 1.0, "choice_cosine": 1.0, "noise_cosine": 1.0})
    found = truth.of([Batch(np.array([0, 2]), np.array([1.0, 3.0]))])  # sampled (1/4, 7/4), whole along x
    assert found == pytest.approx(
        {"true_cosine": 1 / np.sqrt(50), "choice_cosine": 1.0, "noise_cosine": 1 / np.sqrt(50)}
    )


def test_fate_is_a_mean_over_rows_and_draws():
    columns = pd.DataFrame({"won": [1.0, 0.0, 0.0], "rescued": [1.0, 0.5, np.nan]})
    found = fate([Batch(np.array([0, 1])), Batch(np.array([1, 2]))], columns)
    assert found == pytest.approx({"won": (0.5 + 0.0) / 2, "rescued": (0.75 + 0.5) / 2})


def test_gradients_over_the_vocabulary_leave_dead_rows_alone(learner: Learner, model: Any):
    found = row_gradients(exact(learner, Reference(model, VOCAB)), POOL)
    dead = np.isnan(found.disagreement)
    assert dead.sum() == 3 and not found.features[dead].any()
    # the teacher is the student: nothing to learn, on any row
    assert np.abs(found.features).max() < 1e-6
