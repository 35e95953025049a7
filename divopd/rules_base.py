"""What a selection rule is, and the check that each of its choices goes through."""

from __future__ import annotations

import os
import pickle
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict

from divopd.candidates import Candidates

Choice = np.ndarray | tuple[np.ndarray, np.ndarray]
"""Row indices, or the pair (row indices, their weights)."""


class RuleError(ValueError):
    """A rule that cannot be found or built, or that broke its contract. One line, for the user to read."""


@contextmanager
def guarded(doing: str, file: str | None, but: type[Exception] | None = None) -> Iterator[None]:
    """Whatever a rule's code raises in this block becomes a RuleError that names the line of `file` it came from.

    So does what would end Python without a word (`sys.exit`). Ctrl-C stays what it is, and an exception like `but`.
    """
    try:
        yield
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        if but is not None and isinstance(error, but):
            raise
        raise RuleError(f"{doing} {type(error).__name__}: {error}{_line(error, file)}") from error


def _line(error: BaseException, file: str | None) -> str:
    """The file and line of what was raised there or below; "" where no frame is of that file."""
    if isinstance(error, SyntaxError) and error.filename == file:
        lines = [error.lineno]
    else:
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
    if file is None or not lines:
        return ""
    shown = os.path.relpath(file) if Path(file).is_relative_to(Path.cwd()) else file
    return f" ({shown}, line {lines[-1]})"


def rule_file(rule: Rule | type[Rule]) -> str | None:
    """The file in which a rule's class or function stands."""
    cls = rule if isinstance(rule, type) else type(rule)
    return getattr(sys.modules.get(cls.__module__), "__file__", None)


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

    name, file = f"rule {_name(rule)}, update {pool.update}:", rule_file(rule)
    with guarded(f"{name} select() failed with", file):
        choice, state = rule.advance(pool, budget, seed, state)
        rows, weights = choice if isinstance(choice, tuple) and len(choice) == 2 else (choice, None)
        rows = np.asarray(rows)
        weights = None if weights is None else np.asarray(weights)
    with guarded(f"{name} its state cannot be saved in a resume point:", file):
        pickle.dumps(state)
    wrong = _wrong_rows(rows, len(pool), budget) or (None if weights is None else _wrong_weights(weights, rows.shape))
    if wrong:
        raise RuleError(f"{name} {wrong}")
    return Selection(rows.astype(np.int64), None if weights is None else weights.astype(np.float64), state)


def first_state(rule: Rule) -> Any:
    """`rule.initial_state()`. Raises RuleError where that fails."""
    with guarded(f"rule {_name(rule)}: initial_state() failed with", rule_file(rule)):
        return rule.initial_state()


def _name(rule: Rule) -> str:
    return rule.name or type(rule).__name__


def checked_select(rule: Rule, pool: Candidates, budget: int, seed: int) -> np.ndarray:
    """(m,) int64 row indices of a rule's choice from its initial state. Raises RuleError as `apply_rule`."""
    return apply_rule(rule, pool, budget, seed, first_state(rule)).rows


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
