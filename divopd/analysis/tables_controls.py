"""Controls: with and without the cap, equal access to the pool, and the sweeps of load, cap and staleness.

A table whose runs are absent raises NoRunsError, whose text says which runs it needs.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from divopd.analysis import compare
from divopd.analysis.labels import label
from divopd.analysis.table import DASH, REPORTED, Table, cells, facts_of, few, few_note, fewest, interval, number
from divopd.analysis.uncertainty import Interval
from divopd.paper import reported

# table -> title, suite of its runs under experiments/sweeps/, swept key, columns shown: heading, factor, digits
_SUCCESS = {"peak": ("Peak (%)", 100, 1), "final5_mean": ("Final-5 (%)", 100, 1), "final": ("Final (%)", 100, 1)}
SWEEPS: dict[str, tuple[str, str, str, dict[str, tuple[str, float, int]]]] = {
    "load": ("Producer load", "load", "pipeline.tasks_per_step", {
        "load": ("Arrival / drain", 1, 2), **_SUCCESS, "nauc": ("nAUC (%)", 100, 1), "stale_rows": ("Stale rows", 1, 0),
    }),
    "cap": ("Sensitivity to the cap k", "cap", "method.params.cap", {
        **_SUCCESS, "effective_rollouts": ("Effective rollouts", 1, 1),
    }),
    "staleness": ("Maximum staleness", "staleness", "train.max_staleness", {
        "mean_age": ("Mean age (versions)", 1, 2), **_SUCCESS,
    }),
    "access": ("Matched access, one change at a time", "access", "method.rule", {
        **_SUCCESS, "best5_mean": ("Best five (%)", 100, 1),
    }),
}  # fmt: skip
ACCESS = ("vanilla_256", "gate_only", "top_b", "divopd_k_inf", "divopd_base", "divopd")


# swept key: the paper's table and its columns under our names
PAPER: dict[str, tuple[str, dict[str, str]]] = {
    "pipeline.tasks_per_step": ("producer_load", {
        "reader": "method", "rollout_batch": "value", "load": "level", "arrival_over_drain": "load",
        "final_success": "final", "nauc_150": "nauc"}),
    "method.params.cap": ("cap", {"cap": "value"}),
    "train.max_staleness": ("staleness", {"max_staleness": "value"}),
    "method.rule": ("matched_access", {}),
}  # fmt: skip
FACTS = ["peak", "final5_mean", "best5_mean", "final", "nauc", "mean_age", "stale_rows", "load"]
PERCENT = ("peak", "final5_mean", "best5_mean", "final", "nauc")  # of FACTS
OF_FIVE = ("best5_mean", "final5_mean")
NONE = "none"  # the value of a method without the swept key


class NoRunsError(Exception):
    """A table's runs are absent; the text says which it needs."""


def cap_control_table(summary: pd.DataFrame, counterparts: Mapping[str, str]) -> Table:
    """DivOPD-Base beside the same without a cap, a row a setting that has both, beside the paper's."""
    capped, free = "divopd_base", "divopd_k_inf"
    paper = reported("cap")
    paper = paper[paper["method"].isin([capped, free])].set_index(["setting", "method"])  # DivOPD by k: another table
    rows, numbers = [], []
    for setting in summary["setting"].unique():
        part = summary[summary["setting"] == setting]
        pairs = compare.paired_scores(part, capped, free)
        if not pairs:
            continue
        gain = compare.over_seeds(pairs[setting][:, 1] - pairs[setting][:, 0])
        n: dict[str, Any] = {"setting": setting, "seeds": len(pairs[setting]), "gain": gain.value}
        n |= {"gain_low": gain.low, "gain_high": gain.high}
        shown, theirs = [], []
        for method in (capped, free):
            runs = part[part["method"] == method]
            facts = facts_of(paper, (counterparts.get(setting, setting), method))
            for name in ("peak", "final5_mean"):
                spread = compare.over_seeds(runs[name])
                n |= {f"{method}_{name}": spread.value, f"{method}_{name}_low": spread.low}
                n |= {f"{method}_{name}_high": spread.high, f"reported_{method}_{name}": facts.get(name)}
                shown.append(interval(spread, 100) + (few(fewest(runs)) if name == "final5_mean" else ""))
                theirs.append(number(facts.get(name), 2))
        numbers.append(n)
        rows.append([setting, str(n["seeds"]), *shown, interval(gain, 100, sign=True), *theirs])
    if not rows:
        raise NoRunsError(f"{label(capped)} and {label(free)} in one setting: add {capped} and {free} to the methods")
    titles = [f"{label(method)}, {what}" for method in (capped, free) for what in ("peak", "final-5")]
    header = ["Setting", "Seeds", *titles, "Gain by the cap", *(f"{title} (reported)" for title in titles)]
    notes = [
        "Success in percent, with 95 % t intervals over seeds. Gain: final-5 with the cap less without, seed by seed."
    ]
    notes += few_note(summary)
    return Table("Cap control", header, rows, pd.DataFrame(numbers), [*notes, REPORTED])


