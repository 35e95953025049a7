"""What a selection rule sees: the gate's verdict on a turn, and the turns of a pool as read-only columns.

Source: Algorithm 1 of DivOPD (arXiv 2609.34838, section 3).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from divopd.types import DropReason, Turn


def gate(turn: Turn) -> DropReason | None:
    """None for a VALID turn, else the first reason for which it is not.

    VALID: prompt not truncated; tokens, teacher log-probs and a non-empty action mask present; a teacher mask, if
    given, aligned with the action mask and sharing a position with it. Ours: log-probs of valid tokens must be finite
    (missing student ones count as non-finite). Truncated responses and badly formatted actions stay valid.
    """
    n = turn.response_tokens
    if turn.prompt_truncated:
        return DropReason.PROMPT_TRUNCATED
    if n <= 0 or turn.start < 1 or turn.end > len(turn.context):  # the first response token needs one before it
        return DropReason.NO_TOKENS
    if turn.teacher_logprobs is None or len(turn.teacher_logprobs) != n:
        return DropReason.NO_TEACHER_SCORES
    if turn.action_mask is None or len(turn.action_mask) != n or not turn.action_mask.any():
        return DropReason.EMPTY_ACTION_MASK
    if turn.teacher_mask is not None and len(turn.teacher_mask) != n:
        return DropReason.TEACHER_MASK_MISALIGNED
    mask = turn.valid_mask()
    if not mask.any():
        return DropReason.NO_VALID_TOKEN
    if turn.student_logprobs is None or len(turn.student_logprobs) != n:
        return DropReason.NON_FINITE
    finite = np.isfinite(turn.student_logprobs[mask]).all() and np.isfinite(turn.teacher_logprobs[mask]).all()
    return None if finite else DropReason.NON_FINITE


@dataclass(frozen=True, slots=True)
class Candidates:
    """Columns of the turns a rule may choose from, one row a turn. All arrays are read-only, of length n.

    Log-probability sums are natural logs over the turn's valid tokens V_t; rows that fail the gate hold NaN there and 0
    valid tokens. Groups are numbered in the numerical order of their rollout ids. A turn's depth is its `turn`.
    """

    rollout: np.ndarray  # (n, 3) int64: explorer batch, task, run
    group: np.ndarray  # int64: 0.. number of rollouts - 1, dense, one value a rollout
    turn: np.ndarray  # int64: position in its rollout
    version: np.ndarray  # int64
    age: np.ndarray  # int64: q - version
    first_seen: np.ndarray  # int64: update at which a read first kept it
    arrival: np.ndarray  # int64: order of arrival in the run
    prompt_tokens: np.ndarray  # int64
    response_tokens: np.ndarray  # int64
    valid_tokens: np.ndarray  # int64: |V_t|
    disagreement: np.ndarray  # float64: s(u) = sum of student - teacher log-probs
    student_nll: np.ndarray  # float64: -sum of student log-probs
    teacher_nll: np.ndarray  # float64: -sum of teacher log-probs
    entropy: np.ndarray  # float64: sum of the student's token entropies, where scored; else NaN
    reward: np.ndarray  # float64: the turn's
    success: np.ndarray  # bool: its rollout's
    rollout_turns: np.ndarray  # int64: length of its rollout
    valid: np.ndarray  # bool: passes the gate
    reason: np.ndarray  # text: the gate's reason (a DropReason) where it does not pass, else ""
    update: int  # q

    def __len__(self) -> int:
        return len(self.turn)

    @classmethod
    def from_turns(cls, turns: Sequence[Turn], update: int) -> Candidates:
        """Read the columns off the turns; `update` is q, the number of optimizer updates done."""
        rows = [_row(turn) for turn in turns]
        columns = {name: [row[name] for row in rows] for name in _TYPES}
        return cls.from_columns(columns, update)

    @classmethod
    def from_columns(cls, columns: Mapping[str, Any], update: int) -> Candidates:
        """From every column but `group` and `age`, which follow from the others (a recorded log has them all).

        `entropy` and `reason` may be absent: NaN, and "".
        """
        absent = {name: np.full(len(columns["turn"]), value) for name, value in _OPTIONAL.items()}
        given = {**absent, **columns}
        arrays: dict[str, np.ndarray] = {k: np.array(given[k], dtype=kind) for k, kind in _TYPES.items()}
        arrays["rollout"] = arrays["rollout"].reshape(-1, 3)
        arrays["group"] = dense_rank(arrays["rollout"])
        arrays["age"] = update - arrays["version"]
        for array in arrays.values():
            array.flags.writeable = False
        return cls(**arrays, update=update)


_OPTIONAL: dict[str, Any] = {"entropy": float("nan"), "reason": ""}
_KINDS: dict[str, type] = {
    **dict.fromkeys(("disagreement", "student_nll", "teacher_nll", "entropy", "reward"), np.float64),
    **dict.fromkeys(("success", "valid"), np.bool_),
    "reason": np.str_,
}
_TYPES: dict[str, type] = {
    f.name: _KINDS.get(f.name, np.int64) for f in fields(Candidates) if f.name not in ("group", "age", "update")
}


def _row(turn: Turn) -> dict[str, Any]:
    verdict = gate(turn)
    ok = verdict is None
    student = teacher = entropy = float("nan")
    mask = turn.valid_mask()
    if ok and turn.student_logprobs is not None and turn.teacher_logprobs is not None:
        student = float(turn.student_logprobs[mask].sum(dtype=np.float64))
        teacher = float(turn.teacher_logprobs[mask].sum(dtype=np.float64))
        scored = getattr(turn, "student_entropy", None)  # (response_tokens,) nats; no policy scores it yet
        if scored is not None:
            entropy = float(scored[mask].sum(dtype=np.float64))
    return {
        "rollout": turn.rollout,
        "turn": turn.index,
        "version": turn.version,
        "first_seen": turn.first_seen,
        "arrival": turn.arrival,
        "prompt_tokens": turn.start,
        "response_tokens": turn.response_tokens,
        "valid_tokens": int(mask.sum()) if ok else 0,
        "disagreement": student - teacher,
        "student_nll": -student,
        "teacher_nll": -teacher,
        "entropy": entropy,
        "reward": turn.reward,
        "success": turn.rollout_success,
        "rollout_turns": turn.rollout_turns,
        "valid": ok,
        "reason": verdict or "",
    }


def dense_rank(ids: np.ndarray) -> np.ndarray:
    """(n, k) ids -> (n,) int64 rank of each id among the distinct ones, numerically."""
    rank = np.zeros(len(ids), dtype=np.int64)
    if len(ids):
        order = np.lexsort(ids.T[::-1])
        rank[order[1:]] = np.cumsum((np.diff(ids[order], axis=0) != 0).any(axis=1))
    return rank
