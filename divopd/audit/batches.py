"""Batches of an audit as coefficients of their turns, and what they hold of signal, of noise and of lost causes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """Pool rows of one batch, and the rule's weights of them if it gives any."""

    rows: np.ndarray  # int64 (m,)
    weights: np.ndarray | None = None  # float64 (m,)

    def shares(self, n: int) -> np.ndarray:
        """float64 (n,), adding up to 1: with them the sum of g_t is the gradient that the learner steps along."""
        return mean(self.rows, n, self.weights)


def mean(rows: np.ndarray, n: int, weights: np.ndarray | None = None) -> np.ndarray:
    """(n,) coefficients of a mean over `rows`."""
    return np.bincount(rows, weights, n) / (len(rows) if weights is None else weights.sum())


@dataclass(frozen=True, slots=True, eq=False)
class Truth:
    """Sampled gradients beside those over the vocabulary, of which a sampled token's is one noisy draw (ours)."""

    gram: np.ndarray  # (n, n), sampled with sampled
    cross: np.ndarray  # (n, n), sampled with whole
    whole: np.ndarray  # (n, n), whole with whole
    target: np.ndarray  # (n,) coefficients of the pool's mean

    @property
    def pool(self) -> float:
        """Cosine of the pool's sampled gradient with the pool's whole one."""
        t = self.target
        return _cosine(t @ self.cross @ t, self.gram, t, self.whole, t)

    def of(self, drawn: Sequence[Batch]) -> dict[str, float]:
        """`true_cosine`: the step's cosine with the pool's whole gradient. It falls short of 1 for two reasons.

        `choice_cosine`: the batch's whole gradient with the pool's, what the choice of rows costs. `noise_cosine`: the
        step with its own batch's whole gradient, what sampling one token costs.
        """
        t, each = self.target, []
        for batch in drawn:
            b = batch.shares(len(t))
            each.append({
                "true_cosine": _cosine(b @ self.cross @ t, self.gram, b, self.whole, t),
                "choice_cosine": _cosine(b @ self.whole @ t, self.whole, b, self.whole, t),
                "noise_cosine": _cosine(b @ self.cross @ b, self.gram, b, self.whole, b),
            })  # fmt: skip
        return pd.DataFrame(each).mean().to_dict()


def fate(drawn: Sequence[Batch], columns: pd.DataFrame) -> dict[str, float]:
    """Means over the batches' rows: turns of won rollouts, and states from which the teacher wins."""
    rows = [columns[["won", "rescued"]].iloc[batch.rows].mean() for batch in drawn]
    return pd.DataFrame(rows).mean().to_dict()


def _cosine(inner: float, left: np.ndarray, a: np.ndarray, right: np.ndarray, b: np.ndarray) -> float:
    return ratio(inner, np.sqrt((a @ left @ a) * (b @ right @ b)))


def ratio(part: float, whole: float) -> float:
    """NaN over 0: gradients vanish at weights that training has blown up."""
    return float(part / whole) if whole else float("nan")
