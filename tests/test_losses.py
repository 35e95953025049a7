"""Loss variants against hand-computed values, against each other, and inside a real update."""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from divopd.config import LossConfig, TrainConfig
from divopd.learner import Learner, Reference, merge_rows
from divopd.losses import (
    LossError,
    forward_kl,
    forward_kl_top_k,
    jsd,
    load_loss,
    loss_names,
    reverse_kl,
    reverse_kl_top_k,
    token_shares,
)
from test_learner import BATCH, VOCAB, base_model, gradient, rollout, same

__all__ = ["base_model"]  # a fixture
S, T = (0.5, 0.25, 0.25), (0.25, 0.25, 0.5)
LOGITS = st.lists(st.floats(-6, 6), min_size=4, max_size=4)


def logits(p: Any) -> torch.Tensor:
    return torch.tensor([p], dtype=torch.float64).log() + 3.0  # a shift changes nothing


def test_divergences_by_hand():
    """S = (1/2, 1/4, 1/4), T = (1/4, 1/4, 1/2): log-ratios ln 2, 0, -ln 2."""
    two = math.log(2)
    for loss, want in (
        (reverse_kl, 0.5 * two - 0.25 * two),
        (forward_kl, 0.5 * two - 0.25 * two),
        # M = (3/8, 1/4, 3/8): KL(T || M) = KL(S || M) = 1/2 ln 4/3 + 1/4 ln 2/3
        (jsd, 0.5 * math.log(4 / 3) + 0.25 * math.log(2 / 3)),
    ):
        assert loss(logits(S), logits(T)).tolist() == pytest.approx([want])
    # mix 1/4: M = (7/16, 1/4, 5/16)
    kl_t = 0.25 * math.log(4 / 7) + 0.5 * math.log(8 / 5)
    kl_s = 0.5 * math.log(8 / 7) + 0.25 * math.log(4 / 5)
    assert jsd(logits(S), logits(T), mix=0.25).item() == pytest.approx(0.25 * kl_t + 0.75 * kl_s)


def test_top_k_by_hand():
    """k = 1: the leader's likeliest token has 1/2 against 1/4, all others 1/2 against 3/4."""
    want = 0.5 * math.log(2) + 0.5 * math.log(2 / 3)
    assert reverse_kl_top_k(logits(S), logits(T), k=1).item() == pytest.approx(want)
    assert forward_kl_top_k(logits(S), logits(T), k=1).item() == pytest.approx(want)
    # the teacher's likeliest is token 2: KL(T || S) over {2} and {0, 1}
    other = (0.6, 0.3, 0.1)
    want = 0.5 * math.log(0.5 / 0.1) + 0.5 * math.log(0.5 / 0.9)
    assert forward_kl_top_k(logits(other), logits(T), k=1).item() == pytest.approx(want)


@settings(max_examples=60, deadline=None)
@given(LOGITS, LOGITS, st.integers(1, 4))
def test_divergences_keep_their_bounds(a: list[float], b: list[float], k: int):
    s, t = torch.tensor([a], dtype=torch.float64), torch.tensor([b], dtype=torch.float64)
    for full, cut in ((reverse_kl, reverse_kl_top_k), (forward_kl, forward_kl_top_k)):
        assert -1e-9 <= cut(s, t, k=k).item() <= full(s, t).item() + 1e-9
        assert cut(s, t, k=4).item() == pytest.approx(full(s, t).item())
        assert full(s, s).item() == pytest.approx(0, abs=1e-12)
    assert -1e-9 <= jsd(s, t).item() <= math.log(2) + 1e-9
    assert jsd(s, t).item() == pytest.approx(jsd(t, s).item())
    assert reverse_kl(s, t).item() == pytest.approx(forward_kl(t, s).item())


def test_the_sampled_gradient_is_that_of_the_full_divergence_on_average():
    """Sum over tokens y of pi(y) times the gradient of -A r at y, and the gradient of KL(student || teacher)."""
    student, teacher = torch.randn(1, 5, dtype=torch.float64), torch.randn(1, 5, dtype=torch.float64)
    a = student.clone().requires_grad_()
    (full,) = torch.autograd.grad(reverse_kl(a, teacher).sum(), a)
    total = torch.zeros_like(full)
    for y in range(5):
        new, fixed = a.log_softmax(-1)[0, y], teacher.log_softmax(-1)[0, y]
        term = -(fixed - new.detach()) * torch.exp(new - new.detach())
        total += torch.autograd.grad(term, a)[0] * new.detach().exp()
    torch.testing.assert_close(total, full)


def test_reductions_by_hand():
    """Rows of 1 and 3 tokens and a dead one: 1 / (3 * 1), 1 / (3 * 3); tokens alike 1 / 4; half and half."""
    assert token_shares([1, 3], 3) == [1 / 3, 1 / 9]
    assert token_shares([1, 3], 3, 0.0) == [1 / 4, 1 / 4]
    assert token_shares([1, 3], 3, 0.5) == pytest.approx([7 / 24, 13 / 72])
    assert token_shares([], 2) == []


def test_the_blend_moves_from_tokens_to_rows():
    blended = LossConfig(reduction="blended", ramp=0.5)
    assert [blended.balance(q, 8) for q in range(6)] == [0.0, 0.25, 0.5, 0.75, 1.0, 1.0]
    assert LossConfig(reduction="blended", ramp=0).balance(0, 8) == 1.0
    assert (LossConfig().balance(0, 8), LossConfig(reduction="token_mean").balance(7, 8)) == (1.0, 0.0)


