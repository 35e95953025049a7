"""The suite's main tables, from summary and diagnostics: success and speedup a setting, over settings, batches.

Beside ours stand the numbers that the paper reports (arXiv 2609.34838), marked "reported": other models, other games,
one run a cell. They are for orientation, not for comparison digit by digit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pandas as pd

from divopd.analysis import compare, metrics
from divopd.analysis.labels import arrivals, label, ordered
from divopd.analysis.table import (
    DASH,
    REPORTED,
    Table,
    cells,
    facts_of,
    few,
    few_note,
    few_settings,
    fewest,
    fraction,
    interval,
    mean_std,
    number,
    percent,
    reach,
    times,
)
from divopd.analysis.uncertainty import Interval
from divopd.paper import reported

__all__ = ["DASH", "SPEEDUPS", "Table", "aggregate_table", "diagnostics_table", "main_table"]

SPEEDUPS = {"trained_tokens": "Token speedup", "learner_seconds": "Learner-time speedup"}
MEANS = ("start", "peak", "peak_bias", "final5_mean", "final5_std", "nauc", "target")


def main_table(
    summary: pd.DataFrame, counterparts: dict[str, str], starts: Mapping[str, Mapping[str, float]] | None = None
) -> Table:
    """Peak, final-5, nAUC, gain and speedups, a row a (setting, method), means over seeds, beside the paper's.

    `counterparts`: setting -> the paper's setting that stands beside it; `starts`: setting -> SettingSpec.reported of
    that one.
    """
    paper = reported("main_results").set_index(["setting", "method"])
    baseline = str(summary["baseline"].iloc[0])
    gains = compare.by_setting(summary, baseline).set_index(["setting", "method"])
    rows, numbers = [], []
    for setting, method, runs in cells(summary):
        facts = facts_of(paper, (counterparts.get(setting, setting), method))
        start, teacher = (
            (starts or {}).get(setting, {}).get(f"{who}_success") for who in ("student_initial", "teacher")
        )
        speedups = {name: compare.cell_speedup(runs, name) for name in SPEEDUPS}
        spread = {name: compare.over_seeds(runs[name]) for name in ("peak", "final5_mean", "nauc")}
        gain = Interval(*gains.loc[(setting, method)].iloc[1:]) if (setting, method) in gains.index else None
        n: dict[str, Any] = {"setting": setting, "method": method, "seeds": len(runs)}
        n |= {name: runs[name].mean() for name in MEANS} | {"final5_count": fewest(runs)}
        for name, value in spread.items():
            n |= {f"{name}_low": value.low, f"{name}_high": value.high}
        n |= {"gain": gain.value, "gain_low": gain.low, "gain_high": gain.high} if gain else {"gain": np.nan}
        n |= {f"speedup_{name}": value.value for name, value in speedups.items()}
        n |= {f"bound_{name}": value.bound for name, value in speedups.items()}
        n |= {"reached": metrics.reach_rate(reach(runs)), "diverged": int((runs["status"] != "done").sum())}
        n |= {"reported_start": start, "reported_teacher": teacher}
        n |= {f"reported_{name}": facts.get(name) for name in paper.columns}
        numbers.append(n)
        rows.append([
            setting, label(method) + ("†" if n["diverged"] else ""), str(n["seeds"]), percent(n["start"]),
            interval(spread["peak"], 100), percent(n["peak_bias"]),
            _final5(spread["final5_mean"], n["final5_std"]) + few(n["final5_count"]),
            interval(spread["nauc"], 100), DASH if method == baseline else interval(gain, 100, sign=True),
            percent(n["target"], 0),
            *(times(speedups[name], compare.speedup_spread(runs, name)) for name in SPEEDUPS), fraction(reach(runs)),
            number(start), number(teacher), number(facts.get("peak")),
            mean_std(facts.get("final5_mean"), facts.get("final5_std")),
            number(facts.get("token_speedup"), 2, "×"), number(facts.get("gpu_speedup"), 2, "×"),
        ])  # fmt: skip
    header = ["Setting", "Method", "Seeds", "Start", "Peak", "Peak's bias", "Final-5", "nAUC", "Gain", "Target"]
    header += [*SPEEDUPS.values(), "Reached", "Start (reported)", "Teacher (reported)", "Peak (reported)"]
    header += ["Final-5 (reported)", "Token speedup (reported)", "GPU speedup (reported)"]
    notes = [_SUCCESS_NOTE, _SPEEDUP_NOTE, f"{REPORTED} Teacher: its success there; ours is not logged."]
    notes += [*few_note(summary), *arrivals(summary)]
    notes += [_DIVERGED_NOTE] if any(n["diverged"] for n in numbers) else []
    return Table("Success and speedup", header, rows, pd.DataFrame(numbers), notes)


_DIVERGED_NOTE = (
    "† Holds diverged runs, which count as success 0 after their last evaluation in nAUC, and in final-5 where they "
    "have no evaluation after training began."
)
_SUCCESS_NOTE = (
    "Success in percent. Brackets: 95 % t interval over seeds. Peak's bias: points by which the highest of that many "
    "evaluations on that many games lies above the best success, on average. Final-5: mean of the last five "
    "evaluations after training began; with one seed ± their standard deviation. Gain: final-5 less the baseline's of "
    "the same seed, points."
)
_SPEEDUP_NOTE = (
    "Speedup: baseline's cost over the method's, through the first evaluation at the target, geometric mean over "
    f"seeds. {DASH} (<): some seed of the method never got there and counts with the bound of its whole cost; {DASH} "
    f"(>): one of the baseline did not; {DASH}: nothing can be said. Reached: seeds at the target."
)


def _final5(mean: Interval, std: float) -> str:
    """With one seed the paper's form: mean and deviation of the five evaluations."""
    return interval(mean, 100) if mean.known or pd.isna(std) else mean_std(100 * mean.value, 100 * std)


