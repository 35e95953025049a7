"""What it cost to reach the target: full results with updates and time, and speedups by every logged resource."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pandas as pd

from divopd.analysis import compare, metrics
from divopd.analysis.labels import label, ordered
from divopd.analysis.table import (
    DASH,
    REPORTED,
    Table,
    cells,
    facts_of,
    few,
    few_note,
    fewest,
    fraction,
    interval,
    number,
    reach,
    times,
)
from divopd.analysis.tables import over_settings
from divopd.analysis.uncertainty import Interval
from divopd.paper import reported
from divopd.runlog import STAGES

# cost column -> heading, factor to its unit, digits
COSTS = {
    "updates": ("Updates to target", 1.0, 0),
    "trained_tokens": ("Trained tokens to target (k)", 1e-3, 0),
    "learner_seconds": ("Learner minutes to target", 1 / 60, 1),
    "wall_seconds": ("Learner + read, minutes to target", 1 / 60, 1),
    "device_seconds": ("All devices, minutes to target", 1 / 60, 1),
}
# resource -> heading; the paper's column that stands beside it, for DivOPD alone
RESOURCES: dict[str, tuple[str, str | None]] = {
    "trained_tokens": ("Trained tokens", "trained_tokens"),
    "learner_seconds": ("Learner time", "trainer_gpu"),
    "wall_seconds": ("Learner + read time", "wall"),
    "updates": ("Updates", None),
    "trained_response_tokens": ("Response tokens", None),
    "computed_tokens": ("Computed tokens", None),
    "explorer_seconds": ("Explorer time", None),
    "teacher_seconds": ("Scoring time", None),
    "device_seconds": ("All devices", None),
}
ALL = "All settings"
Gain = tuple[metrics.Speedup, Interval | None]


def full_table(summary: pd.DataFrame, timings: pd.DataFrame, counterparts: Mapping[str, str]) -> Table:
    """Success, and cost to the target in updates and time, a row a (setting, method), beside the paper's."""
    paper = reported("main_results").set_index(["setting", "method"])
    spent = timings[["setting", "method", "seed"]].assign(core_minutes=timings[list(STAGES)].sum(axis=1) / 60)
    runs_of = summary.merge(spent, on=["setting", "method", "seed"], how="left")
    rows, numbers = [], []
    for setting, method, runs in cells(runs_of):
        facts = facts_of(paper, (counterparts.get(setting, setting), method))
        flags = reach(runs)
        n: dict[str, Any] = {"setting": setting, "method": method, "seeds": len(runs)}
        shown = []
        for name in ("peak", "final5_mean", "nauc"):
            spread = compare.over_seeds(runs[name])
            n |= {name: spread.value, f"{name}_low": spread.low, f"{name}_high": spread.high}
            shown.append(interval(spread, 100) + (few(fewest(runs)) if name == "final5_mean" else ""))
        n["reached"] = sum(flags) / len(flags) if flags else None
        for name, (_, factor, digits) in COSTS.items():
            spread = compare.over_seeds(runs[f"cost_{name}"].astype(float))
            n |= {f"cost_{name}": spread.value, f"cost_{name}_low": spread.low, f"cost_{name}_high": spread.high}
            shown.append(
                interval(spread, factor, digits) if all(flags) else f"{DASH} (>{factor * spread.value:.{digits}f})"
            )
        cores = compare.over_seeds(runs["core_minutes"].astype(float))
        n |= {"core_minutes": cores.value, "core_minutes_low": cores.low, "core_minutes_high": cores.high}
        theirs = {name: facts.get(name) for name in ("updates_to_target", "trainer_gpu_hours_to_target")}
        numbers.append(n | {f"reported_{name}": value for name, value in theirs.items()})
        rows.append([
            setting, label(method), str(len(runs)), *shown, fraction(flags), interval(cores),
            _missed(facts, "updates_to_target", 0), _missed(facts, "trainer_gpu_hours_to_target", 2),
        ])  # fmt: skip
    header = ["Setting", "Method", "Seeds", "Peak", "Final-5", "nAUC", *(heading for heading, _, _ in COSTS.values())]
    header += ["Reached", "Core-minutes of the run", "Updates to target (reported)"]
    header += ["Trainer GPU-hours to target (reported)"]
    notes = [
        "Means over seeds, with 95 % t intervals. To the target: through the first evaluation there; "
        f"{DASH} (>): some seed never got there and counts with all it used. Minutes are of the virtual clock, on "
        "which a run costs the same however busy the machine is; all devices: learner, explorers, scoring and the "
        "teacher's own turns. Core-minutes: real seconds of the whole run by its own clock, evaluation included.",
        f"{REPORTED} {DASH} there: the target was not reached.",
    ]
    notes += few_note(summary)
    return Table("Full results, and what they cost", header, rows, pd.DataFrame(numbers), notes)


