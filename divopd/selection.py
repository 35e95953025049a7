"""Which queued turns train: the rule protocol, its registry, and the parts rules are made of.

A rule sees read-only columns and returns row indices. It knows no model, no environment, no evaluation data and no
clock but age.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from pydantic import BaseModel, ConfigDict


@dataclass(frozen=True, slots=True)
class Candidates:
    """Columns of the turns a rule may choose from, one row a turn, in arrival order. All arrays are read-only, length n.

    Log-probability sums run over the turn's valid tokens V_t; rows without any hold NaN.
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
    reward: np.ndarray  # float64: the turn's
    success: np.ndarray  # bool: its rollout's
    rollout_turns: np.ndarray  # int64: length of its rollout
    valid: np.ndarray  # bool: passes the gate
    update: int  # q

    def __len__(self) -> int:
        return len(self.turn)


class Rule(BaseModel):
    """A batch-selection rule. Fields are its parameters, settable from the experiment's YAML.

    `gated`: dead rows are thrown away before the rule sees them. `reads`: how many turns the pool offers, "batch" (B)
    or "pool" (c * B).
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    name: ClassVar[str]
    gated: ClassVar[bool] = True
    reads: ClassVar[str] = "pool"

    def select(self, pool: Candidates, budget: int, rng: np.random.Generator) -> np.ndarray:
        """Distinct row indices, at most `budget` of them, in the order in which they enter the batch."""
        raise NotImplementedError
