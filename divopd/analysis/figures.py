"""The suite's figures, from the report's CSVs: PNG to look at, PDF to print. One style; readable in grey."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, NullLocator, PercentFormatter

from divopd.analysis import metrics
from divopd.analysis.labels import look, ordered
from divopd.analysis.uncertainty import paired_bootstrap, wilson
from divopd.paper import reported
from divopd.seeds import rng

STYLE: dict[Any, Any] = {
    "font.size": 9, "axes.titlesize": 9.5, "axes.labelsize": 9, "legend.fontsize": 8.5, "xtick.labelsize": 8,
    "ytick.labelsize": 8, "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "grid.alpha": 0.25,
    "grid.linewidth": 0.6, "lines.linewidth": 1.7, "lines.markersize": 4, "legend.frameon": False, "savefig.dpi": 160,
    "figure.dpi": 100, "hatch.linewidth": 0.7, "pdf.fonttype": 42, "svg.hashsalt": "divopd",
}  # fmt: skip
RESOURCES = {"trained_tokens": "trained tokens", "learner_seconds": "learner time"}
REPORTED = "reported in arXiv 2609.34838"


def learning_curves(curves: pd.DataFrame, summary: pd.DataFrame) -> Figure:
    """Success against updates and against trained tokens, a row a setting, with target and start."""
    settings, methods = list(curves["setting"].unique()), ordered(curves["method"])
    fig, axes = _grid(len(settings), 2, width=3.7, height=2.7, sharey="row")
    for row, setting in enumerate(settings):
        part, facts = curves[curves["setting"] == setting], summary[summary["setting"] == setting]
        for ax, (x, name) in zip(
            axes[row], (("version", "updates"), ("trained_tokens", "trained tokens")), strict=True
        ):
            for method in ordered(part["method"]):
                _curve(ax, part[part["method"] == method], x, method, methods)
            _levels(ax, float(facts["target"].iloc[0]), float(facts["start"].mean()))
            ax.set_xlabel(f"Learner {name}" if x == "version" else "Trained tokens (prompt + response)")
            ax.xaxis.set_major_formatter(FuncFormatter(_thousands))
            ax.set_xlim(left=0)
            ax.set_title(setting, loc="left", fontweight="bold") if x == "version" else None
        axes[row][0].set_ylabel("Success on the panel")
        axes[row][0].yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    seeds = curves.groupby("setting")["seed"].nunique().max()
    band = (
        "95 % Wilson interval of one evaluation" if seeds == 1 else f"mean and 95 % bootstrap interval, {seeds} seeds"
    )
    _legend(fig, [_line(m, methods) for m in methods], f"Band: {band}")
    return fig


def efficiency(speedups: pd.DataFrame, counterparts: dict[str, str]) -> Figure:
    """Token and learner-time speedup over the baseline to the target, a group a setting, then the geometric mean.

    `speedups` is the main table's frame. Open diamonds are what the paper reports for the setting beside ours.
    """
    settings, methods = list(speedups["setting"].unique()), ordered(speedups["method"])
    paper = reported("main_results").set_index(["setting", "method"])
    fig, axes = _grid(1, 2, width=1.6 + 1.3 * (len(settings) + 1), height=3.1, sharey="row")
    for ax, resource, theirs in zip(axes[0], RESOURCES, ("token_speedup", "gpu_speedup"), strict=True):
        for j, method in enumerate(methods):
            mine = speedups[speedups["method"] == method].set_index("setting")
            values = [
                (_at(mine, s, f"speedup_{resource}"), str(_at(mine, s, f"bound_{resource}") or "")) for s in settings
            ]
            mean = metrics.combine(metrics.Speedup(v, bound) for v, bound in values if v is not None)
            keys = [(counterparts.get(s, s), method) for s in settings]
            facts = [_at(paper, key, theirs) for key in keys]
            _bars(ax, j, len(methods), [*values, (mean.value, mean.bound)], method, methods)
            for i, fact in enumerate([*facts, metrics.geometric_mean(facts)]):
                if fact is not None:
                    ax.plot(i + _offset(j, len(methods)), fact, "D", mfc="white", mec="black", ms=4.5, zorder=4)
        ax.axhline(1, color="black", lw=0.8)
        ax.axvline(len(settings) - 0.5, color="black", lw=0.6, alpha=0.4)
        ax.set_xticks(range(len(settings) + 1), [*(_wrap(s) for s in settings), "geometric\nmean"])
        ax.grid(axis="x", visible=False)
        ax.set_title(f"Speedup in {RESOURCES[resource]}", loc="left")
    axes[0][0].set_ylabel("Baseline's cost / method's, to the target")
    axes[0][0].yaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:g}×"))
    axes[0][0].set_ylim(0, 1.12 * max(1.0, axes[0][0].get_ylim()[1] / 1.05))
    _legend(fig, [*(_patch(m, methods) for m in methods), _diamond()], "<, >: bounds, where one side never got there")
    return fig


def batch_diagnostics(diagnostics: pd.DataFrame, counterparts: dict[str, str]) -> Figure:
    """What batches are made of, a panel a quantity, beside the paper's values for the same methods."""
    panels: dict[str, tuple[str, bool]] = {
        "effective_rollouts": ("Effective rollouts a batch", False),
        "top_rollout_token_share": ("Token share of the top rollout", True),
        "turns_per_rollout": ("Turns a rollout", False),
        "kl_per_token": ("KL a token (nats)", False),
        "dead_row_share": ("Dead rows in the batch", True),
        "never_selected_share": ("Rollouts never selected", True),
    }
    settings, methods = list(diagnostics["setting"].unique()), ordered(diagnostics["method"])
    paper = reported("batch_diagnostics").set_index(["setting", "method"])
    fig, axes = _grid(2, 3, width=1.1 + 0.85 * len(settings), height=2.4)
    for ax, (name, (title, percent)) in zip(axes.flat, panels.items(), strict=True):
        for j, method in enumerate(methods):
            mine = diagnostics[diagnostics["method"] == method].groupby("setting")[name].mean()
            values = [(float(mine[s]) if s in mine.index else None, "") for s in settings]
            _bars(ax, j, len(methods), values, method, methods)
            for i, setting in enumerate(settings):
                fact = _at(paper, (counterparts.get(setting, setting), method), name) if name in paper else None
                if fact is not None:
                    ax.plot(i + _offset(j, len(methods)), fact, "D", mfc="white", mec="black", ms=4.5, zorder=4)
        ax.set_xticks(range(len(settings)), [_wrap(s) for s in settings])
        ax.grid(axis="x", visible=False)
        ax.set_title(title, loc="left")
        ax.set_ylim(0, max(1.08 * ax.get_ylim()[1], 1e-3))
        if percent:
            ax.yaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{100 * v:.3g}%"))
    _legend(fig, [*(_patch(m, methods) for m in methods), _diamond()], "")
    return fig


