"""What a batch is made of, and how evenly a run uses its rollouts (arXiv 2609.34838, section 4).

Every number comes in two ways that agree: online, update by update (`batch_diagnostics`, `RolloutUse`), and from a
finished log or a replay (`column_diagnostics`, analysis/collect.py).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from divopd.candidates import Candidates
from divopd.types import DropReason, RolloutId, Turn

DEPTHS = {"0-2": (0, 2), "2-4": (2, 4), "4-6": (4, 6), "6-10": (6, 10), "10+": (10, np.iinfo(np.int64).max)}
"""The paper's depth classes: turn index from, up to but not including."""
OUTCOMES = {"failure": False, "success": True}


def batch_diagnostics(turns: Sequence[Turn], update: int) -> dict[str, float]:
    """Composition of the batch of update q. Empty batches give NaN where nothing can be averaged."""
    return column_diagnostics(Candidates.from_turns(turns, update))


def column_diagnostics(batch: Candidates) -> dict[str, float]:
    """The same from a batch's columns.

    Token shares p_r count row tokens (prompt + response), the unit of training cost: `effective_rollouts` is
    1 / sum p_r^2, between 1 and `rollouts`. `kl_per_token` is the mean of student - teacher cached log-prob (nats) over
    valid tokens, `dead_row_share` the share of rows without any; ages are in versions.
    """
    n, age = len(batch), batch.age
    rows = batch.prompt_tokens + batch.response_tokens
    share = np.bincount(batch.group, weights=rows) / max(rows.sum(), 1)
    valid_tokens = int(batch.valid_tokens.sum())
    nan = float("nan")
    return {
        "rows": n,
        "rollouts": len(share),
        "effective_rollouts": float(1.0 / np.square(share).sum()) if n else nan,
        "top_rollout_token_share": float(share.max()) if n else nan,
        "turns_per_rollout": n / len(share) if n else nan,
        "dead_row_share": float(1.0 - batch.valid.mean()) if n else nan,
        "kl_per_token": float(np.nansum(batch.disagreement)) / valid_tokens if valid_tokens else nan,
        "mean_age": float(age.mean()) if n else nan,
        "max_age": int(age.max()) if n else nan,
        "row_tokens": int(rows.sum()),
        "response_tokens": int(batch.response_tokens.sum()),
        "valid_tokens": valid_tokens,
        **{depth_column(*key): count for key, count in depth_counts(batch.turn, batch.success).items()},
    }


def depth_column(depth: str, outcome: str) -> str:
    """The name of a depth class and outcome in the run log: selected_0_2_failure, .., selected_10_up_success."""
    return f"selected_{depth.replace('-', '_').replace('+', '_up')}_{outcome}"


def depth_counts(turn: np.ndarray, success: np.ndarray) -> dict[tuple[str, str], int]:
    """Rows by (depth class, outcome of their rollout), of DEPTHS and OUTCOMES; `turn` and `success` are (n,)."""
    return {
        (depth, outcome): int(((turn >= low) & (turn < high) & (success == won)).sum())
        for depth, (low, high) in DEPTHS.items()
        for outcome, won in OUTCOMES.items()
    }


class RolloutUse:
    """How a run has used its rollouts so far: the online form of `analysis.collect.selection_use`. Picklable.

    A rollout counts when one of its turns is valid, and not while it is undecided: nothing of it was selected and a
    turn still waits.
    """

    def __init__(self) -> None:
        self._index: dict[RolloutId, int] = {}
        self._valid: list[bool] = []
        self._selected = np.zeros(0, dtype=np.int64)
        self._open: list[Turn] = []

    def arrive(self, turns: Sequence[Turn], valid: bool) -> None:
        """The turns of one rollout entered the pool; `valid`: one of them passes the gate."""
        if turns:
            self._index[turns[0].rollout] = len(self._valid)
            self._valid.append(valid)
            self._open.extend(turns)

    def row(self) -> dict[str, float]:
        """`valid_rollouts`, `undecided_rollouts`, `never_selected_share`, `selected_gini`, as of now."""
        self._selected = np.r_[self._selected, np.zeros(len(self._valid) - len(self._selected), dtype=np.int64)]
        waiting = np.zeros(len(self._valid), dtype=bool)
        still = []
        for turn in self._open:
            if turn.selected_at >= 0:
                self._selected[self._index[turn.rollout]] += 1
            elif turn.dropped is None or turn.dropped is DropReason.UNREAD:
                waiting[self._index[turn.rollout]] = True
                still.append(turn)
        self._open = still
        valid = np.array(self._valid, dtype=bool)
        undecided = valid & (self._selected == 0) & waiting
        counts = self._selected[valid & ~undecided].astype(np.float64)
        return {
            "valid_rollouts": len(counts),
            "undecided_rollouts": int(undecided.sum()),
            "never_selected_share": float((counts == 0).mean()) if len(counts) else float("nan"),
            "selected_gini": gini(counts),
        }


def gini(values: np.ndarray) -> float:
    """Gini coefficient of non-negative `values` (n,): 0 when all are equal, (n - 1) / n when one has all."""
    ordered = np.sort(np.asarray(values, dtype=np.float64))
    n, total = len(ordered), float(ordered.sum())
    if total <= 0:
        return float("nan")
    return float(2.0 * (np.arange(1, n + 1) * ordered).sum() / (n * total) - (n + 1) / n)
