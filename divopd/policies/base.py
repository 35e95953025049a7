"""The interface between the rollout loop and whatever holds the weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

if TYPE_CHECKING:
    from .road import Way

Spans = Sequence[Sequence[tuple[int, int]]]
"""For each context, the (start, end) token positions to score."""


class PolicyError(RuntimeError):
    """A checkpoint is missing, unreadable or does not fit; the message names it and the mend."""


class EngineLostError(PolicyError):
    """The process behind a policy has died. The policy is of no use any more; a new one may be."""


def as_ends(ends: int | Sequence[int]) -> tuple[int, ...]:
    """Token ids that end a response, of one or several."""
    return (ends,) if isinstance(ends, int) else tuple(ends)


@dataclass(frozen=True, slots=True)
class Sample:
    """One sampled response. `logprobs` are natural logs at temperature 1, whatever temperature drew the tokens."""

    tokens: np.ndarray  # int64, ends with an end-of-turn token unless truncated
    logprobs: np.ndarray  # float32, same length
    truncated: bool
    version: int | None = None  # of the weights behind its first token, if they were given one; no token has older ones


class Session(Protocol):
    """Several episodes played at once by one set of weights, their attention caches kept from turn to turn."""

    def act(
        self,
        rows: Sequence[int],
        new_tokens: Sequence[np.ndarray],
        temperature: float,
        max_tokens: int,
        draws: Sequence[np.random.Generator],
        idle: Sequence[int] = (),
    ) -> list[Sample]:
        """Append `new_tokens[i]` to episode `rows[i]`, then sample its response.

        Episodes in `idle` wait: another policy acts there. Those in neither are over.
        """
        ...


class Policy(Protocol):
    """Sampling, scoring, and taking new weights."""

    concurrent: bool
    """Whether many threads may play sessions at once. Where False, a policy serves one thread at a time."""

    gpus: list[str | None]
    """UUIDs of the GPUs that hold the weights; None: a CPU."""

    @property
    def vocabulary(self) -> int:
        """Rows of the embedding: token ids below it can be read and scored, whatever the tokenizer defines."""
        ...

    def session(self, episodes: int) -> Session: ...

    def score(self, contexts: Sequence[np.ndarray], spans: Spans) -> list[list[np.ndarray]]:
        """For each context, the float32 log-probs of `context[start:end]` given what precedes, one array a span."""
        ...

    def load_weights(self, weights: Mapping[str, Any], version: int | None = None) -> None:
        """Take weights in place, by the checkpoint's names; samples are labelled with `version` from then on.

        Tied embeddings may be left out under their second name. The tensors are only read until it returns. Raises
        `PolicyError` for a misfit.
        """
        ...

    def receive(self, way: Way, here: str, version: Callable[[], int]) -> None:
        """The same with what comes along a road, of which this policy is the taker; `version()` is known after it.

        `here`: this node's address. A `PolicyError` leaves it to the caller to load weights again.
        """
        ...

    def weights(self) -> dict[str, Any]:
        """The weights that sample now, by the checkpoint's names, in the policy's type, without tied copies."""
        ...

    def close(self) -> None:
        """Stop what runs behind it; the policy is of no use afterwards."""
        ...