def matched_access_table(summary: pd.DataFrame, counterparts: Mapping[str, str]) -> Table:
    """Vanilla with the larger pool beside the rules that choose from it, a row a (setting, method)."""
    paper = reported("matched_access").set_index(["setting", "method"])
    baseline = str(summary["baseline"].iloc[0])
    wide = set(summary.loc[summary["method"] == "vanilla_256", "setting"])
    part = summary[summary["setting"].isin(wide) & summary["method"].isin([baseline, *ACCESS])]
    if part["method"].nunique() < 2:
        raise NoRunsError("vanilla with DivOPD's pool: add vanilla_256 to the methods")
    gains = compare.by_setting(part, "vanilla_256").set_index(["setting", "method"])
    rows, numbers = [], []
    for setting, method, runs in cells(part):
        facts = facts_of(paper, (counterparts.get(setting, setting), method))
        n: dict[str, Any] = {"setting": setting, "method": method, "seeds": len(runs)}
        shown = []
        for name in ("peak", "best5_mean", "final5_mean", "final"):
            spread = compare.over_seeds(runs[name])
            n |= {name: spread.value, f"{name}_low": spread.low, f"{name}_high": spread.high}
            shown.append(interval(spread, 100) + (few(fewest(runs)) if name in OF_FIVE else ""))
        gain = Interval(*gains.loc[(setting, method)].iloc[1:]) if (setting, method) in gains.index else None
        n |= {"gain": gain.value, "gain_low": gain.low, "gain_high": gain.high} if gain else {}
        numbers.append(n | {f"reported_{name}": facts.get(name) for name in paper.columns})
        against = DASH if method == "vanilla_256" else interval(gain, 100, sign=True)
        theirs = [number(facts.get(name), 2) for name in paper.columns]
        rows.append([setting, label(method), str(len(runs)), *shown, against, *theirs])
    for setting in sorted({counterparts.get(s, s) for s in wide}):  # the paper's other side, which is no rule of ours
        facts = facts_of(paper, (setting, "rollout_first"))
        if facts:
            theirs = [number(facts.get(name), 2) for name in paper.columns]
            rows.append([setting, "rollout first", *[DASH] * 6, *theirs])
            numbers.append(
                {"setting": setting, "method": "rollout_first"} | {f"reported_{k}": v for k, v in facts.items()}
            )
    header = ["Setting", "Method", "Seeds", "Peak", "Best five", "Final-5", "Final", "Gain on the same pool"]
    header += ["Peak (reported)", "Best five (reported)", "Final (reported)"]
    notes = [
        "Success in percent, with 95 % t intervals over seeds. Best five: highest mean of five consecutive "
        "evaluations, our reading of a term that the paper does not define. Gain: final-5 less that of vanilla with "
        "the same pool, seed by seed.",
        f"{REPORTED} Its coverage-first reader has a name of its own there.",
    ]
    notes += few_note(part)
    return Table("Matched access", header, rows, pd.DataFrame(numbers), notes)


def sweep_table(name: str, frame: pd.DataFrame, facts: pd.DataFrame) -> Table:
    """One of SWEEPS: ours (a row a (setting, rule, value) of a sweep's CSV) and the paper's rows, told by "Source".

    `facts`: the paper's rows with setting, method, value, and success in percent.
    """
    title, suite, _, columns = SWEEPS[name]
    theirs = facts.rename(columns={"method": "rule"}).assign(source="reported")
    theirs[[c for c in PERCENT if c in theirs]] /= 100
    both = pd.concat([frame.copy().assign(source="ours", value=frame["value"].map(_text)), theirs], ignore_index=True)
    both["setting"] = both["setting"].fillna("not named")
    shown = {key: value for key, value in columns.items() if key in both and both[key].notna().any()}
    rows = []
    for row in both.to_dict("records"):
        texts, count = [], row.get("final5_count", np.nan)
        for key, (_, factor, digits) in shown.items():
            low, high = (float(row.get(f"{key}_{side}", float("nan"))) for side in ("low", "high"))
            fewer = few(int(count)) if key in OF_FIVE and not pd.isna(count) else ""
            texts.append(interval(Interval(float(row[key]), low, high), factor, digits) + fewer)
        rule = "" if str(row["rule"]) == str(row["value"]) else str(row["value"])
        rows.append([str(row["setting"]), label(str(row["rule"])), rule or DASH, str(row["source"]), *texts])
    header = ["Setting", "Rule", _VALUES[name], "Source", *(heading for heading, _, _ in shown.values())]
    notes = [
        f"Runs of experiments/sweeps/{suite}.yaml; means over seeds, with 95 % t intervals where there are several."
    ]
    notes += few_note(frame)
    return Table(title, header, rows, both, [*notes, REPORTED])


_VALUES = {"load": "Tasks a step", "cap": "k", "staleness": "Versions", "access": "Value"}


def sweep_facts(key: str, counterparts: Mapping[str, str]) -> pd.DataFrame:
    """The paper's rows of this sweep for the settings that ours stand for, and those without a setting.

    Columns setting, method, value (text) and FACTS; success in percent.
    """
    if key not in PAPER:
        return pd.DataFrame(columns=["setting", "method", "value", *FACTS])
    table, names = PAPER[key]
    facts = reported(table).rename(columns=names)
    for name in ("setting", "method", *FACTS):
        if name not in facts:
            facts[name] = "vanilla" if name == "method" else np.nan
    values = facts["method"] if key == "method.rule" else facts["value"].map("{:g}".format).replace("nan", NONE)
    facts = facts.assign(value=values)
    return facts[facts["setting"].isna() | facts["setting"].isin(counterparts.values())]


def sweep_needed(name: str, results: Path) -> str:
    """What to run for a sweep's table."""
    suite = f"experiments/sweeps/{SWEEPS[name][1]}.yaml"
    return f"the sweep in {results}: `divopd run {suite}`, then the report again"


def _text(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
