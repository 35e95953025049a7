"""Transcripts: the words of a few rollouts, with both models' log-probability of every response token.

turns.parquet has one sum a turn; a reader who wants to see where in a sentence the student left its teacher needs the
tokens. So a run keeps the first rollouts of some explorer steps, evenly spread over its learner versions, and nothing
of the others. What is kept depends on the run alone, and a turn's row is logged when its turns.parquet row is.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from divopd.types import Rollout, Turn

MARKS = 6  # explorer steps a run: the first at or after each of as many evenly spaced versions
ROLLOUTS = 2  # of such a step
# A rollout's turns are kept up to these, so that long responses leave a run's file below 60 kB as well.
TOKENS = 400
CHARACTERS = 12_000

Key = tuple[int, int, int, int]


class Transcripts:
    """Picks rollouts as they are played, and holds their rows until the turns' lives end.

    `updates`: optimizer updates of the whole run. `tokenizer`: the student's.
    """

    def __init__(self, updates: int, tokenizer: Any) -> None:
        self.updates, self.tokenizer = updates, tokenizer
        self._reached = -1  # the last mark that has its step
        self._waiting: dict[Key, dict[str, Any]] = {}

    def note(self, rollouts: Sequence[Rollout], version: int) -> None:
        """An explorer step was played with the weights of `version`, and scored; call it once a step."""
        mark = version * MARKS // self.updates
        if mark <= self._reached:
            return
        self._reached = mark
        for rollout in rollouts[:ROLLOUTS]:
            self._waiting.update(self._rows(rollout))

    def take(self, closed: Iterable[Turn]) -> list[dict[str, Any]]:
        """The transcripts.parquet rows of those of these turns that have one, in their order."""
        keys = ((*turn.rollout, turn.index) for turn in closed)
        return [self._waiting.pop(key) for key in keys if key in self._waiting]

    def state_dict(self) -> dict[str, Any]:
        """What a resume point keeps."""
        return {"reached": self._reached, "waiting": dict(self._waiting)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._reached, self._waiting = state["reached"], dict(state["waiting"])

    def _rows(self, rollout: Rollout) -> dict[Key, dict[str, Any]]:
        rows: dict[Key, dict[str, Any]] = {}
        tokens = characters = 0
        before: Turn | None = None
        for turn in rollout.turns:
            # a history that is written anew has a context of its own, all of which the turn was told
            row = self._row(rollout, turn, before.end if before is not None and before.context is turn.context else 0)
            before = turn
            tokens += turn.response_tokens
            characters += len(row["prompt"]) + sum(map(len, row["tokens"]))
            if rows and (tokens > TOKENS or characters > CHARACTERS):
                break
            rows[(*turn.rollout, turn.index)] = row
        return rows

    def _row(self, rollout: Rollout, turn: Turn, told: int) -> dict[str, Any]:
        """One turn's row; `told`: tokens of the context that earlier rows have shown."""
        response = turn.context[turn.start : turn.end].tolist()
        return {
            "explorer_batch": turn.rollout[0], "task_index": turn.rollout[1], "run": turn.rollout[2],
            "turn": turn.index, "actor": str(turn.actor),
            "prompt": self.tokenizer.decode(turn.context[told : turn.start].tolist()),
            "tokens": [self.tokenizer.decode([token]) for token in response],
            "student_logprobs": _numbers(turn.student_logprobs), "teacher_logprobs": _numbers(turn.teacher_logprobs),
            "valid": turn.valid_mask().tolist(),
            "episode_reward": float(rollout.reward), "episode_success": bool(rollout.success),
        }  # fmt: skip


def _numbers(values: np.ndarray | None) -> list[float] | None:
    return None if values is None else np.asarray(values, dtype=np.float32).tolist()
