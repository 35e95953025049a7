"""Token log-probs of a causal language model, with no more logits in memory than asked for.

At a vocabulary of 150,000 one position's logits are 0.6 MB, and a training pass holds them three times over. The head
therefore sees only the positions that train, `chunk` of them at a time; the backward pass computes each chunk again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from divopd.varlen import packed_arguments

Measure = Callable[..., Any]
"""(c, V) float32 logits and c rows of whatever else it was given -> one (c, ...) tensor, or a tuple of them."""


def by_chunks(measure: Measure, chunk: int | None, *tensors: Tensor) -> Any:
    """`measure` of at most `chunk` rows of the tensors at a time, computed again in the backward pass; joined.

    The values are those of one call, and so are the gradients, to rounding. None: one call that keeps all it made.
    """
    if chunk is None or len(tensors[0]) <= chunk:
        return measure(*tensors)
    parts = [
        checkpoint(measure, *rows, use_reentrant=False, preserve_rng_state=False)
        for rows in zip(*(x.split(chunk) for x in tensors), strict=True)
    ]
    if isinstance(parts[0], Tensor):
        return torch.cat(parts)
    return tuple(torch.cat(column) for column in zip(*parts, strict=True))


def picked(logits: Tensor, targets: Tensor) -> Tensor:
    """(m, V) logits, (m,) tokens -> (m,) their log-probs."""
    return -F.cross_entropy(logits, targets, reduction="none")


class TokenLogprobs(nn.Module):
    """Log-probs of chosen tokens under a causal language model: the head sees only the positions that train.

    A module, so that sharding wrappers can wrap the whole computation. `chunk`: by_chunks. Raises ValueError for models
    that do more between body and logits than one linear head.
    """

    def __init__(self, model: Any, chunk: int | None = None) -> None:
        super().__init__()
        for key in ("final_logit_softcapping", "logit_scale", "logits_scaling"):
            if getattr(model.config, key, None) not in (None, 1, 1.0):
                raise ValueError(f"{type(model).__name__} rescales its logits ({key}), which the learner does not do")
        self.model, self.chunk = model, chunk

    def forward(
        self, tokens: Tensor, rows: Tensor, predicts: Tensor, targets: Tensor | None = None,
        lengths: tuple[int, ...] | None = None, measure: Measure | None = None, beside: tuple[Tensor, ...] = (),
    ) -> Any:  # fmt: skip
        """int64 (b, t) tokens and (m,) indices -> float32 (m,): log pi(targets | tokens[rows, : predicts + 1]).

        `lengths`: `tokens` is one row of so long sequences, each of which sees itself alone (varlen.pack_attention).
        With `measure` instead: what it makes of the logits, the targets and the tensors `beside`, all of m rows.
        With neither: float32 (m, V), the logits themselves.
        """
        hidden = self.hidden(tokens, rows, predicts, lengths)
        if targets is None:
            return self.head(hidden)
        what = measure or picked
        return by_chunks(lambda h, *more: what(self.head(h), *more), self.chunk, hidden, targets, *beside)

    def hidden(self, tokens: Tensor, rows: Tensor, predicts: Tensor, lengths: tuple[int, ...] | None = None) -> Tensor:
        """(m, d): the last layer's output where a token is predicted."""
        # Right padding under a causal mask: no real token sees it, so no mask is needed and the fast path is taken.
        # Never a cache: with one, transformers lets packed sequences see each other, without a word.
        more = {} if lengths is None else packed_arguments(lengths, tokens.device)
        return self.model.base_model(input_ids=tokens, use_cache=False, **more).last_hidden_state[rows, predicts]

    def head(self, hidden: Tensor) -> Tensor:
        """(m, d) -> float32 (m, V) logits."""
        return self.model.get_output_embeddings()(hidden).float()


class Reference:
    """The frozen teacher's distribution where the student trains. Token ids from `vocabulary` on are unknown to it."""

    def __init__(self, model: Any, vocabulary: int) -> None:
        self.scorer, self.vocabulary = TokenLogprobs(model), vocabulary

    @torch.no_grad()
    def hidden(self, tokens: Tensor, rows: Tensor, predicts: Tensor, lengths: tuple[int, ...] | None = None) -> Tensor:
        """As TokenLogprobs.hidden. An unknown token is read as token 0, as rollout.score does."""
        return self.scorer.hidden(torch.where(tokens < self.vocabulary, tokens, 0), rows, predicts, lengths)

    @torch.no_grad()
    def logits(self, hidden: Tensor) -> Tensor:
        """(m, d) from `hidden` -> float32 (m, vocabulary)."""
        return self.scorer.head(hidden)[:, : self.vocabulary]
