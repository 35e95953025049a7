"""Which queued turns train: the rule protocol, its registry, and the parts rules are made of.

A rule sees read-only columns and returns row indices. It knows no model, no environment, no evaluation data and no
clock but age. Source of gate, coverage and focus: Algorithm 1 of DivOPD (arXiv 2609.34838, section 3).
"""

from __future__ import annotations

import difflib
import importlib.util
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError

from divopd.candidates import Candidates, gate
from divopd.seeds import seed as named_seed

__all__ = [
    "Candidates",
    "Rule",
    "RuleError",
    "arrival_order",
    "available_rules",
    "best_first",
    "checked_select",
    "coverage",
    "draws",
    "focus_order",
    "gate",
    "load_rule",
    "rule_files",
    "rules_dir",
    "uniform_order",
]


class RuleError(ValueError):
    """A rule that cannot be found or built, or that broke its contract. One line, for the user to read."""


def arrival_order(pool: Candidates) -> np.ndarray:
    """(n,) row indices, first arrived first."""
    return np.argsort(pool.arrival, kind="stable")


def best_first(pool: Candidates, score: np.ndarray) -> np.ndarray:
    """(n,) row indices by `score` (n,) descending, ties by (rollout, turn), NaN last."""
    return np.lexsort((pool.turn, pool.group, -np.asarray(score, dtype=np.float64)))


def focus_order(pool: Candidates) -> np.ndarray:
    """Step 5: by s(u), the summed signed student - teacher log-prob, from cached scores: no model call."""
    return best_first(pool, pool.disagreement)


def uniform_order(pool: Candidates, seed: int) -> np.ndarray:
    """A uniformly random order of the turns of each rollout, which no other rollout in the pool can change."""
    return best_first(pool, draws(pool, seed))


def draws(pool: Candidates, seed: int, per_rollout: bool = False) -> np.ndarray:
    """(n,) uniform numbers in [0, 1), a function of (seed, q, rollout, turn) alone, or of (seed, q, rollout).

    A counter-based hash (the splitmix64 finalizer, Steele et al. 2014) rather than a sequential generator, so that a
    row's number depends neither on the order of rows nor on which others are there.
    """
    columns = [*pool.rollout.T] if per_rollout else [*pool.rollout.T, pool.turn]
    state = np.full(len(pool), named_seed(seed, "selection", pool.update), dtype=np.uint64)
    for column in columns:
        state ^= column.astype(np.uint64)
        state += np.uint64(0x9E3779B97F4A7C15)
        state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        state ^= state >> np.uint64(31)
    return (state >> np.uint64(11)).astype(np.float64) * 2.0**-53


def coverage(pool: Candidates, order: np.ndarray, cap: int | None, budget: int) -> np.ndarray:
    """Steps 4, 6 and 7: spread the batch over rollouts, oldest first-seen first, ties by rollout id.

    `order` (n,) ranks all rows, best first; only its order inside each rollout matters. One sweep in which every
    rollout gives its best `cap` turns, then, while the batch is short, sweeps that give one more each. `cap` None: no
    limit. Returns at most `budget` row indices, in sweep order. Full batches hold at least ceil(budget / cap) rollouts
    whenever that many are there.
    """
    n = len(pool)
    if n == 0:
        return np.empty(0, dtype=np.int64)
    oldest = np.full(int(pool.group.max()) + 1, np.iinfo(np.int64).max)
    np.minimum.at(oldest, pool.group, pool.first_seen)
    by_group = order[np.lexsort((pool.group[order], oldest[pool.group[order]]))]  # stable: keeps `order` inside
    groups = pool.group[by_group]
    starts = np.flatnonzero(np.r_[True, groups[1:] != groups[:-1]])
    place = np.arange(n) - np.repeat(starts, np.diff(np.r_[starts, n]))  # 0, 1, .. inside each rollout
    sweep = np.zeros(n, dtype=np.int64) if cap is None else np.maximum(place - (cap - 1), 0)
    return by_group[np.argsort(sweep, kind="stable")[:budget]]


class Rule(BaseModel):
    """A batch-selection rule. Fields are its parameters, settable from the experiment's YAML.

    `gated`: invalid rows are thrown away before the rule sees them. `reads`: how many turns the pool offers, "batch"
    (B) or "pool" (c * B). `name` is the name of the file that holds the class, set by the loader.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    name: ClassVar[str] = ""
    gated: ClassVar[bool] = True
    reads: ClassVar[Literal["batch", "pool"]] = "pool"

    def select(self, pool: Candidates, budget: int, seed: int) -> np.ndarray:
        """Distinct row indices in the order in which they enter the batch: `budget` of them, or all rows if fewer.

        Batches are full, so that rules compare at equal B: a rule that prefers some turns puts the others last. The
        choice depends on the columns, not on the order of rows. All randomness comes from `draws(pool, seed)`, or from
        a generator seeded with `seed` and `pool.update`.
        """
        raise NotImplementedError

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickle as name (or file) and parameters: the class lives in a file that only the loader can import."""
        if not self.name:
            return super().__reduce_ex__(protocol)
        file = sys.modules[type(self).__module__].__file__
        shipped = rule_files().get(self.name)
        known = shipped is not None and file is not None and shipped.samefile(file)
        return load_rule, (self.name if known else file, self.model_dump())


