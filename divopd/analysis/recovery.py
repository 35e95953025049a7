"""Figures of methods in which the teacher acts: what its turns buy, and when it takes over. From the report's CSVs."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from divopd.analysis import style
from divopd.analysis.labels import look, ordered
from divopd.analysis.style import NothingToDrawError
from divopd.analysis.table import few_settings


def recovery_tradeoff(summary: pd.DataFrame, diagnostics: pd.DataFrame) -> Figure:
    """Success against how much the teacher acted, a panel a setting: one mark a method, bars over seeds.

    x: share of all logged turns that are the teacher's. y: mean of the last five evaluations. Shown are the methods
    whose teacher acts, the same without recovery, and the baseline. Raises NothingToDrawError where it never acts.
    """
    key = ["setting", "method", "seed"]
    data = summary[[*key, "final5_mean"]].merge(diagnostics[[*key, "teacher_turn_share"]], on=key)
    acting = set(data.loc[data["teacher_turn_share"] > 0, "method"])
    if not acting:
        raise NothingToDrawError("no method here lets the teacher act")
    beside = {method.removesuffix("_recovery") for method in acting} | set(summary["baseline"])
    data = data[data["method"].isin(acting | beside)]
    settings, methods = list(data["setting"].unique()), ordered(data["method"])
    fig, axes = style.panels(settings, 2.2)
    for ax, setting in zip(axes, settings, strict=True):
        part = data[data["setting"] == setting]
        for method in ordered(part["method"]):
            _cross(ax, part[part["method"] == method], method, methods)
        ax.set_xlabel("Turns by the teacher")
        ax.set_ylabel("Success, last five" if style.first_column(ax) else "")
        style.percent_axis(ax.xaxis, 5)
        style.percent_axis(ax.yaxis)
        share = part["teacher_turn_share"].max()
        ax.set_xlim(-0.12 * share or -0.01, 1.12 * share or 0.01)
        ax.margins(y=0.12)
        style.widen(ax.yaxis, style.LEAST_SPAN)
    short = few_settings(summary[summary["setting"].isin(settings)])
    note = [style.spread_note(style.most_seeds(data)), f"Evaluations where fewer than five: {short}" if short else ""]
    style.legend(fig, [_mark(m, methods) for m in methods], "\n".join(filter(None, note)))
    return fig


def takeovers_over_training(curves: pd.DataFrame) -> Figure:
    """Takeovers, and the teacher's turns, a rollout, between one evaluation and the next; two panels a setting.

    Methods whose teacher never acts are left out; mean over seeds. Raises NothingToDrawError where none acts.
    """
    acting = curves.groupby("method")["teacher_turns"].max()
    data = curves[curves["method"].isin(acting[acting > 0].index)]
    if data.empty:
        raise NothingToDrawError("no method here lets the teacher act")
    settings, methods = list(data["setting"].unique()), ordered(data["method"])
    fig, axes = style.pairs(settings, 1.75)
    for setting, pair in zip(settings, axes, strict=True):
        part = data[data["setting"] == setting]
        for ax, (name, what) in zip(
            pair, (("takeovers", "Takeovers"), ("teacher_turns", "Teacher turns")), strict=True
        ):
            for method in ordered(part["method"]):
                rates = rate_between(part[part["method"] == method], name)
                mine = look(method, methods)
                ax.plot(rates.index, rates, color=mine.colour, ls=mine.line, marker=mine.marker,
                        ms=style.size(mine.marker, 3.6))  # fmt: skip
            ax.set_xlabel("Learner updates")
            ax.set_ylabel(f"{what} a rollout" if style.first_column(ax) or len(settings) == 1 else "")
            ax.set_xlim(left=0)
            top = max((float(y) for line in ax.lines for y in np.asarray(line.get_ydata())), default=0.0)
            ax.set_ylim(0, 1.15 * top or 1.0)
            style.count_axis(ax.xaxis)
    style.legend(fig, [style.line_key(m, methods) for m in methods], "Between two evaluations, mean over seeds")
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


def _cross(ax: Axes, runs: pd.DataFrame, method: str, methods: list[str]) -> None:
    """A method's mean with its spread over seeds both ways; hollow, so that equal means show all."""
    mine = look(method, methods)
    (x, left, right), (y, low, high) = (style.rate_spread(runs[c]) for c in ("teacher_turn_share", "final5_mean"))
    reach = [np.array([[mean - least], [most - mean]]) for mean, least, most in ((x, left, right), (y, low, high))]
    ax.errorbar(
        x, y, xerr=reach[0], yerr=reach[1], color=mine.colour, marker=mine.marker, ls="",
        ms=style.size(mine.marker, _size(method, methods)), mfc="none", mew=1.4, elinewidth=0.9, zorder=3,
    )  # fmt: skip


def _mark(method: str, methods: list[str]) -> Line2D:
    mine = look(method, methods)
    return Line2D(
        [],
        [],
        color=mine.colour,
        ls="",
        marker=mine.marker,
        ms=style.size(mine.marker, 7),
        mfc="none",
        mew=1.4,
        label=mine.label,
    )


def _size(method: str, methods: list[str]) -> float:
    """Points; each method's mark is of another size than its neighbours'."""
    return 9.0 - 2.0 * (methods.index(method) % 3)
