"""A rule's batch against its pool: projection, cosine, what focus drops, and the identities that must hold.

Everything is a sum over turns of weights times gradients, so the inner products of the pool's turns say it all. Pool
rows are numbered as in `Moment.turns`. Source of the quantities: arXiv 2609.34838, its gradient alignment table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from divopd.audit.batches import Batch, Truth, fate, mean, ratio
from divopd.audit.gradients import RowGradients
from divopd.candidates import Candidates
from divopd.config import MethodConfig
from divopd.selection import Rule, apply_rule, available_rules, first_state, load_rule
from divopd.types import Turn

ORACLE = "oracle"  # the B live turns whose gradients have the largest inner product with the pool's


@dataclass(frozen=True, slots=True, eq=False)
class Audit:
    """The tables of one audit."""

    rules: pd.DataFrame  # a row a rule, means over draws
    turns: pd.DataFrame  # a row a turn of the pool
    checks: pd.DataFrame  # a row an identity: how far its two sides are apart, over the longer one's length
    facts: dict[str, Any]


def audit(
    turns: Sequence[Turn], update: int, budget: int, gradients: RowGradients, rules: Mapping[str, Rule],
    seeds: Sequence[int], whole: RowGradients | None = None, rescued: np.ndarray | None = None,
) -> Audit:  # fmt: skip
    """Measure every rule's batch of `budget` rows on one pool, once a seed of `seeds` (what `Rule.select` gets).

    The pool gradient is the mean over its live rows; a batch's is the mean over its rows, dead ones included, which is
    what the learner steps along. `whole`: gradients of the rows' loss over the whole vocabulary, in the same sketch;
    `rescued` (n,): shares of rescue.rescued. Raises RuleError as `apply_rule` does.
    """
    pool = Candidates.from_turns(turns, update)
    gram, live = gradients.gram(), np.flatnonzero(pool.valid)
    target = mean(live, len(pool))
    along = gram @ target
    batches = {name: choose(rule, turns, pool, budget, seeds) for name, rule in rules.items()}
    best = live[np.argsort(-along[live], kind="stable")[:budget]]
    columns = _turn_columns(pool, gradients, gram, along)
    columns["won"] = [float(turn.rollout_success) for turn in turns]
    columns["rescued"] = np.nan if rescued is None else rescued
    truth = None if whole is None else Truth(gram, gradients.gram(whole), whole.gram(), target)
    rows = [
        _rule_row(name, drawn, pool, gram, target) | fate(drawn, columns) | (truth.of(drawn) if truth else {})
        for name, drawn in {**batches, ORACLE: [Batch(best)]}.items()
    ]
    facts = {
        "update": update, "rows": len(pool), "dead": len(pool) - len(live), "rollouts": int(pool.group.max()) + 1,
        "parameters": gradients.parameters, "sketch": gradients.features.shape[1] if gradients.sketched else 0,
        "mean_age": float(pool.age[live].mean()), "batch_rows": budget, "seeds": len(seeds),
        "spearman": spearman(columns["disagreement"], columns["recomputed"]),
        "spearman_norm": spearman(columns["disagreement"], columns["norm"]),
        "spearman_along": spearman(columns["disagreement"], columns["along"]),
        "spearman_rescued": spearman(columns["disagreement"], columns["rescued"]),
        "won": columns["won"][pool.valid].mean(), "rescued": columns["rescued"][pool.valid].mean(),
        "truth_cosine": truth.pool if truth else np.nan,
    }  # fmt: skip
    return Audit(pd.DataFrame(rows), columns, pd.DataFrame(_checks(pool, gram, batches)), facts)


def rules_for(method: MethodConfig, names: Sequence[str] = ()) -> dict[str, Rule]:
    """Rules by name, all of them or `names`, with the run's own parameters where they have them, such as the cap.

    Raises RuleError for an unknown one.
    """
    out = {}
    for name in names or available_rules():
        known = type(load_rule(name)).model_fields
        out[name] = load_rule(name, {key: value for key, value in method.params.items() if key in known})
    return out


def choose(rule: Rule, turns: Sequence[Turn], pool: Candidates, budget: int, seeds: Sequence[int]) -> list[Batch]:
    """What a rule selects, once a seed. It is offered what it reads, live turns or all, all or the first B, and a rule
    that remembers starts from its initial state.
    """
    rows = np.flatnonzero(pool.valid) if rule.gated else np.arange(len(pool))
    if rule.reads == "batch":
        rows = rows[np.argsort(pool.arrival[rows], kind="stable")[:budget]]
    offered = Candidates.from_turns([turns[i] for i in rows.tolist()], pool.update)
    chosen = [apply_rule(rule, offered, budget, seed, first_state(rule)) for seed in seeds]
    return [Batch(rows[choice.rows], choice.weights) for choice in chosen]


def spearman(a: Any, b: Any) -> float:
    """Spearman's rank correlation over the places where both are finite; NaN where one of them does not vary."""
    pair = pd.DataFrame({"a": np.asarray(a, dtype=float), "b": np.asarray(b, dtype=float)}).dropna().rank()
    if pair.nunique().min() < 2:
        return float("nan")
    return float(pair["a"].corr(pair["b"]))


