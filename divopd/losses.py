"""Loss variants: what one token of a turn costs, as pure functions of both models' logits.

The paper's loss, `sampled_reverse_kl`, needs the sampled tokens' log-probs alone and stays in objective.py. The others
need the teacher's distribution: the learner computes it with the frozen teacher on the same sequences. How tokens add
up to a batch's loss, `reduction`, is apart: token_shares. A new variant is one decorated function in this file.

Logits of -inf are tokens of probability 0: they count 0 and get no gradient, as if the vocabulary did not hold them. A
divergence that is infinite or has a NaN in it is so for its row alone; the learner names that row.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

SAMPLED = "sampled_reverse_kl"
Loss = Callable[[Tensor, Tensor], Tensor]
"""(m, V) student logits, (m, V) teacher logits -> (m,) nats. The teacher's carry no gradient."""

_LOSSES: dict[str, Callable[..., Tensor]] = {}


class LossError(ValueError):
    """A loss that cannot be found or built; one line."""


def variant(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Make a function of (student logits, teacher logits, *, parameters) a loss by its own name."""
    _LOSSES[function.__name__] = function
    return function


@variant
def reverse_kl(student: Tensor, teacher: Tensor) -> Tensor:
    """KL(student || teacher) over the vocabulary: what the sampled loss estimates from one token."""
    return _kl(F.log_softmax(student, -1), F.log_softmax(teacher, -1))


@variant
def forward_kl(student: Tensor, teacher: Tensor) -> Tensor:
    """KL(teacher || student) over the vocabulary."""
    return _kl(F.log_softmax(teacher, -1), F.log_softmax(student, -1))


@variant
def jsd(student: Tensor, teacher: Tensor, *, mix: float = 0.5) -> Tensor:
    """Generalised Jensen-Shannon divergence: mix KL(teacher || M) + (1 - mix) KL(student || M).

    M = mix teacher + (1 - mix) student, 0 < mix < 1. Source: GKD (arXiv 2306.13649), whose beta is `mix`.
    """
    if not 0 < mix < 1:
        raise LossError(f"loss jsd: parameter 'mix' = {mix}: it lies between 0 and 1")
    ours, theirs = F.log_softmax(student, -1), F.log_softmax(teacher, -1)
    neither = (ours == -torch.inf) & (theirs == -torch.inf)  # of which logaddexp's gradient is NaN
    a, b = theirs.masked_fill(neither, 0), ours.masked_fill(neither, 0)
    middle = torch.logaddexp(a + np.log(mix), b + np.log1p(-mix))
    return mix * _kl(theirs, middle) + (1 - mix) * _kl(ours, middle)


@variant
def reverse_kl_top_k(student: Tensor, teacher: Tensor, *, k: int = 16) -> Tensor:
    """KL(student || teacher) over the student's k likeliest tokens and one class of all others (ours).

    Between 0 and the full divergence, which it is for k = V.
    """
    ours, theirs = _top_k(F.log_softmax(student, -1), F.log_softmax(teacher, -1), k)
    return _kl(ours, theirs)


@variant
def forward_kl_top_k(student: Tensor, teacher: Tensor, *, k: int = 16) -> Tensor:
    """KL(teacher || student) over the teacher's k likeliest tokens and one class of all others (ours)."""
    theirs, ours = _top_k(F.log_softmax(teacher, -1), F.log_softmax(student, -1), k)
    return _kl(theirs, ours)


def _kl(p: Tensor, q: Tensor) -> Tensor:
    """(m, V) log-probs -> (m,) KL(p || q); classes of probability 0 under p count 0, and so does their gradient."""
    # masked before the arithmetic: after it the value would be right, and the gradient 0 * inf
    none = p == -torch.inf
    p, q = p.masked_fill(none, 0), q.masked_fill(none, 0)
    return (p.exp() * (p - q)).sum(-1)


def _top_k(leader: Tensor, other: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """(m, V) log-probs -> both (m, k + 1): the leader's k likeliest tokens, and what is left as one class."""
    if k < 1:
        raise LossError(f"a top-k loss: parameter 'k' = {k}: at least 1")
    if k >= leader.shape[-1]:
        return leader, other
    top = leader.topk(k, -1).indices
    rest = torch.ones_like(leader, dtype=torch.bool).scatter(-1, top, False)
    return tuple(  # type: ignore[return-value]
        torch.cat([x.gather(-1, top), _total(x.masked_fill(~rest, -torch.inf))], -1) for x in (leader, other)
    )


def _total(x: Tensor) -> Tensor:
    """(m, V) log-probs -> (m, 1), of all of them together; where that is 0, without a gradient (torch's is NaN)."""
    none = (x == -torch.inf).all(-1, keepdim=True)
    return x.masked_fill(none, 0).logsumexp(-1, keepdim=True).masked_fill(none, -torch.inf)


def loss_names() -> list[str]:
    """Every loss, sorted."""
    return sorted([SAMPLED, *_LOSSES])


def load_loss(name: str, params: Mapping[str, Any] | None = None) -> Loss | None:
    """A loss with its parameters; None for the sampled one, which needs no distribution.

    Raises LossError, in one line, for an unknown name, an unknown parameter or a value of another kind.
    """
    if name not in loss_names():
        near = get_close_matches(name, loss_names(), n=3, cutoff=0.4) or loss_names()
        raise LossError(f"unknown loss {name!r}; nearest: {', '.join(near)}")
    function = _LOSSES.get(name)
    signature = inspect.signature(function).parameters if function else {}
    known = {key: p.default for key, p in signature.items() if p.kind is p.KEYWORD_ONLY}
    given = dict(params or {})
    for key, value in given.items():
        if key not in known:
            raise LossError(f"loss {name}: unknown parameter {key!r}; it has: {', '.join(known) or 'none'}")
        kinds = (int, float) if isinstance(known[key], float) else (type(known[key]),)
        if type(value) not in kinds:
            raise LossError(f"loss {name}: parameter {key!r} = {value!r}: {type(known[key]).__name__} is due")
    if function is None:
        return None
    loss = partial(function, **given)
    loss(torch.zeros(1, 2), torch.zeros(1, 2))  # values that no tensor can mend are named now
    return loss


def token_shares(tokens: Sequence[int], rows: int, balance: float = 1.0) -> list[float]:
    """Weight of each token of the live rows with `tokens` valid tokens each, in a batch of `rows` rows.

    balance 1, the row mean (the paper): 1 / (N * |V_t|), dead rows counting in N. 0, the token mean: 1 / sum of |V_t|.
    Between: their blend, as in TurnOPD (arXiv 2607.05804).
    """
    total = sum(tokens)
    return [balance / (rows * n) + (1.0 - balance) / total for n in tokens]