def test_row_weights_meet_every_reduction():
    """Weights 1 and 3 are scaled to 1/2 and 3/2, whatever the reduction."""
    turns = [rollout(1, 1)[0], rollout(2, 1)[0]]
    n = [int(turn.valid_mask().sum()) for turn in turns]
    for balance, shares in ((1.0, [1 / (2 * n[0]), 1 / (2 * n[1])]), (0.0, [1 / sum(n)] * 2)):
        found = merge_rows(turns, np.array([1.0, 3.0]), balance)
        for one, share, weight in zip(found, shares, (0.5, 1.5), strict=True):
            np.testing.assert_allclose(one.weights, weight * share, rtol=1e-6)
    assert [s.weights.tolist() for s in merge_rows(turns)] == [s.shares.tolist() for s in merge_rows(turns)]


def other(base_model: Any) -> Any:
    """A teacher: the student with its weights moved."""
    torch.manual_seed(5)
    teacher = copy.deepcopy(base_model)
    for parameter in teacher.parameters():
        parameter.data += 0.05 * torch.randn_like(parameter)
    return teacher


def learner(base_model: Any, vocabulary: int = VOCAB, **loss: Any) -> Learner:
    reference = Reference(other(base_model), vocabulary)
    config = TrainConfig(learning_rate=1e-2, updates=10)
    return Learner(copy.deepcopy(base_model), config, loss=LossConfig(**loss), teacher=reference)


def test_the_default_is_the_papers_to_the_bit(base_model: Any):
    plain = gradient(Learner(copy.deepcopy(base_model), TrainConfig(learning_rate=1e-2)), BATCH)
    named = gradient(learner(base_model, name="sampled_reverse_kl", reduction="row_mean"), BATCH)
    assert plain[0] == named[0]
    assert all(torch.equal(a, b) for a, b in zip(plain[1], named[1], strict=True))


@pytest.mark.parametrize("name", ["reverse_kl", "forward_kl_top_k", "jsd"])
@pytest.mark.parametrize("reduction", ["row_mean", "token_mean"])
def test_an_update_is_the_formula(base_model: Any, name: str, reduction: str):
    """Loss and gradient of merged rows, against each row alone through the whole model."""
    stats, found = gradient(learner(base_model, name=name, reduction=reduction), BATCH)
    student, teacher = copy.deepcopy(base_model), other(base_model)
    live = [(turn, np.flatnonzero(turn.valid_mask())) for turn in BATCH if not turn.prompt_truncated]
    total, loss = sum(len(w) for _, w in live), torch.zeros(())
    for turn, where in live:
        tokens = torch.from_numpy(turn.context[: turn.end])[None]
        at = torch.from_numpy(turn.start + where - 1)
        with torch.no_grad():
            theirs = teacher(tokens).logits[0, at]
        each = load_loss(name)(student(tokens).logits[0, at], theirs)
        loss = loss + (each.mean() / len(BATCH) if reduction == "row_mean" else each.sum() / total)
    loss.backward()
    assert stats["loss"] == pytest.approx(float(loss.detach()), rel=1e-5)
    same(found, [p.grad for p in student.parameters()])


def test_losses_compare_the_tokens_that_both_know(base_model: Any):
    """A teacher that knows 40 ids: both distributions over these, and its input never holds another."""
    small = learner(base_model, vocabulary=40, name="reverse_kl")
    seen: list[int] = []
    small.teacher.scorer.model.get_input_embeddings().register_forward_hook(
        lambda _, inputs, __: seen.append(int(inputs[0].max()))
    )
    stats = small.update(BATCH)
    assert np.isfinite(stats["loss"]) and stats["loss"] >= 0 and max(seen) < 40
    assert stats["loss"] != learner(base_model, name="reverse_kl").update(BATCH)["loss"]


def test_statistics_do_not_depend_on_the_loss(base_model: Any):
    """Reported value, divergence and drift are the sampled tokens' under every loss: methods compare."""
    sampled, full = learner(base_model).update(BATCH), learner(base_model, name="reverse_kl").update(BATCH)
    for key in ("objective", "kl_per_token", "drift", "valid_tokens", "computed_tokens"):
        assert sampled[key] == pytest.approx(full[key], rel=1e-5)


def test_misfits_are_one_line(base_model: Any):
    with pytest.raises(LossError, match="unknown loss 'reverse_k'; nearest: reverse_kl"):
        load_loss("reverse_k")
    with pytest.raises(LossError, match="loss jsd: unknown parameter 'mx'; it has: mix"):
        load_loss("jsd", {"mx": 0.5})
    with pytest.raises(LossError, match="parameter 'mix' = 1.5: it lies between 0 and 1"):
        load_loss("jsd", {"mix": 1.5})
    with pytest.raises(LossError, match="'k' = 'a': int is due"):
        load_loss("reverse_kl_top_k", {"k": "a"})
    with pytest.raises(LossError, match="'k' = 0: at least 1"):
        load_loss("reverse_kl_top_k", {"k": 0})
    with pytest.raises(LossError, match="sampled_reverse_kl: unknown parameter 'k'; it has: none"):
        load_loss("sampled_reverse_kl", {"k": 1})
    assert load_loss("sampled_reverse_kl") is None and len(loss_names()) == 6
    with pytest.raises(ValueError, match="reverse_kl compares distributions: the learner needs the teacher"):
        Learner(copy.deepcopy(base_model), TrainConfig(), loss=LossConfig(name="reverse_kl"))