def _rule_row(name: str, drawn: list[Batch], pool: Candidates, gram: np.ndarray, target: np.ndarray) -> dict[str, Any]:
    size = float(target @ gram @ target)
    each = []
    for batch in drawn:
        rows, weights = batch.rows, batch.shares(len(pool))
        inner, own = float(weights @ gram @ target), float(weights @ gram @ weights)
        each.append({
            "rows": len(rows), "dead_rows": int((~pool.valid[rows]).sum()), "rollouts": len(set(pool.group[rows])),
            "projection": ratio(inner, size), "cosine": ratio(inner, np.sqrt(own * size)),
            "norm_ratio": np.sqrt(ratio(own, size)),
            **_dropped(rows, pool, np.diag(gram)),
        })  # fmt: skip
    frame = pd.DataFrame(each)
    spread = {f"{key}_std": frame[key].std(ddof=0) for key in ("projection", "cosine")}
    return {
        "rule": name,
        "batches": len({tuple(sorted(batch.rows)) for batch in drawn}),
        **frame.mean().to_dict(),
        **spread,
    }


def _dropped(rows: np.ndarray, pool: Candidates, squares: np.ndarray) -> dict[str, float]:
    """Of the live turns of the batch's rollouts, the share left behind: by number, and by squared gradient norm."""
    near = pool.valid & np.isin(pool.group, pool.group[rows])
    kept = np.zeros(len(pool), dtype=bool)
    kept[rows] = True
    left = near & ~kept
    return {
        "dropped_turns": ratio(left.sum(), near.sum()),
        "dropped_norm": ratio(squares[left].sum(), squares[near].sum()),
    }


def _turn_columns(pool: Candidates, gradients: RowGradients, gram: np.ndarray, along: np.ndarray) -> pd.DataFrame:
    """A row a turn: cached and recomputed s(u) (nats), gradient norm, inner product with the pool gradient."""
    ids = dict(zip(("explorer_batch", "task_index", "run"), pool.rollout.T, strict=True))
    return pd.DataFrame({
        **ids, "turn": pool.turn, "age": pool.age, "valid": pool.valid, "valid_tokens": pool.valid_tokens,
        "disagreement": pool.disagreement, "recomputed": gradients.disagreement,
        "norm": np.where(pool.valid, np.sqrt(np.diag(gram)), np.nan), "along": np.where(pool.valid, along, np.nan),
    })  # fmt: skip


# identities ----------------------------------------------------------------------------------------------------------


def _checks(pool: Candidates, gram: np.ndarray, batches: Mapping[str, list[Batch]]) -> list[dict[str, Any]]:
    """Identities on this pool. `expected`: the distance that a right identity may have, 0 but for rounding."""
    plain = {name: [batch.rows for batch in drawn] for name, drawn in batches.items() if drawn[0].weights is None}
    sides = [("gate", "gate_only", gate_identity(pool), 0.0)]
    for name, drawn in plain.items():
        sides.append(("covariance", name, covariance_identity(drawn, len(pool)), 0.0))
    if {"divopd", "divopd_base"} <= plain.keys():
        base = plain["divopd_base"]
        sides.append(("focus minus base", "divopd", focus_identity(pool, base[0], plain["divopd"][0]), 0.0))
        expected = base_sampling_error(pool, base, gram)
        sides.append(("base", "divopd_base", base_identity(pool, base), expected))
    return [
        {"identity": name, "rule": rule, "distance": _apart(*both, gram), "expected": expected}
        for name, rule, both, expected in sides
    ]