def aggregate_table(summary: pd.DataFrame, counterparts: dict[str, str]) -> Table:
    """Over settings, a row a method: geometric-mean speedups, reach rate, IQM of final-5, gain, chance of improvement.

    Each method over the settings that have it and its baseline; how many entered stands beside.
    """
    paper = reported("main_results")
    paper = paper[paper["setting"].isin([counterparts.get(s, s) for s in summary["setting"].unique()])]
    baseline, total = str(summary["baseline"].iloc[0]), summary["setting"].nunique()
    with_baseline = summary.loc[summary["method"] == baseline, "setting"].unique()
    rows, numbers = [], []
    for method in ordered(summary["method"]):
        runs = summary[(summary["method"] == method) & summary["setting"].isin(with_baseline)]
        means = {name: over_settings(runs, name) for name in SPEEDUPS}
        at_target = means["trained_tokens"][2]
        facts = paper[paper["method"] == method]
        theirs = {c: metrics.geometric_mean(facts[c].dropna()) for c in ("token_speedup", "gpu_speedup")}
        found = compare.against(summary, method, baseline)
        flags = reach(runs)
        n: dict[str, Any] = {"method": method, "settings": found.settings if found else 0, "all_settings": total}
        n |= {"pairs": found.pairs if found else 0, "speedup_settings": at_target}
        for name, (mean, spread, _) in means.items():
            n |= {f"speedup_{name}": mean.value, f"bound_{name}": mean.bound}
            n |= {f"speedup_{name}_low": spread.low, f"speedup_{name}_high": spread.high} if spread else {}
        n["reached"] = metrics.reach_rate(flags)
        for name in ("iqm", "gain", "better"):
            value = getattr(found, name) if found and (name == "iqm" or method != baseline) else Interval(np.nan)
            n |= {name: value.value, f"{name}_low": value.low, f"{name}_high": value.high}
        n |= {f"reported_{k}": v for k, v in theirs.items()}
        numbers.append(n)
        other = found if method != baseline else None
        rows.append([
            label(method), f"{at_target}/{total}", *(times(mean, spread) for mean, spread, _ in means.values()),
            f"{100 * n['reached']:.0f} % ({fraction(flags)})" if flags else DASH, f"{n['settings']}/{total}",
            str(n["pairs"]), interval(found.iqm if found else None, 100),
            interval(other.gain if other else None, 100, sign=True),
            interval(other.better if other else None, digits=2), *(number(theirs[name], 2, "×") for name in theirs),
        ])  # fmt: skip
    header = ["Method", "Settings at target", *(f"{name}, geometric mean" for name in SPEEDUPS.values()), "Reach rate"]
    header += ["Settings", "Pairs", "Final-5, IQM", "Gain", "P(better than baseline)"]
    header += ["Token speedup (reported)", "GPU speedup (reported)"]
    short = few_settings(summary)
    notes = [f"Evaluations in final-5 where a run has fewer than five: {short}."] if short else []
    return Table("Over settings", header, rows, pd.DataFrame(numbers), [_AGGREGATE_NOTE, *notes, REPORTED])


