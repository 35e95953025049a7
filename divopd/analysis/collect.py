"""Runs become tidy tables: curves (a row an evaluation), summary and diagnostics (a row a run).

Every row carries the hashes of what made it. Which runs there are, and which may stand side by side: runs.py.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from divopd.analysis import metrics
from divopd.analysis.runs import ARRIVALS, MixedRunsError, Run
from divopd.analysis.scores import RULES, SCORE, by_rule, final_of
from divopd.analysis.simulate import peak_bias, smoothed
from divopd.analysis.uncertainty import wilson
from divopd.diagnostics import gini
from divopd.seeds import rng
from divopd.types import DropReason

# cumulative resources of a curve: name -> (column of updates, "each" update or "running" total)
RESOURCES = {
    "trained_tokens": ("row_tokens", "each"),  # prompt + response tokens of the batches' rows: the paper's unit
    "trained_response_tokens": ("response_tokens", "each"),
    "computed_tokens": ("computed_tokens", "each"),  # after merging rows that share a prefix
    "learner_seconds": ("learner_seconds", "each"),
    "wall_seconds": ("wall", "each"),  # learner step + read
    "explorer_seconds": ("explorer_seconds", "running"),
    "teacher_seconds": ("teacher_seconds", "running"),
    "teacher_generation_seconds": ("teacher_generation_seconds", "running"),  # where the teacher acts
}
TEACHER_ACTS = ("takeovers", "teacher_turns", "teacher_generated_tokens")  # running totals of what is no cost by itself
DEVICES = ("learner_seconds", "explorer_seconds", "teacher_seconds", "teacher_generation_seconds")
ALL_DEVICES = "device_seconds"  # learner, explorers and teacher together, takeovers included
COSTS = ["updates", *RESOURCES, ALL_DEVICES]


def curve(run: Run) -> pd.DataFrame:
    """One row an evaluated version, with cumulative costs up to it and the Wilson interval of its success."""
    # two explorer steps can meet the same version; its draws are the same then, so one of them tells all
    means = {"reward": "mean_reward", "turns": "mean_turns", "response_tokens": "mean_response_tokens",
             "invalid_actions": "invalid_actions", **{name: name for name in (*RULES, SCORE)}}  # fmt: skip
    episodes = pd.concat([run.evals, by_rule(run.evals)], axis=1)
    grouped = episodes.groupby(["version", "explorer_step"], sort=True)
    out = pd.DataFrame({"time": grouped["time"].first(), "episodes": grouped.size()})
    out["successes"] = grouped["success"].sum()
    out = out.join(grouped[list(means)].mean().rename(columns=means)).reset_index()
    out = out.drop_duplicates("version", ignore_index=True)
    out["success"] = out["successes"] / out["episodes"]
    out["wilson_low"], out["wilson_high"] = wilson(out["successes"], out["episodes"])
    out["updates"] = np.minimum(out["version"], len(run.updates))
    updates = run.updates.assign(wall=run.updates["learner_seconds"] + run.updates["read_wait"])
    for name, (column, kind) in RESOURCES.items():
        at = metrics.cumulative_at if kind == "each" else metrics.running_at
        out[name] = at(out["version"], updates[column])
    out[ALL_DEVICES] = out[list(DEVICES)].sum(axis=1)
    for name in TEACHER_ACTS:
        out[name] = metrics.running_at(out["version"], updates[name])
    out["rollouts"] = out["explorer_step"] * run.config.pipeline.tasks_per_step * run.config.pipeline.runs_per_task
    return _keyed(run, out)


def diagnostics(run: Run) -> dict[str, Any]:
    """Batch composition averaged over updates, and what became of the turns, of one run."""
    u, t = run.updates, run.turns
    means = ["rollouts", "effective_rollouts", "top_rollout_token_share", "turns_per_rollout", "dead_row_share",
             "kl_per_token", "mean_age", "grad_norm", "learner_seconds", "read_wait", "queue_length",
             "horizon"]  # fmt: skip
    out: dict[str, Any] = {name: u[name].mean() for name in means}
    # a run that diverged at once has no update: its totals are zero
    last: Any = u.iloc[-1] if len(u) else dict.fromkeys(u.columns, 0)
    trained = int(u["valid_tokens"].sum())
    student = t[t["actor"] == "student"]
    by_teacher = t["actor"] == "teacher"
    taken_over = by_teacher.groupby(rollout_number(t)).any()
    out |= {
        "updates": len(u),
        "teacher_tokens": int(last["teacher_tokens"]),
        "scored_tokens": int(student["valid_tokens"].sum()),
        "trained_tokens": trained,
        "scored_over_trained": student["valid_tokens"].sum() / trained if trained else np.nan,
        "load": last["arrival_rate"] / last["drain_rate"] if last["drain_rate"] > 0 else np.nan,
        "stale_rows": int(last["stale_rows"]),
        "teacher_tokens_scored_over_trained": last["teacher_tokens"] / trained if trained else np.nan,
        **{name: last[name] for name in (*TEACHER_ACTS, "teacher_generation_seconds")},
        "teacher_turn_share": float(by_teacher.mean()),
        "taken_over_rollout_share": float(taken_over.mean()),
        **selection_use(student),
    }
    return {**run.key, "status": run.status["status"], **out, **run.provenance}


def rollout_number(turns: pd.DataFrame) -> np.ndarray:
    """(turns,) one integer a rollout, of its three: grouping by it takes a third of the time."""
    batch, task, run = (turns[name].to_numpy() for name in ("explorer_batch", "task_index", "run"))
    tasks, runs = (int(x.max(initial=0)) + 1 for x in (task, run))
    return (batch * tasks + task) * runs + run


def selection_use(turns: pd.DataFrame) -> dict[str, float]:
    """What became of a run's student turns, by rollout: never-selected share, Gini coefficient of selected turns.

    Rollouts count when one of their turns is valid: it has a scored token, finite log-probs and its whole prompt. Ours
    leaves out those of which nothing was selected while a turn still waited at the end of the run
    (`undecided_rollouts`): their fate is open.
    """
    valid = (turns["valid_tokens"] > 0) & turns["disagreement"].notna() & ~turns["prompt_truncated"].astype(bool)
    waiting = (turns["selected_at"] < 0) & (turns["dropped"].isna() | (turns["dropped"] == DropReason.UNREAD.value))
    each = pd.DataFrame({"valid": valid, "selected": turns["selected_at"] >= 0, "waiting": waiting})
    grouped = each.groupby(rollout_number(turns)).agg({"valid": "any", "selected": "sum", "waiting": "any"})
    undecided = grouped["valid"] & (grouped["selected"] == 0) & grouped["waiting"]
    counts = grouped.loc[grouped["valid"] & ~undecided, "selected"].to_numpy(dtype=float)
    return {
        "valid_rollouts": len(counts),
        "undecided_rollouts": int(undecided.sum()),
        "never_selected_share": float((counts == 0).mean()) if len(counts) else np.nan,
        "selected_gini": gini(counts),
    }


def summarise(curves: pd.DataFrame, runs: Iterable[Run], baseline: str = "vanilla") -> pd.DataFrame:
    """One row a run: peak, final-5, nAUC to the setting's common horizon, cost to the setting's target, speedups.

    `target_rule` says where the target came from: "config", "default" (metrics.default_target on the baseline's mean
    curve), or "none". Speedups compare with the baseline run of the same seed; `bound_*`: metrics.Speedup.
    """
    rows = []
    by_setting: dict[str, list[Run]] = {}
    of_run = dict(list(curves.groupby(["suite", "setting", "env", "method", "seed"], sort=False)))
    for run in runs:
        by_setting.setdefault(run.config.setting, []).append(run)
    for group in by_setting.values():
        data = {run.path: of_run[tuple(run.key.values())].sort_values("version") for run in group}
        finished = [r for r in group if r.status["status"] == "done"] or group
        horizon = metrics.common_horizon(int(data[run.path]["version"].max()) for run in finished)
        target, rule = _target(group, data, baseline, horizon)
        costs = {run.path: _costs(data[run.path], target) for run in group}
        base = {run.config.seed: costs[run.path] for run in group if run.config.method.name == baseline}
        for run in group:
            row = _summary_row(run, data[run.path], horizon)
            row |= {name: getattr(run.config.pipeline, name) for name in ARRIVALS}
            row |= {"baseline": baseline, "target": target, "target_rule": rule}
            row |= _cost_columns(costs[run.path], base.get(run.config.seed))
            rows.append({**row, **run.provenance})
    return pd.DataFrame(rows)


def speedup_by_target(curves: pd.DataFrame, baseline: str = "vanilla", step: float = 0.025) -> pd.DataFrame:
    """Exact speedups in trained tokens and learner seconds: a row a (setting, method, seed, target in steps)."""
    targets = np.arange(step, 1.0 + 1e-9, step).round(6)
    parts = []
    for (setting, seed), cell in curves.groupby(["setting", "seed"], sort=False):
        base = cell[cell["method"] == baseline]
        for method, data in cell.groupby("method", sort=False) if len(base) else ():
            part = pd.DataFrame({"setting": setting, "method": method, "seed": seed, "target": targets})
            for name in ("trained_tokens", "learner_seconds"):
                costs, theirs = (metrics.costs_to_targets(d["success"], d[name], targets) for d in (data, base))
                known = (costs > 0) & (theirs > 0)  # at the target from the start: no cost, nothing to divide
                part[f"speedup_{name}"] = np.divide(theirs, costs, out=np.full(len(targets), np.nan), where=known)
            parts.append(part.dropna(how="all", subset=["speedup_trained_tokens", "speedup_learner_seconds"]))
    if parts:
        return pd.concat(parts, ignore_index=True).sort_values(["setting", "seed", "target"], kind="stable")
    columns = ["setting", "method", "seed", "target", "speedup_trained_tokens", "speedup_learner_seconds"]
    return pd.DataFrame(columns=columns)


def final_columns(data: pd.DataFrame, diverged: bool) -> dict[str, Any]:
    """Summary columns of what training led to: version 0, the untrained student, does not count.

    A run that diverged before its first evaluation after that succeeds at nothing, as in nAUC (ours).
    """
    trained = data[data["version"] > 0]
    mean, std = metrics.final(trained["success"])
    out = {
        "best5_mean": metrics.best_window(trained["success"]),
        "final": trained["success"].iloc[-1] if len(trained) else np.nan,
        "final5_mean": mean,
        "final5_std": std,
        "final5_count": min(len(trained), metrics.LAST),
    }
    if diverged and not len(trained):
        out |= {name: 0.0 for name in ("best5_mean", "final", "final5_mean")}
    return out


def _summary_row(run: Run, data: pd.DataFrame, horizon: int) -> dict[str, Any]:
    diverged = run.status["status"] != "done"
    return {
        **run.key,
        "status": run.status["status"],
        "evaluations": len(data),
        "episodes": int(data["episodes"].max()),
        "start": data["success"].iloc[0],
        "peak": metrics.peak(data["success"]),
        "peak_bias": peak_bias(smoothed(data["success"]), data["episodes"], rng("peak", *run.key.values())),
        "peak_version": int(data["version"].iloc[int(data["success"].argmax())]),
        **final_columns(data, diverged),
        "nauc": metrics.nauc(data["version"], data["success"], horizon, diverged),
        **final_of(data[data["version"] > 0]),
        "horizon": horizon,
    }


def _target(group: list[Run], data: dict[Path, pd.DataFrame], baseline: str, horizon: int) -> tuple[float | None, str]:
    configured = {run.config.target for run in group if run.config.target is not None}
    if configured:
        if len(configured) > 1:
            raise MixedRunsError(f"setting {group[0].config.setting} has targets {sorted(configured)}: rerun with one")
        return configured.pop(), "config"
    base = [data[run.path] for run in group if run.config.method.name == baseline]
    if not base:
        return None, "none"
    grid = np.unique(np.concatenate([d["version"] for d in base]))
    grid = grid[grid <= horizon]
    mean = np.mean([np.interp(grid, d["version"], d["success"]) for d in base], axis=0)
    target = metrics.default_target(mean)
    return target, "none" if target is None else "default"


def _costs(data: pd.DataFrame, target: float | None) -> dict[tuple[str, int], metrics.Cost] | None:
    if target is None:
        return None
    windows = (1, metrics.SUSTAINED)
    return {
        (name, w): metrics.cost_to_target(data["success"], data[name], target, w) for name in COSTS for w in windows
    }


def _cost_columns(costs: dict[tuple[str, int], metrics.Cost] | None, base: Any) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for window, prefix in ((1, ""), (metrics.SUSTAINED, "sustained_")):
        out[f"{prefix}reached"] = None if costs is None else not costs["updates", window].censored
        for name in COSTS:
            cost = None if costs is None else costs[name, window]
            gain = metrics.Speedup(None) if cost is None or base is None else metrics.speedup(base[name, window], cost)
            out[f"{prefix}cost_{name}"] = None if cost is None else cost.value
            out[f"{prefix}speedup_{name}"], out[f"{prefix}bound_{name}"] = gain.value, gain.bound
    return out


def _keyed(run: Run, table: pd.DataFrame) -> pd.DataFrame:
    left = pd.DataFrame([run.key] * len(table), columns=list(run.key))
    right = pd.DataFrame([run.provenance] * len(table), columns=list(run.provenance))
    return pd.concat([left, table, right], axis=1)
