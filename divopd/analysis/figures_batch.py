"""Figures of what batches are made of, and of what the queue held that they were chosen from. From CSVs alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from divopd.analysis import style, turns
from divopd.analysis.labels import label, look, ordered
from divopd.analysis.style import NothingToDrawError
from divopd.paper import SOURCE, reported

# column: (title, whether it is a share)
COMPOSITION = {
    "effective_rollouts": ("Effective rollouts a batch", False),
    "top_rollout_token_share": ("Token share of the top rollout", True),
    "turns_per_rollout": ("Turns a rollout in a batch", False),
    "kl_per_token": ("KL a token (nats)", False),
    "dead_row_share": ("Dead rows in the batch", True),
    "never_selected_share": ("Valid rollouts never selected", True),
}
LEAST_ROLLOUTS = 12
THIRDS = ("early", "middle", "late")
# light to dark, so that depth reads in grey; failures are hatched
SHADES = {False: ("#F6D79B", "#E69F00", "#99610A"), True: ("#B5DBF2", "#4A9CCF", "#084F7F")}
# the paper's classes of depth, joined into three
JOINED = {"0-2": 0, "2-4": 1, "4-6": 1, "6-10": 2, "10+": 2}
REPORTED_RULES = {"vanilla": "vanilla", "gate": "gate_only", "coverage": "divopd_base", "focus": "divopd"}


def batch_diagnostics(diagnostics: pd.DataFrame, counterparts: dict[str, str]) -> Figure:
    """What batches are made of, a panel a quantity, beside the paper's values for the same methods."""
    settings, methods = list(diagnostics["setting"].unique()), ordered(diagnostics["method"])
    paper = reported("batch_diagnostics").set_index(["setting", "method"])
    fig, axes = style.grid(3, 2, 1.75, sharex=True)
    for ax, (name, (title, share)) in zip(axes.flat, COMPOSITION.items(), strict=True):
        _stems(ax, diagnostics, name, settings, methods)
        for j, method in enumerate(methods):
            for i, setting in enumerate(settings):
                theirs = style.at(paper, (counterparts.get(setting, setting), method), name)
                style.fact(ax, i + style.offset(j, len(methods)), theirs, min(8.0, 30 / len(methods)))
        ax.set_title(title, loc="left")
        ax.set_ylim(0, None if diagnostics[name].max() > 0 else 1.0)
        (style.percent_axis if share else style.count_axis)(ax.yaxis, 5)
    _legend_of_stems(fig, methods, style.most_seeds(diagnostics), [style.fact_key()])
    return fig


