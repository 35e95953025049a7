"""The parts that selection rules are made of: orders, seeded draws, sums over rollouts, coverage.

Source of coverage and focus: Algorithm 1 of DivOPD (arXiv 2609.34838, section 3). Nothing here depends on the order of
the pool's rows.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from divopd.candidates import Candidates
from divopd.seeds import seed as named_seed


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


def draws(pool: Candidates, seed: int, per: Literal["turn", "rollout", "task"] = "turn") -> np.ndarray:
    """(n,) uniform numbers in [0, 1), a function of (seed, q) and of the row's turn, its rollout or its task alone.

    A counter-based hash (the splitmix64 finalizer, Steele et al. 2014) rather than a sequential generator, so that a
    row's number depends neither on the order of rows nor on which others are there.
    """
    columns = [*pool.rollout.T, pool.turn][: {"task": 2, "rollout": 3, "turn": 4}[per]]
    state = np.full(len(pool), named_seed(seed, "selection", pool.update), dtype=np.uint64)
    for column in columns:
        state ^= column.astype(np.uint64)
        state += np.uint64(0x9E3779B97F4A7C15)
        state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        state ^= state >> np.uint64(31)
    return (state >> np.uint64(11)).astype(np.float64) * 2.0**-53


def row_tokens(pool: Candidates) -> np.ndarray:
    """(n,) prompt + response tokens: the paper's unit of training cost."""
    return pool.prompt_tokens + pool.response_tokens


def per_token(pool: Candidates, sums: np.ndarray) -> np.ndarray:
    """(n,) `sums` a valid token; NaN where a row has none."""
    return np.where(pool.valid_tokens > 0, sums / np.maximum(pool.valid_tokens, 1), np.nan)


def unit_ranks(values: np.ndarray) -> np.ndarray:
    """(n,) mid-ranks of `values` scaled into (0, 1), the largest highest, ties sharing their mean rank; NaN stays."""
    values = np.asarray(values, dtype=np.float64)
    ranks, known = np.full(len(values), np.nan), ~np.isnan(values)
    _, place, counts = np.unique(values[known], return_inverse=True, return_counts=True)
    middle = np.cumsum(counts) - counts / 2
    ranks[known] = middle[place] / max(known.sum(), 1)
    return ranks


def rollout_sum(pool: Candidates, values: np.ndarray) -> np.ndarray:
    """(n,) for each row the sum of `values` (n,) over its rollout's rows, added up in the order of turns."""
    order = np.lexsort((pool.turn, pool.group))  # a float sum depends on its order: rows may come in any
    return np.bincount(pool.group[order], weights=values[order])[pool.group] if len(pool) else np.zeros(0)


def place_in_run(labels: np.ndarray) -> np.ndarray:
    """(n,) int64: 0, 1, .. inside each run of equal neighbours of `labels` (n,)."""
    n = len(labels)
    starts = np.flatnonzero(np.r_[np.ones(min(n, 1), bool), labels[1:] != labels[:-1]])
    return np.arange(n) - np.repeat(starts, np.diff(np.r_[starts, n]))


def sum_in_run(labels: np.ndarray, values: np.ndarray) -> np.ndarray:
    """(n,) int64 running sum of integer `values` (n,), itself included, inside each run of equal neighbours."""
    total = np.cumsum(values)
    first = np.arange(len(labels)) - place_in_run(labels)
    return total - total[first] + values[first]


def by_rollout(pool: Candidates, order: np.ndarray) -> np.ndarray:
    """Step 4: `order` (n,) regrouped, rollouts by oldest first-seen, ties by rollout id; inside one as it was."""
    oldest = np.full(int(pool.group.max(initial=-1)) + 1, np.iinfo(np.int64).max)
    np.minimum.at(oldest, pool.group, pool.first_seen)
    return order[np.lexsort((pool.group[order], oldest[pool.group[order]]))]  # stable


def coverage(pool: Candidates, order: np.ndarray, cap: int | None, budget: int) -> np.ndarray:
    """Steps 4, 6 and 7: spread the batch over rollouts, oldest first-seen first, ties by rollout id.

    `order` (n,) ranks all rows, best first; only its order inside each rollout matters. One sweep in which every
    rollout gives its best `cap` turns, then, while the batch is short, sweeps that give one more each. `cap` None: no
    limit. Returns at most `budget` row indices, in sweep order. Full batches hold at least ceil(budget / cap) rollouts
    whenever that many are there.
    """
    rows = by_rollout(pool, order)
    place = place_in_run(pool.group[rows])
    sweep = np.zeros(len(rows), dtype=np.int64) if cap is None else np.maximum(place - (cap - 1), 0)
    return rows[np.argsort(sweep, kind="stable")[:budget]]
