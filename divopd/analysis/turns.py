"""What a run's log of turns says of its queue: how deep turns lie, and how they disagree with the teacher.

Counts and sums that add up over runs and periods, so that figures and tables can pool them as they like. Whole columns
at a time: a log of 20,000 turns takes milliseconds.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from divopd.analysis.runs import Run
from divopd.types import DropReason

PERIODS = 5  # of equally many updates, in which disagreement is told apart
KEY = ("setting", "method", "seed")
_READ = ("explorer_batch", "task_index", "run", "version", "first_seen", "selected_at", "dropped", "dropped_at",
         "disagreement")  # fmt: skip
SUMS = ("turns", "rollouts", "steps", "square_between", "square_within", "crowding", "updates", "selected_mean_sum",
        "queue_mean_sum")  # fmt: skip


def depth(run: Run) -> pd.DataFrame:
    """A row a (turn index, outcome of its rollout): student turns that were `queued`, and `selected` of them.

    Queued are all that arrived, also those that the gate discarded or that went stale.
    """
    t = run.turns[run.turns["actor"] == "student"]
    counts = pd.DataFrame({"turn": t["turn"], "success": t["success"].astype(bool), "selected": t["selected_at"] >= 0})
    out = counts.groupby(["turn", "success"])["selected"].agg(queued="size", selected="sum").reset_index()
    return _keyed(run, out)


def disagreement(run: Run) -> pd.DataFrame:
    """A row a fifth of the run (`period`) with sums over the valid student turns; NaN-free, and empty without turns.

    Disagreement of a turn is student - teacher log-prob over its tokens (nats), under the weights that played it.
    `square_between`, `square_within`: sums of squares between the rollouts of one explorer step, which share their
    weights, and inside rollouts; `turns`, `rollouts`, `steps` and `crowding` (sum over steps of sum of n_r^2 / n) are
    what `variance_share` needs beside them. A turn's period is its version's.
    `selected_mean_sum`, `queue_mean_sum`: sums over the period's `updates` of the mean disagreement of the rows
    selected and of the rows the rule could choose from (selected ones among them).
    """
    updates = len(run.updates)
    t = run.turns.loc[(run.turns["actor"] == "student") & run.turns["disagreement"].notna(), list(_READ)]
    out = pd.DataFrame(0.0, index=pd.RangeIndex(PERIODS, name="period"), columns=list(SUMS))
    if updates == 0 or t.empty:
        return _keyed(run, out.iloc[:0].reset_index())
    out.update(_squares(t, updates))
    out.update(_choices(t, updates))
    return _keyed(run, out.reset_index())


def variance_share(sums: pd.DataFrame) -> pd.Series:
    """Share of the variance of turn disagreement that lies between rollouts of one step; a row of `disagreement` each.

    The intraclass correlation of an unbalanced one-way analysis of variance, nested in steps (Searle, Casella,
    McCulloch: Variance Components, 1992, chapter 3): s_b^2 / (s_b^2 + s_w^2), s_w^2 the mean square inside rollouts and
    s_b^2 = (mean square between - s_w^2) / n_0. Unlike the plain ratio of sums of squares it is 0, not above, where
    rollouts differ by chance alone. NaN where it cannot be known.
    """
    free_between, free_within = sums["rollouts"] - sums["steps"], sums["turns"] - sums["rollouts"]
    known = (free_between > 0) & (free_within > 0)
    free_between, free_within = free_between.where(known), free_within.where(known)
    within = sums["square_within"] / free_within
    size = (sums["turns"] - sums["crowding"]) / free_between
    between = ((sums["square_between"] / free_between - within) / size).clip(lower=0)
    return between / (between + within).where(lambda total: total > 0)


def tercile_edges(depths: pd.DataFrame) -> tuple[int, int]:
    """Turn indices at which the middle and the last third of what was queued begin, as near as whole turns allow.

    `depths` are rows of `depth` of the runs to be cut alike.
    """
    queued = depths.groupby("turn")["queued"].sum().sort_index()
    before = (queued.cumsum() - queued) / queued.sum()
    turns = queued.index.to_numpy()
    first, second = (int(turns[np.abs(before - third).argmin()]) for third in (1 / 3, 2 / 3))
    return max(first, 1), max(second, max(first, 1) + 1)


def _squares(t: pd.DataFrame, updates: int) -> pd.DataFrame:
    step, value = t["explorer_batch"], t["disagreement"]
    rollout = [step, t["task_index"], t["run"]]
    each = t.assign(square=value**2).groupby(rollout).agg(
        n=("disagreement", "size"), total=("disagreement", "sum"), square=("square", "sum"),
        version=("version", "first"),
    )  # fmt: skip
    # the turns of a rollout, and the rollouts of a step, share their weights
    each["mean_square"], each["n_squared"] = each["total"] ** 2 / each["n"], each["n"] ** 2
    of_step = each.groupby(level=0).agg(
        n=("n", "sum"), total=("total", "sum"), square=("square", "sum"), mean_square=("mean_square", "sum"),
        n_squared=("n_squared", "sum"), rollouts=("n", "size"), version=("version", "first"),
    )  # fmt: skip
    period = np.minimum(of_step["version"] * PERIODS // updates, PERIODS - 1).rename("period")
    sums = pd.DataFrame({
        "turns": of_step["n"],
        "rollouts": of_step["rollouts"],
        "steps": 1,
        # rounding must not leave a hair below zero
        "square_between": (of_step["mean_square"] - of_step["total"] ** 2 / of_step["n"]).clip(lower=0),
        "square_within": (of_step["square"] - of_step["mean_square"]).clip(lower=0),
        "crowding": of_step["n_squared"] / of_step["n"],
    })  # fmt: skip
    return sums.groupby(period).sum().astype(float)


def _choices(t: pd.DataFrame, updates: int) -> pd.DataFrame:
    """Per update, over the turns that were at hand: first seen, not yet selected, dropped or expired."""
    seen = t[t["first_seen"] >= 0]
    selected = seen["selected_at"] >= 0
    # a turn that goes stale is dropped before the choice, one that expires after it
    last = np.where(seen["dropped"] == DropReason.EXPIRED.value, seen["dropped_at"], seen["dropped_at"] - 1)
    last = np.where(selected, seen["selected_at"], last)
    last = np.minimum(last, updates - 1)
    first, value = seen["first_seen"].to_numpy(), seen["disagreement"].to_numpy()
    means = []
    for weights in (np.ones(len(seen)), value):
        change = np.bincount(first, weights, minlength=updates + 1)
        change -= np.bincount(last + 1, weights, minlength=updates + 1)
        means.append(np.cumsum(change)[:updates])
    at, chosen = seen["selected_at"][selected].to_numpy(), value[selected.to_numpy()]
    count, total = np.bincount(at, minlength=updates), np.bincount(at, chosen, minlength=updates)
    known = count > 0
    frame = pd.DataFrame({
        "updates": known.astype(float),
        "selected_mean_sum": total / np.maximum(count, 1),
        "queue_mean_sum": np.where(known, means[1] / np.maximum(np.rint(means[0]), 1), 0.0),
    })  # fmt: skip
    return frame.groupby(np.arange(updates) * PERIODS // updates).sum().rename_axis("period")


def _keyed(run: Run, table: pd.DataFrame) -> pd.DataFrame:
    keys = pd.DataFrame([{name: run.key[name] for name in KEY}] * len(table), columns=list(KEY))
    return pd.concat([keys, table], axis=1)