def disagreement(sums: pd.DataFrame, summary: pd.DataFrame) -> Figure:
    """Share of the variance of turn disagreement between rollouts: of whole runs, and over training by setting.

    Raises NothingToDrawError where no run has two rollouts with disagreement.
    """
    keys = list(turns.KEY)
    whole = sums.groupby(keys, as_index=False, sort=False)[list(turns.SUMS)].sum()
    whole["share"] = turns.variance_share(whole)
    if whole["share"].isna().all():
        raise NothingToDrawError("no run has rollouts whose turns have a disagreement")
    settings, methods = list(sums["setting"].unique()), ordered(sums["method"])
    columns = 2 if len(settings) == 4 else min(3, len(settings))
    rows = 1 - (-len(settings) // columns)
    fig, grid = style.grid(rows, columns, 1.9)
    for ax in grid[0]:
        ax.remove()
    top = fig.add_subplot(grid[0][0].get_gridspec()[0, :])
    _stems(top, whole, "share", settings, methods, narrow=False)
    style.percent_axis(top.yaxis, 5)
    top.set_ylim(bottom=0)
    top.set_title("Whole runs", loc="left")
    top.set_ylabel("Between rollouts")
    # a share of few rollouts is noise
    period = sums.assign(share=turns.variance_share(sums).where(sums["rollouts"] - sums["steps"] >= LEAST_ROLLOUTS))
    for ax, setting in zip(grid[1:].flat, settings, strict=False):
        updates = summary.loc[summary["setting"] == setting, "horizon"].iloc[0]
        part = period[(period["setting"] == setting)]
        for method in ordered(part["method"]):
            mine, mean = look(method, methods), part[part["method"] == method].groupby("period")["share"].mean()
            ax.plot((mean.index + 0.5) * updates / turns.PERIODS, mean, color=mine.colour, ls=mine.line,
                    marker=mine.marker, ms=style.size(mine.marker, 3))  # fmt: skip
        ax.set_title(setting, loc="left", fontweight="bold")
        ax.set_xlabel("Learner updates")
        style.count_axis(ax.xaxis)
        style.percent_axis(ax.yaxis, 5)
        ax.set_xlim(0, updates)
        ax.set_ylim(bottom=0)
        ax.set_ylabel("Between rollouts" if style.first_column(ax) else "")
    for ax in grid[1:].flat[len(settings) :]:
        ax.set_axis_off()
    note = "Share of the variance of turn disagreement that lies between the rollouts of a step; the rest: inside them"
    _legend_of_stems(fig, methods, style.most_seeds(sums), [], note)
    return fig


def focus(sums: pd.DataFrame) -> Figure:
    """Mean disagreement of the rows selected beside that of the rows the rule could choose from, a panel a setting.

    Means over updates. Raises NothingToDrawError where no run selected a valid turn.
    """
    whole = sums.groupby(list(turns.KEY), as_index=False, sort=False)[list(turns.SUMS)].sum()
    whole = whole[whole["updates"] > 0]
    if whole.empty:
        raise NothingToDrawError("no run selected a turn with a disagreement")
    for name in ("selected", "queue"):
        whole[name] = whole[f"{name}_mean_sum"] / whole["updates"]
    settings, methods = list(whole["setting"].unique()), ordered(whole["method"])
    fig, axes = style.panels(settings, 0.75 + 0.17 * len(methods), sharey=True)
    for ax, setting in zip(axes, settings, strict=True):
        for y, method in enumerate(methods):
            runs = whole[(whole["setting"] == setting) & (whole["method"] == method)]
            if len(runs):
                _choice(ax, y, runs, method, methods)
        ax.set_yticks(range(len(methods)), [label(m) for m in methods])
        ax.set_ylim(len(methods) - 0.4, -0.6)
        ax.set_xlim(left=min(0.0, ax.get_xlim()[0]))
        ax.set_xlabel("Disagreement (nats a turn)")
        style.count_axis(ax.xaxis)
    keys = [
        Line2D([], [], ls="", marker="o", mfc="white", mec="black", ms=5.5, label="rows to choose from"),
        Line2D([], [], ls="", marker="o", color="black", ms=5.5, label="rows selected"),
    ]
    style.legend(fig, keys, style.spread_note(style.most_seeds(whole)))
    return fig


def selected_depth(depths: pd.DataFrame) -> Figure:
    """Selected turns by third of the episode's depth and outcome, over those of the queue; last, the paper's.

    Thick bars are what was selected, thin ones below them what was queued; runs of a cell are pooled.
    """
    depths = depths[depths["queued"] > 0]
    if depths["selected"].sum() == 0:
        raise NothingToDrawError("no run selected a turn")
    settings, methods = list(depths["setting"].unique()), ordered(depths["method"])
    fig, axes = style.panels([*settings, "reported"], 0.75 + 0.2 * len(methods), columns=2)
    for ax, setting in zip(axes, settings, strict=False):
        part = depths[depths["setting"] == setting]
        edges = turns.tercile_edges(part)
        third = np.searchsorted(edges, part["turn"], side="right")
        counts = part.assign(third=third).groupby(["method", "success", "third"])[["selected", "queued"]].sum()
        for y, method in enumerate(methods):
            if method in counts.index:
                _shares(ax, y - 0.12, 0.44, counts.loc[method, "selected"])
                _shares(ax, y + 0.28, 0.16, counts.loc[method, "queued"])
        _depth_axes(ax, f"{setting}: turns 1–{edges[0]}, {edges[0] + 1}–{edges[1]}, later", methods)
    paper = reported("selected_turn_depth")
    paper = paper.assign(third=paper["depth"].map(JOINED), success=paper["outcome"] == "success")
    for y, rule in enumerate(REPORTED_RULES):
        _shares(axes[-1], y, 0.44, paper.groupby(["success", "third"])[rule].sum())
    _depth_axes(axes[-1], f"{SOURCE}: turns 1–2, 3–6, later", list(REPORTED_RULES.values()))
    axes[-1].set_ylim(max(len(methods), len(REPORTED_RULES)) - 0.4, -0.6)  # bars as thick as ours
    keys = [
        Patch(facecolor=SHADES[won][i], hatch="" if won else "////", edgecolor="white", lw=0,
              label=f"{'success' if won else 'failure'}, {THIRDS[i]}") for i in range(3) for won in (False, True)
    ]  # fmt: skip
    # legends fill column by column: failures above successes
    fig.legend(handles=keys, loc="outside upper center", ncols=3, handlelength=2.4, columnspacing=2.0)
    fig.supxlabel("Thick: selected. Thin: all that was queued. Thirds of the depth of all queued turns of a setting",
                  fontsize=8, color="#333333")  # fmt: skip
    return fig


def _stems(
    ax: Axes, runs: pd.DataFrame, name: str, settings: list[str], methods: list[str], narrow: bool = True
) -> None:
    """A group a setting, a stem a method; `runs` has a row a run. `narrow`: the panel is half a page wide."""
    for j, method in enumerate(methods):
        mine = runs[runs["method"] == method]
        for i, setting in enumerate(settings):
            values = mine.loc[mine["setting"] == setting, name].to_numpy(float)
            if len(values):
                style.stem(ax, i + style.offset(j, len(methods)), values, method, methods)
    slanted: dict[str, Any] = (
        {"rotation": 30, "ha": "right", "rotation_mode": "anchor"} if narrow and len(settings) > 3 else {}
    )
    ax.set_xticks(range(len(settings)), settings if slanted else [style.wrapped(s) for s in settings], **slanted)
    ax.set_xlim(-0.5, len(settings) - 0.5)
    ax.grid(axis="x", visible=False)


def _legend_of_stems(fig: Figure, methods: list[str], seeds: int, more: list[Line2D], note: str = "") -> None:
    kind = style.spread_note(seeds)
    parts = [part for part in (note, f"{kind[0].upper()}{kind[1:]}" if note and kind else kind) if part]
    style.legend(fig, [*(style.mark_key(m, methods) for m in methods), *more], "\n".join(parts))


def _choice(ax: Axes, y: float, runs: pd.DataFrame, method: str, methods: list[str]) -> None:
    mine, (mean, low, high) = look(method, methods), style.spread(runs["selected"])
    ax.plot([runs["queue"].mean(), mean], [y, y], color=mine.colour, lw=1.4, alpha=0.6, zorder=2)
    ax.plot(runs["queue"].mean(), y, "o", mfc="white", mec=mine.colour, mew=1.3, ms=5.5, zorder=4)
    ax.plot([low, high], [y, y], color="black", lw=0.8, zorder=3)
    ax.plot(mean, y, "o", color=mine.colour, mec="white", mew=0.4, ms=5.5, zorder=3)


def _shares(ax: Axes, y: float, height: float, counts: pd.Series) -> None:
    """One bar of 100 %: failures early to late, then successes; `counts` by (success, third)."""
    total, left = float(counts.sum()), 0.0
    for won in (False, True):
        for third in range(3):
            share = float(counts.get((won, third), 0.0)) / total if total else 0.0
            ax.barh(y, share, height, left=left, color=SHADES[won][third], hatch="" if won else "////",
                    edgecolor="white", lw=0)  # fmt: skip
            left += share


def _depth_axes(ax: Axes, title: str, methods: list[str]) -> None:
    ax.set_title(title, loc="left", fontsize=8.5)
    ax.set_yticks(range(len(methods)), [label(m) for m in methods])
    ax.set_ylim(len(methods) - 0.4, -0.6)
    ax.set_xlim(0, 1)
    ax.grid(axis="y", visible=False)
    style.percent_axis(ax.xaxis, 5)
    ax.set_xlabel("Share of turns")