def checked_select(rule: Rule, pool: Candidates, budget: int, seed: int) -> np.ndarray:
    """`rule.select` as int64 indices. Raises RuleError, naming the rule, where it breaks the contract."""

    def broken(what: str) -> RuleError:
        return RuleError(f"rule {rule.name or type(rule).__name__}, update {pool.update}: {what}")

    try:
        raw = np.asarray(rule.select(pool, budget, seed))
    except Exception as error:
        raise broken(f"select() failed with {type(error).__name__}: {error}") from error
    if raw.ndim != 1:
        raise broken(f"returned an array of shape {raw.shape} where a 1-d array of row indices is due")
    due = min(budget, len(pool))
    short = f"returned {raw.size} of {due} rows: batches are full, so put what you like least last"
    if raw.size == 0:
        if due > 0:
            raise broken(short)
        return np.empty(0, dtype=np.int64)
    if not np.issubdtype(raw.dtype, np.integer):
        raise broken(f"returned {raw.dtype} values where integer row indices are due")
    if raw.size > budget:
        raise broken(f"returned {raw.size} rows for a budget of {budget}")
    if raw.min() < 0 or raw.max() >= len(pool):
        bad = int(raw.min()) if raw.min() < 0 else int(raw.max())
        raise broken(f"returned row {bad}, outside 0..{len(pool) - 1}")
    values, counts = np.unique(raw, return_counts=True)
    if len(values) < raw.size:
        raise broken(f"returned row {int(values[counts.argmax()])} {int(counts.max())} times")
    if raw.size < due:
        raise broken(short)
    return raw.astype(np.int64)


def rules_dir() -> Path:
    """The folder in which a file is a rule: `baselines/` beside the package, else under the working directory."""
    beside = Path(__file__).resolve().parent.parent / "baselines"
    return beside if beside.is_dir() else Path.cwd() / "baselines"


def rule_files() -> dict[str, Path]:
    """Name -> file of every shipped rule, sorted; nothing is imported."""
    return {path.stem: path for path in sorted(rules_dir().glob("*.py")) if not path.stem.startswith("_")}


def available_rules() -> dict[str, type[Rule]]:
    """Name -> class of every shipped rule, sorted by name. Raises RuleError where a file holds no rule."""
    return {name: _load_class(path) for name, path in rule_files().items()}


def load_rule(name_or_path: str | Path, params: Mapping[str, Any] | None = None) -> Rule:
    """A rule by name (a file in `baselines/`) or by path (any .py file), with its parameters.

    Raises RuleError, in one line, for an unknown rule, an unknown parameter or a value that does not fit.
    """
    known, text = rule_files(), str(name_or_path)
    if text in known:
        cls = _load_class(known[text])
    elif text.endswith(".py") and Path(text).is_file():
        cls = _load_class(Path(text))
    else:
        near = difflib.get_close_matches(text, known, n=3, cutoff=0.4) or list(known)
        raise RuleError(
            f"unknown rule {text!r}; nearest: {', '.join(near)}. Name a file in {rules_dir().name}/ without its "
            "ending, or give the path of a .py file"
        )
    try:
        return cls(**dict(params or {}))
    except ValidationError as error:
        raise RuleError(f"rule {cls.name}: {_explain(cls, error)}") from None


def _explain(cls: type[Rule], error: ValidationError) -> str:
    first = error.errors()[0]
    key = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        has = ", ".join(cls.model_fields) or "none"
        return f"unknown parameter {key!r}; it has: {has}"
    return f"parameter {key!r} = {first['input']!r}: {first['msg']}"


def _load_class(path: Path) -> type[Rule]:
    """The one Rule subclass that the file defines. Imported once for each path."""
    module_name = f"divopd_rule_{named_seed(path.resolve()):016x}_{path.stem}"
    module = sys.modules.get(module_name)
    if module is None:
        spec = importlib.util.spec_from_file_location(module_name, path)
        assert spec is not None and spec.loader is not None, path
        module = sys.modules[module_name] = importlib.util.module_from_spec(spec)  # pydantic looks names up there
        try:
            spec.loader.exec_module(module)
        except Exception as error:
            del sys.modules[module_name]
            raise RuleError(f"rule file {path.name} cannot be imported: {type(error).__name__}: {error}") from error
    found = [c for c in vars(module).values() if isinstance(c, type) and issubclass(c, Rule)]
    found = [c for c in found if c.__module__ == module_name]
    if len(found) != 1:
        raise RuleError(f"rule file {path.name} defines {len(found)} subclasses of Rule where one is due")
    found[0].name = path.stem
    return found[0]
