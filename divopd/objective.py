"""The objective every method shares (arXiv 2609.34838, section 2), as pure functions of tensors.

Log-probabilities are natural logs at temperature 1. Padded functions take (N, T) tensors, one row a turn, with a bool
mask `valid` of its valid tokens V_t; values outside the mask are ignored, whatever they are. No clip, no entropy bonus,
no KL penalty, no critic, no task reward, and no importance weight from the behaviour policy.
"""

from __future__ import annotations

import torch
from torch import Tensor


def advantage(teacher_logprobs: Tensor, old_logprobs: Tensor, beta: float = 1.0) -> Tensor:
    """A = beta * stopgrad(log pi_phi - log pi_theta_old), token by token. `old` is the learner just before its step."""
    return beta * (teacher_logprobs - old_logprobs).detach()


def ratio(logprobs: Tensor, old_logprobs: Tensor) -> Tensor:
    """r = exp(log pi_theta - stopgrad(log pi_theta_old)), token by token: 1 where the two are equal."""
    return torch.exp(logprobs - old_logprobs.detach())


def row_loss(
    logprobs: Tensor, old_logprobs: Tensor, teacher_logprobs: Tensor, valid: Tensor, beta: float = 1.0
) -> Tensor:
    """(N, T) -> (N,): l_t = -(1 / |V_t|) * sum over V_t of A * r. A dead row (V_t empty) gives 0, and no gradient."""
    zero = logprobs.new_zeros(())
    # masked before the arithmetic: a NaN times 0 would still be NaN, in the gradient too
    new, old, teacher = (torch.where(valid, x, zero) for x in (logprobs, old_logprobs, teacher_logprobs))
    terms = advantage(teacher, old, beta) * ratio(new, old)
    return -torch.where(valid, terms, zero).sum(-1) / valid.sum(-1).clamp(min=1)


def batch_loss(
    logprobs: Tensor, old_logprobs: Tensor, teacher_logprobs: Tensor, valid: Tensor, beta: float = 1.0,
    row_weights: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """(N, T) -> scalar: (1 / N) * sum of row losses. Dead rows contribute 0 and stay in the denominator N.

    With `row_weights` (N,), which a rule may give: (1 / N) * sum of w_t * l_t, w scaled to a mean of 1 (ours).
    """
    losses = row_loss(logprobs, old_logprobs, teacher_logprobs, valid, beta)
    if row_weights is not None:
        losses = losses * (row_weights * len(valid) / row_weights.sum())
    return losses.sum() / len(valid)


def reported_value(old_logprobs: Tensor, teacher_logprobs: Tensor, valid: Tensor, beta: float = 1.0) -> Tensor:
    """(N, T) -> scalar: -mean of A over the valid tokens of each row, then over rows. Ours: over the live rows.

    It is the loss times N / (rows with a valid token).
    """
    loss = batch_loss(old_logprobs, old_logprobs, teacher_logprobs, valid, beta).detach()
    return loss * len(valid) / valid.any(-1).sum()


def token_weights(valid: Tensor) -> Tensor:
    """(N, T) bool -> (N, T) float32: 1 / (N * |V_t|) on valid tokens, 0 elsewhere."""
    return valid.float() / (len(valid) * valid.sum(-1, keepdim=True).clamp(min=1))


def weighted_loss(
    logprobs: Tensor, old_logprobs: Tensor, teacher_logprobs: Tensor, weights: Tensor, beta: float = 1.0
) -> Tensor:
    """(M,) valid tokens of any rows, in any order -> scalar: -sum of w * A * r.

    With weights w_t / (N * |V_t|) it equals `batch_loss`, and sums over any split of the tokens: micro-batches, and
    rows merged into one sequence.
    """
    return -(weights * advantage(teacher_logprobs, old_logprobs, beta) * ratio(logprobs, old_logprobs)).sum()