def _apart(left: np.ndarray, right: np.ndarray, gram: np.ndarray) -> float:
    """Distance of two sums of gradients over the length of the longer, by the coefficients of their turns."""
    length, other, gap = (float(np.sqrt(max(c @ gram @ c, 0.0))) for c in (left, right, left - right))
    return gap / max(length, other) if max(length, other) else 0.0


Sides = tuple[np.ndarray, np.ndarray]
"""Both sides of an identity as coefficients (n,) of the turns' gradients: equal sums, not always equal coefficients."""


def gate_identity(pool: Candidates) -> Sides:
    """Uniform sampling of live rows: E[G_gate] against N_c / (N_c - D) * G, G over all rows."""
    n, live = len(pool), np.flatnonzero(pool.valid)
    return mean(live, n), np.full(n, 1 / len(live))


def covariance_identity(drawn: Sequence[np.ndarray], n: int) -> Sides:
    """E[G_batch] - G against (N_c / B) Cov_t(pi_t, g_t); expectation and pi_t over the batches that were drawn."""
    left = np.mean([mean(rows, n) for rows in drawn], axis=0) - 1 / n
    inclusion = np.mean([np.bincount(rows, minlength=n) for rows in drawn], axis=0)
    return left, n / len(drawn[0]) * (inclusion - inclusion.mean()) / n


def focus_identity(pool: Candidates, base: np.ndarray, focus: np.ndarray) -> Sides:
    """G_focus - E[G_base | n_r] against (1 / B) sum_r n_r (T_r - n_r) / T_r (g_kept - g_dropped); n_r are `base`'s."""
    n = len(pool)
    taken, turns = _by_rollout(pool, base), _by_rollout(pool, np.flatnonzero(pool.valid))
    right = np.zeros(n)
    for group in np.unique(pool.group[base]):
        here = np.flatnonzero((pool.group == group) & pool.valid)
        kept, dropped = here[np.isin(here, focus)], here[~np.isin(here, focus)]
        if len(kept) and len(dropped):
            scale = taken[group] * (turns[group] - taken[group]) / turns[group] / len(base)
            right += scale * (mean(kept, n) - mean(dropped, n))
    return mean(focus, n) - _expected_base(pool, base), right


def base_identity(pool: Candidates, drawn: Sequence[np.ndarray]) -> Sides:
    """Mean of G_base over draws against sum_r (n_r / B) g_r, to which it tends as draws grow."""
    return np.mean([mean(rows, len(pool)) for rows in drawn], axis=0), _expected_base(pool, drawn[0])


def base_sampling_error(pool: Candidates, drawn: Sequence[np.ndarray], gram: np.ndarray) -> float:
    """Root mean square distance of the two sides of `base_identity` over the length of the second.

    Sampling n_r of T_r turns without replacement, (n_r / B)^2 (1 - n_r / T_r) S_r^2 / n_r a rollout and draw.
    """
    base = drawn[0]
    taken, turns = _by_rollout(pool, base), _by_rollout(pool, np.flatnonzero(pool.valid))
    total = 0.0
    for group in np.flatnonzero((taken > 0) & (turns > taken)):
        here = np.flatnonzero((pool.group == group) & pool.valid)
        block = gram[np.ix_(here, here)]
        spread = (np.trace(block) - block.sum() / len(here)) / (len(here) - 1)
        total += taken[group] / len(base) ** 2 * (1 - taken[group] / turns[group]) * spread
    mean = _expected_base(pool, base)
    return float(np.sqrt(ratio(total / len(drawn), mean @ gram @ mean)))


def _expected_base(pool: Candidates, base: np.ndarray) -> np.ndarray:
    """(n,) weights of sum_r (n_r / B) g_r, n_r from the batch `base`, g_r the mean over a rollout's live turns."""
    taken, turns = _by_rollout(pool, base), _by_rollout(pool, np.flatnonzero(pool.valid))
    return np.where(pool.valid, taken[pool.group] / np.maximum(turns[pool.group], 1) / len(base), 0.0)


def _by_rollout(pool: Candidates, rows: np.ndarray) -> np.ndarray:
    """How many of these rows each group has."""
    return np.bincount(pool.group[rows], minlength=int(pool.group.max()) + 1)
