"""What a batch is made of (arXiv 2609.34838, section 4). What became of all turns: analysis/collect.py."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from divopd.candidates import Candidates
from divopd.types import Turn


def batch_diagnostics(turns: Sequence[Turn], update: int) -> dict[str, float]:
    """Composition of the batch of update q. Empty batches give NaN where nothing can be averaged.

    Token shares p_r count row tokens (prompt + response), the unit of training cost: `effective_rollouts` is
    1 / sum p_r^2, between 1 and `rollouts`. `kl_per_token` is the mean of student - teacher cached log-prob (nats) over
    valid tokens, `dead_row_share` the share of rows without any; ages are in versions.
    """
    columns = Candidates.from_turns(turns, update)
    n, age = len(turns), columns.age
    rows = np.array([turn.row_tokens for turn in turns], dtype=np.int64)
    share = np.bincount(columns.group, weights=rows) / max(rows.sum(), 1)
    valid_tokens = int(columns.valid_tokens.sum())
    nan = float("nan")
    return {
        "rows": n,
        "rollouts": len(share),
        "effective_rollouts": float(1.0 / np.square(share).sum()) if n else nan,
        "top_rollout_token_share": float(share.max()) if n else nan,
        "turns_per_rollout": n / len(share) if n else nan,
        "dead_row_share": float(1.0 - columns.valid.mean()) if n else nan,
        "kl_per_token": float(np.nansum(columns.disagreement)) / valid_tokens if valid_tokens else nan,
        "mean_age": float(age.mean()) if n else nan,
        "max_age": int(age.max()) if n else nan,
        "row_tokens": int(rows.sum()),
        "response_tokens": int(columns.response_tokens.sum()),
        "valid_tokens": valid_tokens,
    }


def gini(values: np.ndarray) -> float:
    """Gini coefficient of non-negative `values` (n,): 0 when all are equal, (n - 1) / n when one has all."""
    ordered = np.sort(np.asarray(values, dtype=np.float64))
    n, total = len(ordered), float(ordered.sum())
    if total <= 0:
        return float("nan")
    return float(2.0 * (np.arange(1, n + 1) * ordered).sum() / (n * total) - (n + 1) / n)
