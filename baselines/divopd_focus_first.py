from typing import Annotated

import numpy as np
from pydantic import Field, PositiveInt

from divopd.selection import (
    Candidates,
    Choice,
    Rule,
    dense_rank,
    draws,
    focus_order,
    place_in_run,
    row_tokens,
    sum_in_run,
)


class FocusFirst(Rule):
    """The paper's earlier composer: tasks in random order, each its few turns of largest disagreement, rows weighted.

    Task groups (explorer batch, task) in a random order seeded by (seed, q). First pass: a group gives its turns by
    s(u), at most `turns` of them and within `share` of the batch's tokens. Relaxing removes the turn cap. No gate: dead
    rows come last in their group. Weights balance rollouts: a row weighs 1 / (its rollout's rows in the batch).
    Source: the composer before Algorithm 1 in arXiv 2609.34838. Ours: "the batch's tokens" = B * mean row tokens of the
    pool (those of the batch are not known yet); a group stops at the first turn that would pass its share; where even
    relaxing leaves the batch short, the token cap goes too.
    """

    gated = False
    turns: PositiveInt = 3
    share: Annotated[float, Field(gt=0, le=1)] = 0.25

    def select(self, pool: Candidates, budget: int, seed: int) -> Choice:
        task, drawn = dense_rank(pool.rollout[:, :2]), draws(pool, seed, per="task")
        order = focus_order(pool)
        order = order[np.lexsort((task[order], drawn[order]))]  # stable: inside a task as it was
        tokens = row_tokens(pool)[order]
        fits = sum_in_run(task[order], tokens) <= self.share * budget * tokens.sum() / max(len(tokens), 1)
        first = fits & (place_in_run(task[order]) < self.turns)
        rows = order[np.argsort(2 - fits - first.astype(int), kind="stable")[:budget]]
        return rows, 1 / np.bincount(pool.group[rows])[pool.group[rows]]