def speedup_by_target(speedups: pd.DataFrame, summary: pd.DataFrame) -> Figure:
    """Token speedup against the target: how far the result hangs on the choice of the target."""
    settings, methods = list(summary["setting"].unique()), ordered(summary["method"])
    fig, axes = _grid(1, len(settings), width=3.5, height=2.7, sharey="row")
    for ax, setting in zip(axes[0], settings, strict=True):
        start = summary.loc[summary["setting"] == setting, "start"].mean()
        part = speedups[(speedups["setting"] == setting) & (speedups["target"] > start)]  # below, noise decides
        seeds = _seeds_with_baseline(summary[summary["setting"] == setting])
        for method in ordered(part["method"]):
            style, data = look(method, methods), part[part["method"] == method]
            # a mean over the seeds that got there alone would flatter: all of them, or no point
            every = data.pivot(index="target", columns="seed", values="speedup_trained_tokens").dropna()
            every = every if every.shape[1] == seeds[method] else every.iloc[:0]
            mean = every.apply(metrics.geometric_mean, axis=1)
            ax.plot(mean.index, mean.to_numpy(float), color=style.colour, ls=style.line, marker=style.marker)
        target = float(summary.loc[summary["setting"] == setting, "target"].iloc[0])
        if np.isfinite(target):
            ax.axvline(target, color="black", lw=0.9, ls=(0, (2, 2)))
            ax.text(target, 0.98, " target", transform=ax.get_xaxis_transform(), va="top", fontsize=8)
        ax.set_yscale("log", base=2)
        ax.yaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:.3g}×"))
        ax.yaxis.set_minor_locator(NullLocator())
        ax.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        ax.set_xlabel("Success to reach")
        ax.set_title(setting, loc="left", fontweight="bold")
    axes[0][0].set_ylabel("Speedup in trained tokens")
    _legend(
        fig, [_line(m, methods) for m in methods], "Where both sides of every seed got there; geometric mean over seeds"
    )
    return fig


def draw(makers: dict[str, Callable[[], Figure]], out: Path) -> list[Path]:
    """Write each figure as PNG and PDF under `out`; the paths written. The same data gives the same bytes."""
    out.mkdir(parents=True, exist_ok=True)
    written = []
    with plt.rc_context(STYLE):
        for name, make in makers.items():
            fig = make()
            # the layout is worked out once, not at each draw of each format
            fig.draw_without_rendering()
            fig.set_layout_engine("none")
            for kind, metadata in (("png", {"Software": None}), ("pdf", {"CreationDate": None, "Producer": None})):
                written.append(out / f"{name}.{kind}")
                fig.savefig(written[-1], metadata=metadata)
            plt.close(fig)
    return written


