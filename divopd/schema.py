"""The run log's tables: columns, types and units, under one version number that every file carries."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from divopd.diagnostics import DEPTHS, OUTCOMES, depth_column
from divopd.types import Turn

SCHEMA_VERSION = 3

I, F, S, B = pa.int64(), pa.float64(), pa.string(), pa.bool_()


def _schema(name: str, columns: Mapping[str, pa.DataType]) -> pa.Schema:
    metadata = {"divopd_table": name, "divopd_schema": str(SCHEMA_VERSION)}
    return pa.schema([pa.field(key, kind) for key, kind in columns.items()], metadata=metadata)


def _list(kind: pa.DataType) -> pa.DataType:
    """A list column, its entries named as Parquet names them: what was read back is written with the same bytes."""
    return pa.list_(pa.field("element", kind))


# Times are virtual seconds; versions and updates count from 0; -1 is "never"; scores are sums of natural-log
# probabilities over the turn's valid tokens and null where it has none.
TURNS = _schema("turns", {
    "explorer_batch": I, "task_index": I, "run": I, "turn": I, "task": S, "actor": S, "version": I, "arrival": I,
    "arrival_time": F, "first_seen": I, "prompt_tokens": I, "response_tokens": I, "valid_tokens": I,
    "disagreement": F, "student_nll": F, "teacher_nll": F, "action": S, "valid_action": B, "progress": B, "reward": F,
    "success": B, "rollout_turns": I, "prompt_truncated": B, "response_truncated": B, "selected_at": I, "dropped": S,
    "dropped_at": I,
})  # fmt: skip
# "cum": summed over the run up to the end of this update. learner_seconds is this update's own; it does not hold
# read_wait. row_tokens = prompt + response tokens of the batch's rows (the paper's unit); computed_tokens = after
# rows of one rollout have been merged. objective = -mean advantage over valid tokens per row, then over live rows (the
# paper's reported value); drift = mean |recomputed - cached| student log-prob a valid token; both NaN for a batch of
# dead rows. arrival_rate = turns a virtual second of the run so far; drain_rate = rows a second of busy learner so far.
UPDATES = _schema("updates", {
    "update": I, "time_start": F, "time_end": F, "read_wait": F, "learner_seconds": F,
    "explorer_seconds": F, "teacher_seconds": F,  # both cum
    "loss": F, "objective": F, "kl_per_token": F, "drift": F, "grad_norm": F,
    "rows": I, "rollouts": I, "effective_rollouts": F,
    "top_rollout_token_share": F, "turns_per_rollout": F, "dead_row_share": F, "mean_age": F, "max_age": I,
    "row_tokens": I, "response_tokens": I, "valid_tokens": I, "computed_tokens": I,
    "arrived_turns": I, "stale_rows": I,  # both cum
    "queue_length": I, "teacher_tokens": I,  # cum
    "arrival_rate": F, "drain_rate": F, "explorer_steps": I,  # cum
    "takeovers": I, "teacher_turns": I, "teacher_generated_tokens": I, "teacher_generation_seconds": F,  # all cum
    "horizon": I,
    # how the run has used its rollouts up to this batch; selected rows of this batch by depth class and outcome
    "valid_rollouts": I, "undecided_rollouts": I, "never_selected_share": F, "selected_gini": F,
    **{depth_column(depth, outcome): I for depth in DEPTHS for outcome in OUTCOMES},
})  # fmt: skip
# score: the environment's own after the last turn (ScienceWorld: its score / 100), null where it has none.
EVALS = _schema("evals", {
    "version": I, "explorer_step": I, "time": F, "episode": I, "task": S, "success": B, "reward": F, "score": F,
    "turns": I, "response_tokens": I, "invalid_actions": I, "stop": S,
})  # fmt: skip
SCHEMAS = {"turns": TURNS, "updates": UPDATES, "evals": EVALS}
# A few rollouts in words (divopd/transcripts.py), one row a turn; the first four columns name its row in turns.parquet.
# prompt: what the context gained since the turn before, or all of it if written anew. One entry a response token:
# its text, its natural-log probability under either model (null where it was not scored) and whether it counts (the
# turn's valid tokens).
TRANSCRIPTS = _schema("transcripts", {
    "explorer_batch": I, "task_index": I, "run": I, "turn": I, "actor": S, "prompt": S, "tokens": _list(S),
    "student_logprobs": _list(pa.float32()), "teacher_logprobs": _list(pa.float32()), "valid": _list(B),
    "episode_reward": F, "episode_success": B,
})  # fmt: skip
# One row a sync that was probed (divopd/policies/parity.py): |sampler's - learner's| log-prob, nats, over `tokens`
# sampled tokens, both under the weights of `version`. Only of runs whose sampler is not the learner's own code.
PARITY = _schema("parity", {"version": I, "tokens": I, "mean_gap": F, "max_gap": F})
OPTIONAL = {"transcripts": TRANSCRIPTS, "parity": PARITY}  # runs of before transcripts were kept lack them
TABLES = SCHEMAS | OPTIONAL


def turn_row(turn: Turn, task: str) -> dict[str, Any]:
    """The turns.parquet row of a turn whose life has ended (selected or dropped); a teacher's or expert's has none.

    Non-finite sums become null.
    """
    mask = turn.valid_mask()

    def total(values: np.ndarray | None) -> float | None:
        if values is None or len(values) != len(mask) or not mask.any():
            return None
        result = float(np.asarray(values, dtype=np.float64)[mask].sum())
        return result if np.isfinite(result) else None

    student, teacher = total(turn.student_logprobs), total(turn.teacher_logprobs)
    return {
        "explorer_batch": turn.rollout[0], "task_index": turn.rollout[1], "run": turn.rollout[2], "turn": turn.index,
        "task": task, "actor": str(turn.actor), "version": turn.version, "arrival": turn.arrival,
        "arrival_time": turn.arrival_time, "first_seen": turn.first_seen, "prompt_tokens": turn.start,
        "response_tokens": turn.response_tokens, "valid_tokens": int(mask.sum()),
        "disagreement": None if student is None or teacher is None else student - teacher,
        "student_nll": None if student is None else -student, "teacher_nll": None if teacher is None else -teacher,
        "action": turn.action, "valid_action": bool(turn.valid_action), "progress": bool(turn.progress),
        "reward": float(turn.reward), "success": bool(turn.rollout_success), "rollout_turns": turn.rollout_turns,
        "prompt_truncated": bool(turn.prompt_truncated), "response_truncated": bool(turn.response_truncated),
        "selected_at": turn.selected_at, "dropped": None if turn.dropped is None else str(turn.dropped),
        "dropped_at": turn.dropped_at,
    }  # fmt: skip
