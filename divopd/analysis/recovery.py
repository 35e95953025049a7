"""Figures of methods in which the teacher acts: what its turns buy, and when it takes over. From the report's CSVs."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, PercentFormatter

from divopd.analysis.figures import _grid, _legend, _line, _thousands
from divopd.analysis.labels import look, ordered


def recovery_tradeoff(summary: pd.DataFrame, diagnostics: pd.DataFrame) -> Figure:
    """Success against how much the teacher acted, a panel a setting: one mark a method, bars over seeds.

    x: share of all logged turns that are the teacher's. y: mean of the last five evaluations. Bars span the seeds.
    """
    key = ["setting", "method", "seed"]
    data = summary[[*key, "final5_mean"]].merge(diagnostics[[*key, "teacher_turn_share"]], on=key)
    settings, methods = list(data["setting"].unique()), ordered(data["method"])
    fig, axes = _grid(1, len(settings), width=3.5, height=2.9, sharey="row")
    for ax, setting in zip(axes[0], settings, strict=True):
        part = data[data["setting"] == setting]
        for method in ordered(part["method"]):
            _spread(ax, part[part["method"] == method], method, methods)
        ax.set_title(setting, loc="left", fontweight="bold")
        ax.set_xlabel("Turns by the teacher, share of all")
        ax.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=1))
        share = part["teacher_turn_share"].max()
        ax.set_xlim(-0.1 * share or -0.01, 1.1 * share or 0.01)
        ax.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    axes[0][0].set_ylabel("Success, last five evaluations")
    _legend(fig, [_mark(m, methods) for m in methods], "Bars: least to largest over seeds")
    return fig


def takeovers_over_training(curves: pd.DataFrame) -> Figure:
    """Takeovers, and the teacher's turns, a rollout, between one evaluation and the next; a row a setting.

    Methods whose teacher never acts are left out; mean over seeds.
    """
    acting = curves.groupby("method")["teacher_turns"].max()
    data = curves[curves["method"].isin(acting[acting > 0].index)]
    settings, methods = list(curves["setting"].unique()), ordered(curves["method"])
    shown = [method for method in methods if method in set(data["method"])]
    fig, axes = _grid(len(settings), 2, width=3.7, height=2.5)
    for row, setting in enumerate(settings):
        part = data[data["setting"] == setting]
        for ax, (name, label) in zip(
            axes[row], (("takeovers", "Takeovers a rollout"), ("teacher_turns", "Teacher turns a rollout")), strict=True
        ):
            for method in ordered(part["method"]):
                rates = rate_between(part[part["method"] == method], name)
                style = look(method, methods)
                ax.plot(rates.index, rates, color=style.colour, ls=style.line, marker=style.marker)
            ax.set_xlabel("Learner updates")
            ax.set_ylabel(label)
            ax.set_xlim(left=0)
            top = max((line.get_ydata().max() for line in ax.lines if len(line.get_ydata())), default=0.0)
            ax.set_ylim(0, 1.15 * top or 1.0)
            ax.xaxis.set_major_formatter(FuncFormatter(_thousands))
        axes[row][0].set_title(setting, loc="left", fontweight="bold")
    if shown:
        _legend(fig, [_line(m, methods) for m in shown], "Between one evaluation and the next, mean over seeds")
    else:
        fig.supxlabel("No method here lets the teacher act", fontsize=8, color="#333333")
    return fig


def rate_between(curve: pd.DataFrame, name: str) -> pd.Series:
    """Version -> growth of a running total since the evaluation before, a rollout started in between; mean over seeds.

    Evaluations between which no rollout started are left out.
    """
    parts = []
    for _, one in curve.sort_values("version").groupby("seed"):
        steps = one.set_index("version")[[name, "rollouts"]].diff().iloc[1:]
        steps = steps[steps["rollouts"] > 0]
        parts.append(steps[name] / steps["rollouts"])
    return pd.concat(parts).groupby(level=0).mean() if parts else pd.Series(dtype=float)


def _spread(ax: Axes, runs: pd.DataFrame, method: str, methods: list[str]) -> None:
    """The mean of a method's seeds with bars from the least to the largest; hollow, so that equal means show all."""
    x, y = runs["teacher_turn_share"], runs["final5_mean"]
    style = look(method, methods)
    reach = [np.array([[v.mean() - v.min()], [v.max() - v.mean()]]) for v in (x, y)]
    ax.errorbar(
        x.mean(), y.mean(), xerr=reach[0], yerr=reach[1], color=style.colour, marker=style.marker, ls="",
        ms=_size(method, methods), mfc="none", mew=1.6, elinewidth=1.0, zorder=3,
    )  # fmt: skip


def _mark(method: str, methods: list[str]) -> Line2D:
    style = look(method, methods)
    return Line2D([], [], color=style.colour, ls="", marker=style.marker, ms=8, mfc="none", mew=1.6, label=style.label)


def _size(method: str, methods: list[str]) -> float:
    """Points; each method's mark is of another size than its neighbours'."""
    return 12.0 - 3.0 * (methods.index(method) % 3)
