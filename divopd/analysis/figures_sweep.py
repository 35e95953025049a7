"""The figure of a sweep: what changes with the cap k, the load, the staleness or the rule. From sweep.csv alone."""

from __future__ import annotations

from collections.abc import Mapping
from textwrap import fill
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from divopd.analysis import style
from divopd.analysis.labels import label, look, ordered
from divopd.analysis.tables_controls import NONE

TITLES = {
    "pipeline.load": "Arrival / drain aimed at",
    "pipeline.tasks_per_step": "Tasks an explorer step plays",
    "method.params.cap": "Cap k (turns a rollout)",
    "train.max_staleness": "Maximum staleness (versions)",
    "method.rule": "Rule",
}
# column of sweep.csv: (heading, factor)
PANELS = {
    "final5_mean": ("Final-5 success (%)", 100.0), "effective_rollouts": ("Effective rollouts", 1.0),
    "tokens_to_target": ("Tokens to target (k)", 1e-3), "peak": ("Peak success (%)", 100.0),
    "never_selected_share": ("Never selected (%)", 100.0), "mean_age": ("Mean age (versions)", 1.0),
    "stale_rows_per_update": ("Stale rows an update", 1.0), "load": ("Load measured", 1.0),
}  # fmt: skip
FEW = 3  # of these panels, where several settings have a row each


def sweep_figure(
    frame: pd.DataFrame, facts: pd.DataFrame, key: str, counterparts: Mapping[str, str] | None = None
) -> Figure:
    """A panel a quantity, the swept value across, a line a rule; several settings have a row of the first three each.

    `frame`: rows of sweep.csv; `facts`: the paper's rows (tables_controls.sweep_facts), drawn as hollow marks, those of
    a setting beside the one that `counterparts` names for it.
    """
    settings, rules = list(frame["setting"].unique()), ordered(frame["rule"])
    values = ordered_values(frame["value"])
    names = list(PANELS)[: FEW if len(settings) > 1 else None]
    fig, axes = style.grid(-(-len(names) * len(settings) // 3), 3, 1.75, sharex=True)
    for i, ax in enumerate(axes.flat):
        if i >= len(names) * len(settings):
            ax.set_axis_off()
            axes.flat[i - 3].tick_params(labelbottom=True)  # the last one of its column
            axes.flat[i - 3].set_xlabel(TITLES.get(key, key))
            continue
        setting, name = settings[i // len(names)], names[i % len(names)]
        part = frame[frame["setting"] == setting]
        for rule in rules:
            _series(ax, part[part["rule"] == rule], name, values, rule, rules)
        beside = (counterparts or {}).get(setting)
        here = facts if beside is None else facts[facts["setting"].isna() | (facts["setting"] == beside)]
        for fact in here.to_dict("records"):
            _fact(ax, fact, name, values, rules)
        ax.set_title(PANELS[name][0], loc="left")
        ax.set_ylim(0, max(1.08 * ax.get_ylim()[1], 1e-3))
        ax.set_xlim(-0.4, len(values) - 0.6)
        slanted = {} if any(map(is_number, values)) else {"rotation": 30, "ha": "right", "rotation_mode": "anchor"}
        ax.set_xticks(range(len(values)), [show(value) for value in values], **slanted)
        if len(settings) > 1 and i % len(names) == 0:
            ax.set_ylabel(setting, fontweight="bold")
    for ax in axes[-1]:
        ax.set_xlabel(TITLES.get(key, key))
    keys = [style.line_key(rule, rules) for rule in rules]
    reported = {line.get_gid() for ax in axes.flat for line in ax.lines} & {"reported", "reported final"}
    if reported:
        hollow = f"hollow: {style.REPORTED}"
        keys.append(Line2D([], [], ls="", marker="o", mfc="white", mec="black", ms=5, label=hollow))
    beyond = "△ never at the target, what was used by the end" if (frame["bound"] == ">").any() else ""
    most = int(frame["seeds"].max())
    seeds = f"mean and 95 % t interval over {most} seeds" if most > 1 else "one seed"
    where = settings[0] if len(settings) == 1 else f"{len(settings)} settings"
    final = "reported final-5: the last evaluation alone" if "reported final" in reported else ""
    style.legend(fig, keys, fill("; ".join(text for text in (where, seeds, beyond, final) if text), 100))
    return fig


def _series(ax: Axes, part: pd.DataFrame, name: str, values: list[str], rule: str, rules: list[str]) -> None:
    mine, scale = look(rule, rules), PANELS[name][1]
    marked: dict[str, Any] = {
        "color": mine.colour,
        "marker": mine.marker,
        "ms": style.size(mine.marker, 4),
        "zorder": 3,
    }
    for there, line in ((part["value"] != NONE, mine.line), (part["value"] == NONE, "")):
        rows = part[there]
        x = np.array([values.index(value) for value in rows["value"]], dtype=float)
        ax.plot(x, scale * rows[name], ls=line, **marked)
        if f"{name}_low" in rows and rows[f"{name}_low"].notna().any():
            # beside each other, so that intervals at one value show
            aside = x + style.offset(rules.index(rule), len(rules), 0.24)
            low, high = (
                scale * rows[f"{name}_{side}"].clip(0, 1) for side in ("low", "high")
            )  # those measured are rates
            ax.vlines(aside, low, high, color=mine.colour, lw=0.9)
    if name == "tokens_to_target":
        beyond = part[part["bound"] == ">"]
        ax.plot([values.index(v) for v in beyond["value"]], scale * beyond[name], "^", mfc="white", mec="black", ms=4,
                zorder=4)  # fmt: skip


def _fact(ax: Axes, fact: dict[str, Any], name: str, values: list[str], rules: list[str]) -> None:
    """The paper's value, where the panel's quantity is the paper's: its rule's mark, hollow, at its place."""
    theirs = fact.get(name) if name in ("final5_mean", "peak", "mean_age", "load") else None
    final = name == "final5_mean" and pd.isna(theirs)
    if final:
        theirs = fact["final"]
    if theirs is None or pd.isna(theirs) or fact["method"] not in rules:
        return
    numbers = [float(value) for value in values if is_number(value)]
    if fact["value"] in values:
        x = float(values.index(fact["value"]))
    elif is_number(fact["value"]) and numbers and numbers[0] <= float(fact["value"]) <= numbers[-1]:
        x = float(np.interp(float(fact["value"]), numbers, np.arange(len(numbers))))
    else:
        return
    mine = look(fact["method"], rules)
    ax.plot(x, theirs, mine.marker, mfc="white", mec=mine.colour, mew=1.3, ms=style.size(mine.marker, 5), zorder=4,
            gid="reported final" if final else "reported")  # fmt: skip


def ordered_values(values: pd.Series) -> list[str]:
    """Distinct texts: numbers by size, or rules in their usual order, and NONE last."""
    found = set(values) - {NONE}
    first = sorted(found, key=float) if all(map(is_number, found)) else ordered(found)
    return first + [NONE] * (NONE in set(values))


def is_number(text: str) -> bool:
    """Whether a swept value is a number; it may be a rule's name, or NONE."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def show(value: str) -> str:
    """A swept value as it is written in tables and figures."""
    return value if is_number(value) or value == NONE else label(value)