def _missed(facts: Mapping[str, float], name: str, digits: int) -> str:
    return number(facts.get(name), digits)


def speedups_table(summary: pd.DataFrame, counterparts: Mapping[str, str]) -> Table:
    """Speedup over the baseline by each resource, first and sustained; a row a (setting, method), then all settings."""
    paper = reported("wall_speedup").set_index("setting")
    baseline = str(summary["baseline"].iloc[0])
    others = summary[summary["method"] != baseline]
    with_baseline = set(summary.loc[summary["method"] == baseline, "setting"])
    means = {name: float(paper[name].prod()) ** (1 / len(paper)) for name in paper.columns}
    rows, numbers = [], []

    def add(setting: str, method: str, runs: pd.DataFrame, found: Iterable[Gain], facts: Mapping[str, float]) -> None:
        facts = facts if method == "divopd" else {}
        n: dict[str, Any] = {"setting": setting, "method": method, "seeds": len(runs)}
        shown = []
        for (name, prefix), (gain, spread) in zip(_columns(), found, strict=True):
            key = f"{prefix}speedup_{name}"
            n |= {key: gain.value, f"{prefix}bound_{name}": gain.bound}
            n |= {f"{key}_low": spread.low, f"{key}_high": spread.high} if spread else {}
            shown.append(times(gain, spread))
        numbers.append(n | {f"reported_{name}": facts.get(name) for name in paper.columns})
        theirs = [number(facts.get(theirs), 2, "×") for _, theirs in RESOURCES.values() if theirs]
        rows.append([setting, label(method), *shown, fraction(reach(runs)), *theirs])

    for setting, method, runs in cells(others):
        found = [(compare.cell_speedup(runs, *key), compare.speedup_spread(runs, *key)) for key in _columns()]
        add(setting, method, runs, found, facts_of(paper, counterparts.get(setting, setting)))
    for method in ordered(others["method"]):
        runs = others[(others["method"] == method) & others["setting"].isin(with_baseline)]
        add(ALL, method, runs, [over_settings(runs, *key)[:2] for key in _columns()], means)
    header = [
        "Setting",
        "Method",
        *(heading for heading, _ in RESOURCES.values()),
        "Trained tokens, sustained",
        "Reached",
    ]
    header += [f"{heading} (reported)" for heading, theirs in RESOURCES.values() if theirs]
    return Table("Speedup by resource", header, rows, pd.DataFrame(numbers), _speedup_notes(label(baseline)))


def _speedup_notes(baseline: str) -> list[str]:
    return [
        f"{baseline}'s cost over the method's, through the first evaluation at the target, geometric mean over "
        f"seeds with a 95 % t interval of the logarithm, or over settings with a stratified bootstrap's. {DASH} (<): "
        f"the method, or some seed of it, never got there; {DASH} (>): the baseline did not. Sustained: the mean of "
        "three evaluations at the target. Times are of the virtual clock; scoring: the teacher's pass over students' "
        "turns; all devices: learner, explorers, scoring and the teacher's own turns. Computed tokens: after rows of a "
        "rollout that share a prefix are merged.",
        f"{REPORTED} The paper counts no explorer, teacher or recovery cost.",
    ]


def _columns() -> list[tuple[str, str]]:
    """(resource, prefix) of the speedups shown."""
    return [*((name, "") for name in RESOURCES), ("trained_tokens", "sustained_")]