_AGGREGATE_NOTE = (
    "Settings: those that have the method and its baseline, of all; at target: those of them whose speedup is known or "
    f"bounded, which enter the geometric mean; a bound among them makes it a bound (<, >), bounds of both kinds leave "
    f"{DASH}. Pairs: runs that share setting and seed with one of the baseline. Gain: mean paired difference of "
    "final-5, points. Brackets: 95 % bootstrap interval over seeds, paired with the baseline's and stratified by "
    "setting; without brackets some setting has a single pair, and nothing is known about seeds."
)


def over_settings(runs: pd.DataFrame, resource: str, prefix: str = "") -> tuple[metrics.Speedup, Interval | None, int]:
    """A method's speedup over settings, its interval where all are exact, and how many settings entered."""
    each = {str(setting): part for setting, part in runs.groupby("setting")}
    gains = {setting: compare.cell_speedup(part, resource, prefix) for setting, part in each.items()}
    known = {setting: gain for setting, gain in gains.items() if gain.value is not None}
    mean = metrics.combine(known.values())
    if mean.value is None or mean.bound:
        return mean, None, len(known)
    values = {setting: each[setting][f"{prefix}speedup_{resource}"].dropna().to_numpy(float) for setting in known}
    return mean, compare.geometric_over_settings(values, resource), len(known)


def diagnostics_table(diagnostics: pd.DataFrame, counterparts: dict[str, str]) -> Table:
    """Batch composition and use of what arrived, a row a (setting, method), means over seeds."""
    paper = reported("batch_diagnostics").set_index(["setting", "method"]).drop(columns="step_seconds")
    columns: dict[str, tuple[str, Callable[[Any], str]]] = {
        "effective_rollouts": ("Effective rollouts", number),
        "top_rollout_token_share": ("Top rollout's tokens", percent),
        "turns_per_rollout": ("Turns a rollout", number),
        "dead_row_share": ("Dead rows", percent),
        "kl_per_token": ("KL a token (nats)", lambda v: number(v, 3)),
        "never_selected_share": ("Never selected", percent),
        "selected_gini": ("Gini", lambda v: number(v, 2)),
        "mean_age": ("Age (versions)", lambda v: number(v, 2)),
        "load": ("Load", lambda v: number(v, 2)),
        "stale_rows": ("Stale rows", lambda v: number(v, 0)),
        "scored_over_trained": ("Scored / trained", lambda v: number(v, 2)),
    }
    rows, numbers = [], []
    for setting, method, runs in cells(diagnostics):
        facts = facts_of(paper, (counterparts.get(setting, setting), method))
        n: dict[str, Any] = {"setting": setting, "method": method, "seeds": len(runs)}
        for name in columns:
            spread = compare.over_seeds(runs[name])
            n |= {name: spread.value, f"{name}_low": spread.low, f"{name}_high": spread.high}
        numbers.append(n | {f"reported_{name}": facts.get(name) for name in paper.columns})
        shown = [show(n[name]) for name, (_, show) in columns.items()]
        rows.append([setting, label(method), *shown, *(columns[name][1](facts.get(name)) for name in paper.columns)])
    header = ["Setting", "Method", *(title for title, _ in columns.values())]
    header += [f"{columns[name][0]} (reported)" for name in paper.columns]
    notes = [
        "Means over updates, then seeds (their 95 % t intervals: diagnostics.csv). Never selected: share of rollouts "
        "with a valid turn of which none was trained. Load: arrival over drain rate of turns. Scored / trained: "
        "response tokens that the teacher scored over those that were trained.",
        REPORTED,
    ]
    return Table("Batches, and what became of the turns", header, rows, pd.DataFrame(numbers), notes)
