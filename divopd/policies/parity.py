"""Do sampler and learner agree? The policy gap: |difference| of two back ends' log-probs of the same tokens, in nats.

Two implementations of one model differ by rounding. Anything more means that one of them holds other weights (a stale
head, a missed sync) or reads other tokens, which an objective made of log-prob differences would silently train on.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..config import RunConfig
from ..types import Actor, Rollout, by_context
from .base import Policy
from .hf import HFPolicy

GAP_ALARM = {"float32": 1e-3, "bfloat16": 0.05}
"""Mean gap, in nats, above which vLLM and the learner do not agree (ours): rounding is 1e-6 and about 0.01."""
Probes = tuple[list[np.ndarray], list[list[tuple[int, int]]]]
"""Contexts, and the spans to score in each."""
PROBES = 2
"""Rollouts whose tokens are scored again at each sync."""

log = logging.getLogger("divopd")


@dataclass(frozen=True, slots=True)
class Gap:
    """|difference| of log-probs over `tokens` tokens, in nats; NaN without tokens, or where a log-prob is NaN."""

    tokens: int
    mean: float
    maximum: float


def gap(one: Sequence[Sequence[np.ndarray]], other: Sequence[Sequence[np.ndarray]]) -> Gap:
    """Of two scorings of the same spans, as `Policy.score` returns them."""
    pairs = [
        np.abs(a.astype(np.float64) - b.astype(np.float64))
        for row, twin in zip(one, other, strict=True)
        for a, b in zip(row, twin, strict=True)
    ]
    differences = np.concatenate(pairs) if pairs else np.zeros(0)
    if not differences.size:
        return Gap(0, float("nan"), float("nan"))
    return Gap(differences.size, float(differences.mean()), float(differences.max()))


def student_spans(
    rollouts: Sequence[Rollout],
) -> tuple[list[np.ndarray], list[list[tuple[int, int]]], list[list[np.ndarray]]]:
    """Contexts, the spans that the student sampled in them, and the log-probs that it had then."""
    contexts, spans, logprobs = [], [], []
    for rollout in rollouts:
        mine = [t for t in rollout.turns if t.response_tokens and t.actor is Actor.STUDENT]
        for turns in by_context(mine):
            contexts.append(turns[0].context[: turns[-1].end])
            spans.append([(turn.start, turn.end) for turn in turns])
            logprobs.append([t.student_logprobs for t in turns if t.student_logprobs is not None])  # each has them
    return contexts, spans, logprobs


class Parity:
    """Scores a few of the last rollouts with sampler and learner after each sync, and warns where they disagree."""

    def __init__(self, config: RunConfig) -> None:
        student = config.student
        default = GAP_ALARM[student.dtype] if student.backend == "vllm" else None
        self.limit = student.gap_alarm or default  # None: no probe
        self.drift_limit = config.train.drift_alarm
        self.probes: Probes = ([], [])
        self.alarms = 0

    def note(self, rollouts: Sequence[Rollout]) -> None:
        """An explorer step has been played."""
        if self.limit is not None:
            contexts, spans, _ = student_spans(rollouts[:PROBES])
            self.probes = contexts, spans

    def published(self, sampler: Policy, model: Any, eos: int, version: int) -> list[dict[str, Any]]:
        """Rows of parity.parquet. `sampler` has just taken the weights of `model`, the learner's."""
        if self.limit is None or not self.probes[0]:
            return []
        contexts, spans = self.probes
        found = gap(sampler.score(contexts, spans), HFPolicy(model, eos).score(contexts, spans))
        return [self.row(found, version)]

    def row(self, found: Gap, version: int) -> dict[str, Any]:
        """A row of parity.parquet, and its alarm. Both sides held the weights of `version`."""
        if self.limit is not None:
            self._alarm("the sampler's log-probs differ from the learner's", found.mean, self.limit, version)
        return {"version": version, "tokens": found.tokens, "mean_gap": found.mean, "max_gap": found.maximum}

    def drift(self, drift: float, version: int) -> None:
        """An update from `version` has recomputed its batch's log-probs; NaN where it had no token."""
        if self.drift_limit is not None and not np.isnan(drift):
            self._alarm("log-probs of the batch have drifted", drift, self.drift_limit, version)

    def _alarm(self, what: str, nats: float, limit: float, version: int) -> None:
        if not nats <= limit:  # NaN is an alarm
            self.alarms += 1
            log.warning("ALARM version %d: %s by %.3g nats a token, more than %g", version, what, nats, limit)

    def state_dict(self) -> dict[str, Any]:
        return {"probes": self.probes, "alarms": self.alarms}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.probes, self.alarms = state["probes"], state["alarms"]