def _grid(rows: int, columns: int, width: float, height: float, **share: str) -> tuple[Figure, np.ndarray]:
    size = (width * columns, height * rows + 0.5)
    return plt.subplots(rows, columns, figsize=size, squeeze=False, layout="constrained", **share)  # type: ignore[call-overload]


def _curve(ax: Axes, data: pd.DataFrame, x: str, method: str, methods: list[str]) -> None:
    """The mean over seeds at the versions of the first seed, with its band; x is averaged over seeds too."""
    style = look(method, methods)
    seeds = [part.sort_values("version") for _, part in data.groupby("seed")]
    grid = seeds[0]["version"].to_numpy(float)
    grid = grid[grid <= min(part["version"].max() for part in seeds)]
    ys = np.array([np.interp(grid, part["version"], part["success"]) for part in seeds])
    xs = np.mean([np.interp(grid, part["version"], part[x]) for part in seeds], axis=0)
    if len(seeds) == 1:
        low, high = wilson(seeds[0]["successes"], seeds[0]["episodes"])
    else:
        _, low, high = paired_bootstrap({"": ys}, lambda a: a[0].mean(axis=0), rng("figure", method), draws=1000)
    every = max(1, len(grid) // 10)
    look_of: dict[str, Any] = {"color": style.colour, "ls": style.line, "marker": style.marker, "markevery": every}
    ax.plot(xs, ys.mean(axis=0), **look_of, zorder=3, clip_on=False)
    ax.fill_between(xs, low, high, color=style.colour, alpha=0.13, lw=0)


def _levels(ax: Axes, target: float, start: float) -> None:
    """Dashed target and dotted start, named at the right edge."""
    levels = [(start, "start", (0, (1, 2)))] + ([(target, "target", (0, (2, 2)))] if np.isfinite(target) else [])
    for value, name, line in levels:
        ax.axhline(value, color="black", lw=0.9, ls=line, zorder=1)
        ax.annotate(name, (1.0, value), xycoords=("axes fraction", "data"), xytext=(2, 0), textcoords="offset points",
                    va="center", fontsize=7.5)  # fmt: skip


def _offset(j: int, count: int) -> float:
    return (j - (count - 1) / 2) * 0.8 / count


def _bars(
    ax: Axes, j: int, count: int, values: Iterable[tuple[float | None, str]], method: str, methods: list[str]
) -> None:
    """One method's bars. A bound is drawn pale, with its sign; nothing known is a dash on the axis."""
    style, width = look(method, methods), 0.8 / count * 0.92
    for i, (value, bound) in enumerate(values):
        x = i + _offset(j, count)
        if value is None or not np.isfinite(value):
            ax.text(x, 0, "–", ha="center", va="bottom", fontsize=9)
            continue
        alpha = 0.35 if bound else 0.9
        ax.bar(x, value, width, color=style.colour, alpha=alpha, hatch=style.hatch, edgecolor="white", lw=0, zorder=2)
        if bound:
            ax.text(x, value, bound, ha="center", va="bottom", fontsize=9)


def _at(frame: pd.DataFrame, key: object, column: str) -> float | None:
    if key not in frame.index:
        return None
    value = frame.loc[key, column]
    return None if pd.isna(value) else value


def _seeds_with_baseline(runs: pd.DataFrame) -> pd.Series:
    """Method -> how many seeds it shares with the baseline."""
    shared = runs.loc[runs["method"] == runs["baseline"], "seed"]
    return runs[runs["seed"].isin(shared)].groupby("method")["seed"].nunique()


def _line(method: str, methods: list[str]) -> Line2D:
    s = look(method, methods)
    return Line2D([], [], color=s.colour, ls=s.line, marker=s.marker, label=s.label)


def _patch(method: str, methods: list[str]) -> matplotlib.patches.Patch:
    s = look(method, methods)
    return matplotlib.patches.Patch(
        facecolor=s.colour, alpha=0.9, hatch=s.hatch, edgecolor="white", lw=0, label=s.label
    )


def _diamond() -> Line2D:
    return Line2D([], [], ls="", marker="D", mfc="white", mec="black", ms=4.5, label=REPORTED)


def _legend(fig: Figure, handles: list, note: str) -> None:
    fig.legend(handles=handles, loc="outside upper center", ncols=min(len(handles), 4), handlelength=3.2)
    if note:
        fig.supxlabel(note, fontsize=8, color="#333333")


def _wrap(setting: str) -> str:
    return setting.replace("-", "\n", 1)


def _thousands(value: float, _: object) -> str:
    return f"{value / 1e6:g}M" if value >= 1e6 else f"{value / 1e3:g}k" if value >= 1e3 else f"{value:g}"
