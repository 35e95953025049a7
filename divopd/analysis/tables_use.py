"""How runs use what arrives: rollouts never trained on, and teacher tokens scored in vain."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from divopd.analysis import compare
from divopd.analysis.labels import label, ordered
from divopd.analysis.table import REPORTED, Table, cells, facts_of, interval, number
from divopd.paper import reported

WEIGHTED = "All, by tokens"
# our method -> the prefix of the paper's columns
_TEACHER = {"divopd": "divopd_k3", "divopd_focus_first": "focus_first"}


def utilisation_table(diagnostics: pd.DataFrame) -> Table:
    """Rollouts never selected, and Gini of selected turns a rollout, a row a (setting, method), beside the paper's."""
    paper = reported("utilization").set_index(["composer", "environment"])
    rows, numbers = [], []
    for setting, method, runs in cells(diagnostics):
        facts = facts_of(paper.drop(columns="buffers"), (method, runs["env"].iloc[0]))
        never, gini = (compare.over_seeds(runs[name]) for name in ("never_selected_share", "selected_gini"))
        numbers.append({
            "setting": setting, "method": method, "seeds": len(runs), "never_selected_share": never.value,
            "never_selected_share_low": never.low, "never_selected_share_high": never.high, "selected_gini": gini.value,
            "selected_gini_low": gini.low, "selected_gini_high": gini.high,
            **{f"reported_{name}": facts.get(name) for name in ("never_selected_percent", "gini")},
        })  # fmt: skip
        rows.append([
            setting, label(method), str(len(runs)), f"{runs['valid_rollouts'].mean():.0f}", interval(never, 100),
            interval(gini, digits=2), number(facts.get("never_selected_percent")), number(facts.get("gini"), 2),
        ])  # fmt: skip
    header = ["Setting", "Method", "Seeds", "Rollouts", "Never selected (%)", "Gini", "Never selected (reported)"]
    header += ["Gini (reported)"]
    notes = [
        "Of rollouts with a valid turn: those of which no turn was trained, and the Gini coefficient of trained turns "
        "a rollout (0: all alike). Means over seeds, with 95 % t intervals.",
        f"{REPORTED} By environment; vanilla and DivOPD on the same recorded buffers of 100 updates, k = ∞ on its own "
        "run of 250.",
    ]
    return Table("Use of rollouts", header, rows, pd.DataFrame(numbers), notes)


def teacher_tokens_table(diagnostics: pd.DataFrame, counterparts: Mapping[str, str]) -> Table:
    """Teacher tokens scored over trained, a row a (setting, method) and one a method over all settings."""
    paper = reported("teacher_tokens").set_index("setting")
    rows, numbers = [], []

    def add(setting: str, method: str, runs: pd.DataFrame, theirs: str, ratio: compare.Interval) -> None:
        prefix = _TEACHER.get(method)
        facts = facts_of(paper, theirs) if prefix else {}
        reported_ratio, reported_share = (
            facts.get(f"{prefix}_{name}") for name in ("scored_over_trained", "not_selected_percent")
        )
        unused = 1 - 1 / ratio.value if ratio.value else float("nan")
        n: dict[str, Any] = {
            "setting": setting,
            "method": method,
            "seeds": len(runs),
            "scored_over_trained": ratio.value,
        }
        read = (
            runs["teacher_tokens"].sum() / runs["trained_tokens"].sum()
            if runs["trained_tokens"].sum()
            else float("nan")
        )
        n["read_over_trained"] = read
        n |= {"scored_over_trained_low": ratio.low, "scored_over_trained_high": ratio.high, "not_trained_share": unused}
        numbers.append(n | {"reported_scored_over_trained": reported_ratio, "reported_not_selected": reported_share})
        rows.append([
            setting, label(method), interval(ratio, digits=2), number(100 * unused), number(read, 2),
            number(reported_ratio, 2), number(reported_share),
        ])  # fmt: skip

    for setting, method, runs in cells(diagnostics):
        ratio = compare.over_seeds(runs["scored_over_trained"])
        add(setting, method, runs, counterparts.get(setting, setting), ratio)
    for method in ordered(diagnostics["method"]):
        runs = diagnostics[diagnostics["method"] == method]
        trained = runs["trained_tokens"].sum()
        ratio = compare.Interval(runs["scored_tokens"].sum() / trained if trained else float("nan"))
        add(WEIGHTED, method, runs, "token-weighted", ratio)
    header = ["Setting", "Method", "Scored / trained", "Scored in vain (%)", "Read / trained"]
    header += ["Scored / trained (reported)"]
    header += ["Scored in vain (reported)"]
    notes = [
        "Response tokens the teacher scored over those that were trained (means over seeds with 95 % t intervals), and "
        "the share scored in vain, 1 - trained / scored. Read: what passed through the teacher, context included.",
        f"{REPORTED} DivOPD there with k = 3.",
    ]
    return Table("Teacher tokens", header, rows, pd.DataFrame(numbers), notes)
