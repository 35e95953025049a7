"""What a selection rule is, and the check that each of its choices goes through."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict

from divopd.candidates import Candidates

Choice = np.ndarray | tuple[np.ndarray, np.ndarray]
"""Row indices, or the pair (row indices, their weights)."""


class RuleError(ValueError):
    """A rule that cannot be found or built, or that broke its contract. One line, for the user to read."""


class Rule(BaseModel):
    """A batch-selection rule. Fields are its parameters, settable from the experiment's YAML.

    `gated`: invalid rows are thrown away before the rule sees them. `reads`: how many turns the pool offers, "batch"
    (B) or "pool" (c * B). `name` and `address` (what `load_rule` finds it by: a name or a path) are set by the loader.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)
    name: ClassVar[str] = ""
    address: ClassVar[str] = ""
    gated: ClassVar[bool] = True
    reads: ClassVar[Literal["batch", "pool"]] = "pool"

    def select(self, pool: Candidates, budget: int, seed: int) -> Choice:
        """Distinct row indices in the order in which they enter the batch: `budget` of them, or all rows if fewer.

        Batches are full, so that rules compare at equal B: a rule that prefers some turns puts the others last. The
        choice depends on the columns, not on the order of rows. All randomness comes from `draws(pool, seed)`, or from
        a generator seeded with `seed` and `pool.update`.

        A pair (indices, weights) weighs the rows' losses: w >= 0, finite, not all 0. The learner scales them to a mean
        of 1 over the batch.
        """
        raise NotImplementedError

    def initial_state(self) -> Any:
        """What the rule remembers before the first update: anything picklable. None: it remembers nothing."""
        return None

    def advance(self, pool: Candidates, budget: int, seed: int, state: Any) -> tuple[Choice, Any]:
        """(choice, state for the next update). A rule with state overrides this in place of `select`.

        Called once an update, in order; the state is saved in the run's resume points.
        """
        return self.select(pool, budget, seed), state

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickle as address and parameters: the class lives where only the loader can import it."""
        if not self.address:
            return super().__reduce_ex__(protocol)
        from divopd.rules_registry import load_rule

        return load_rule, (self.address, self.model_dump())


@dataclass(frozen=True, slots=True, eq=False)
class Selection:
    """A checked choice."""

    rows: np.ndarray  # (m,) int64 row indices, in batch order
    weights: np.ndarray | None  # (m,) float64 as the rule gave them; None: all rows count alike
    state: Any  # for the next update


def apply_rule(rule: Rule, pool: Candidates, budget: int, seed: int, state: Any) -> Selection:
    """One call of `rule.advance`, checked. Raises RuleError, naming the rule, where it breaks the contract."""

    def broken(what: str) -> RuleError:
        return RuleError(f"rule {rule.name or type(rule).__name__}, update {pool.update}: {what}")

    try:
        choice, state = rule.advance(pool, budget, seed, state)
        rows, weights = choice if isinstance(choice, tuple) and len(choice) == 2 else (choice, None)
        rows = np.asarray(rows)
        weights = None if weights is None else np.asarray(weights)
    except Exception as error:
        raise broken(f"select() failed with {type(error).__name__}: {error}") from error
    try:
        pickle.dumps(state)
    except Exception as error:  # pickling can raise anything
        raise broken(f"its state cannot be saved in a resume point: {error}") from error
    wrong = _wrong_rows(rows, len(pool), budget) or (None if weights is None else _wrong_weights(weights, rows.shape))
    if wrong:
        raise broken(wrong)
    return Selection(rows.astype(np.int64), None if weights is None else weights.astype(np.float64), state)


def checked_select(rule: Rule, pool: Candidates, budget: int, seed: int) -> np.ndarray:
    """(m,) int64 row indices of a rule's choice from its initial state. Raises RuleError as `apply_rule`."""
    return apply_rule(rule, pool, budget, seed, rule.initial_state()).rows


def _wrong_rows(rows: np.ndarray, n: int, budget: int) -> str | None:
    """The first way in which these are not the rows of a batch."""
    due = min(budget, n)
    if rows.ndim != 1:
        return f"returned an array of shape {rows.shape} where a 1-d array of row indices is due"
    if rows.size and not np.issubdtype(rows.dtype, np.integer):
        return f"returned {rows.dtype} values where integer row indices are due"
    if rows.size > budget:
        return f"returned {rows.size} rows for a budget of {budget}"
    outside = rows[(rows < 0) | (rows >= n)]
    if outside.size:
        return f"returned row {int(outside[0])}, outside 0..{n - 1}"
    values, counts = np.unique(rows, return_counts=True)
    if len(values) < rows.size:
        return f"returned row {int(values[counts.argmax()])} {int(counts.max())} times"
    if rows.size < due:
        return f"returned {rows.size} of {due} rows: batches are full, so put what you like least last"
    return None


def _wrong_weights(weights: np.ndarray, shape: tuple[int, ...]) -> str | None:
    """The first way in which these are not the weights of that many rows."""
    if weights.shape != shape:
        return f"returned weights of shape {weights.shape} for {shape[0]} rows"
    if weights.size and not np.issubdtype(weights.dtype, np.number):
        return f"returned {weights.dtype} weights where numbers are due"
    if not np.isfinite(weights).all() or (weights < 0).any():
        return "returned weights that are not all finite and >= 0"
    if weights.size and not weights.any():
        return "returned weights that are all 0"
    return None
