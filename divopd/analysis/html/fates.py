"""Which turns an update chose among, and why each of the others was left or dropped, told from turns.parquet."""

from __future__ import annotations

import numpy as np
import pandas as pd

from divopd.types import DropReason

# one letter a fate, and what the page says of it; the first is the only good one
FATES = {
    "s": "selected",
    "c": "kept: its rollout had given as many as the cap allows, or more",
    "f": "kept: the rule put others first, and the batch was full",
    "q": "waiting: arrived, not read yet",
    "o": "dropped: too old (stale), its weights were too many versions behind",
    "x": "dropped: waited for too many updates (expired)",
    "p": "dropped by the gate: prompt past its limit",
    "n": "dropped by the gate: no response token",
    "t": "dropped by the gate: no teacher scores",
    "m": "dropped by the gate: no token may train",
    "a": "dropped by the gate: teacher mask of another length",
    "v": "dropped by the gate: no token that both models have",
    "i": "dropped by the gate: log-probability not finite",
}
_DROPPED = {
    DropReason.STALE: "o", DropReason.EXPIRED: "x", DropReason.PROMPT_TRUNCATED: "p", DropReason.NO_TOKENS: "n",
    DropReason.NO_TEACHER_SCORES: "t", DropReason.EMPTY_ACTION_MASK: "m", DropReason.TEACHER_MASK_MISALIGNED: "a",
    DropReason.NO_VALID_TOKEN: "v", DropReason.NON_FINITE: "i",
}  # fmt: skip


def fates_at(turns: pd.DataFrame, update: int, start: float, cap: int | None) -> pd.Series:
    """Fate at one update of every turn that was queued, pending or read then: a letter of FATES, by row label.

    `turns`: turns.parquet; `start`: the update's `time_start`, virtual seconds; `cap`: the rule's turns a rollout, None
    for a rule without. Turns that arrived later or whose life had ended before have no fate, and neither have the
    teacher's.
    """
    first_seen, selected_at, dropped_at = (
        turns[name].to_numpy() for name in ("first_seen", "selected_at", "dropped_at")
    )
    seen = (first_seen >= 0) & (first_seen <= update)
    began = seen | (turns["arrival_time"].to_numpy() <= start)
    ended = np.where(selected_at >= 0, selected_at, dropped_at)  # never -1: every life ends
    here = np.flatnonzero((ended >= update) & (began | (ended == update)))
    here = here[(turns["actor"].iloc[here] == "student").to_numpy()]  # words are slow: few rows are left here
    seen, selected, reasons = seen[here], selected_at[here] == update, turns["dropped"].iloc[here]
    dropped = (
        reasons.notna().to_numpy() & (dropped_at[here] == update) & (reasons != DropReason.UNREAD.value).to_numpy()
    )
    rollouts = np.stack([turns[name].to_numpy()[here] for name in ("explorer_batch", "task_index", "run")], axis=1)
    _, rollout = np.unique(rollouts, axis=0, return_inverse=True)
    given = np.bincount(rollout, selected)[rollout]
    letters = np.select([selected, seen & (given >= (np.inf if cap is None else cap)), seen], ["s", "c", "f"], "q")
    letters[dropped & ~selected] = [_DROPPED[reason] for reason in reasons[dropped & ~selected]]
    return pd.Series(letters, index=turns.index[here])
