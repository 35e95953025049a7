"""Figures of what a suite found: success over training, and what it cost. From the report's CSVs alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from divopd.analysis import metrics, style
from divopd.analysis.compare import cell_speedup
from divopd.analysis.labels import label, look, ordered
from divopd.analysis.style import NothingToDrawError
from divopd.analysis.table import few_settings
from divopd.analysis.uncertainty import wilson
from divopd.paper import reported

RESOURCES = {
    "trained_tokens": "Trained tokens (prompt + response)",
    "learner_seconds": "Learner time (the paper's: trainer GPU-hours)",
    "wall_seconds": "Wall time (learner step + read)",
}
# the variant chain: what each method has more than the one before
CHAIN = {"vanilla": "Vanilla", "gate_only": "gate", "divopd_base": "spread", "divopd": "focus",
         "divopd_recovery": "recovery"}  # fmt: skip
CROWD = 4  # with more methods than this, bands of all would hide the lines


def learning_curves(curves: pd.DataFrame, summary: pd.DataFrame) -> Figure:
    """Success against updates and against trained tokens, two panels a setting, with target and start.

    Bands: 95 % intervals; where there are many methods, of the baseline and DivOPD alone.
    """
    settings, methods = list(curves["setting"].unique()), ordered(curves["method"])
    banded = (
        methods if len(methods) <= CROWD else [m for m in ("divopd", *summary["baseline"].unique()) if m in methods]
    )
    fig, axes = style.pairs(settings, 2.0)
    for setting, pair in zip(settings, axes, strict=True):
        part, facts = curves[curves["setting"] == setting], summary[summary["setting"] == setting]
        pair[1].sharey(pair[0])
        for ax, (x, name) in zip(
            pair, (("version", "Learner updates"), ("trained_tokens", "Trained tokens")), strict=True
        ):
            for method in ordered(part["method"]):
                _curve(ax, part[part["method"] == method], x, method, methods, method in banded)
            _levels(ax, float(facts["target"].iloc[0]), float(facts["start"].mean()))
            ax.set_xlabel(name)
            style.count_axis(ax.xaxis)
            ax.set_xlim(left=0)
            style.percent_axis(ax.yaxis)
        for ax in pair[: 1 if len(settings) == 1 else 2]:
            ax.set_ylabel("Success on the panel" if style.first_column(ax) else "")
    _legend_of_bands(fig, methods, banded, style.most_seeds(curves))
    return fig


def efficiency(summary: pd.DataFrame, counterparts: dict[str, str]) -> Figure:
    """Speedup over the baseline to the target in tokens, learner time and wall time; last, the mean over settings.

    Bars start at 1, the baseline, on a logarithmic axis. Raises NothingToDrawError without a second method or a target.
    """
    settings = list(summary["setting"].unique())
    methods = [m for m in ordered(summary["method"]) if m not in set(summary["baseline"])]
    gains = {
        (name, method, setting): cell_speedup(runs, name)
        for (setting, method), runs in summary.groupby(["setting", "method"])
        for name in RESOURCES
        if method in methods
    }
    if all(gain.value is None for gain in gains.values()):
        raise NothingToDrawError("no method beside the baseline has a speedup: none, or no target was reached")
    paper = _reported_speedups()
    fig, axes = style.grid(len(RESOURCES), 1, 1.75, sharex=True, sharey=True)
    for ax, (name, title) in zip(axes.flat, RESOURCES.items(), strict=True):
        for j, method in enumerate(methods):
            mine = [gains.get((name, method, setting), metrics.Speedup(None)) for setting in settings]
            mine.append(metrics.combine(gain for gain in mine if gain.value is not None))
            facts = [style.at(paper, (counterparts.get(s, s), method), name) for s in settings]
            facts.append(metrics.geometric_mean(facts))
            for i, (gain, theirs) in enumerate(zip(mine, facts, strict=True)):
                x = i + style.offset(j, len(methods))
                _speedup(ax, x, 0.74 / len(methods), gain, method, methods)
                style.fact(ax, x, theirs, min(11.0, 38 / len(methods)))
        ax.axhline(1, color="black", lw=0.8, zorder=4)
        ax.axvline(len(settings) - 0.5, color="black", lw=0.6, alpha=0.4)
        ax.set_title(title, loc="left")
        _ratio_axis(ax.yaxis)
        ax.grid(axis="x", visible=False)
        ax.set_xlim(-0.5, len(settings) + 0.5)
    axes[-1][0].set_xticks(range(len(settings) + 1), [*map(style.wrapped, settings), "geometric\nmean"])
    fig.supylabel("Speedup: baseline's cost / method's, to the target", fontsize=8.5)
    note = "▽ at most, △ at least (pale): one side never got there; – neither did, or bounds of both kinds"
    keys = [*(style.patch_key(m, methods) for m in methods), style.fact_key()]
    style.legend(fig, keys, note)
    return fig


def speedup_by_target(speedups: pd.DataFrame, summary: pd.DataFrame) -> Figure:
    """Token speedup against the target: how far the result hangs on the choice of the target."""
    settings, methods = list(summary["setting"].unique()), ordered(summary["method"])
    fig, axes = style.panels(settings, 2.2, sharey=True)
    for ax, setting in zip(axes, settings, strict=True):
        start = summary.loc[summary["setting"] == setting, "start"].mean()
        part = speedups[(speedups["setting"] == setting) & (speedups["target"] > start)]  # below, noise decides
        seeds = _seeds_with_baseline(summary[summary["setting"] == setting])
        for method in ordered(part["method"]):
            mine, data = look(method, methods), part[part["method"] == method]
            # a mean over the seeds that got there alone would flatter: all of them, or no point
            every = data.pivot(index="target", columns="seed", values="speedup_trained_tokens").dropna()
            every = every if every.shape[1] == seeds[method] else every.iloc[:0]
            mean = every.apply(metrics.geometric_mean, axis=1)
            ax.plot(mean.index, mean.to_numpy(float), color=mine.colour, ls=mine.line, marker=mine.marker,
                    ms=style.size(mine.marker, 2.8))  # fmt: skip
        target = float(summary.loc[summary["setting"] == setting, "target"].iloc[0])
        if np.isfinite(target):
            ax.axvline(target, color="black", lw=0.9, ls=(0, (2, 2)))
            ax.annotate("target", (target, 1), xycoords=("data", "axes fraction"), xytext=(-2, -1), va="top",
                        ha="right", textcoords="offset points", fontsize=7.5)  # fmt: skip
        _ratio_axis(ax.yaxis)
        style.percent_axis(ax.xaxis, 5)
        ax.set_xlabel("Success to reach")
        ax.set_ylabel("Speedup in tokens" if style.first_column(ax) else "")
    style.legend(
        fig,
        [style.line_key(m, methods) for m in methods],
        "Where both sides of every seed got there; geometric mean over seeds",
    )
    return fig


def variant_chain(summary: pd.DataFrame) -> Figure:
    """Success of the last five evaluations, from vanilla on with one part of DivOPD more at each step.

    Thin lines are seeds, so that a step is seen pair by pair. Raises NothingToDrawError with fewer than three variants.
    """
    chain = [method for method in CHAIN if method in set(summary["method"])]
    if len(chain) < 3:
        raise NothingToDrawError(f"needs three of {', '.join(CHAIN)}; there are {', '.join(chain) or 'none'}")
    settings, seeds = list(summary["setting"].unique()), style.most_seeds(summary)
    fig, axes = style.panels(settings, 2.2)
    for ax, setting in zip(axes, settings, strict=True):
        part = summary[(summary["setting"] == setting) & summary["method"].isin(chain)]
        wide = part.pivot(index="seed", columns="method", values="final5_mean").reindex(columns=chain)
        if seeds > 1:
            ax.plot(range(len(chain)), wide.T, color="#999999", lw=0.7, marker=".", ms=2.5, zorder=2)
        ax.plot(range(len(chain)), wide.mean(), color="black", lw=1.0, zorder=3)
        for i, method in enumerate(chain):
            values, mine = wide[method].dropna().to_numpy(), look(method)
            if len(values):
                mean, low, high = style.rate_spread(values)
                ax.errorbar(i, mean, [[mean - low], [high - mean]], color=mine.colour, marker=mine.marker, mec="white",
                            ms=style.size(mine.marker, 6), mew=0.4, elinewidth=1.2, capsize=2, ls="",
                            zorder=4)  # fmt: skip
        ax.set_xticks(range(len(chain)), _steps(chain), rotation=30, ha="right", rotation_mode="anchor")
        ax.set_xlim(-0.4, len(chain) - 0.6)
        ax.grid(axis="x", visible=False)
        style.widen(ax.yaxis, style.LEAST_SPAN)
        style.percent_axis(ax.yaxis)
        ax.set_ylabel("Success, last five" if style.first_column(ax) else "")
    note = (
        f"Black: {style.spread_note(seeds)}; grey: each seed" if seeds > 1 else "One seed: nothing is known about seeds"
    )
    short = few_settings(summary)
    lines = [f"{label(chain[0])} to {label(chain[-1])}. {note}", f"Evaluations where fewer than five: {short}"]
    fig.supxlabel("\n".join(lines[: 2 if short else 1]), fontsize=8, color="#333333")
    return fig


def makers(load: Callable[[str], pd.DataFrame], counterparts: dict[str, str]) -> dict[str, Callable[[], Figure]]:
    """Figure -> how it is drawn; `load` reads a CSV of the report by name."""
    from divopd.analysis import figures_batch as batch
    from divopd.analysis import recovery

    curves, summary, diagnostics = load("curves"), load("summary"), load("diagnostics")
    return {
        "learning_curves": lambda: learning_curves(curves, summary),
        "efficiency": lambda: efficiency(summary, counterparts),
        "speedup_by_target": lambda: speedup_by_target(load("speedups"), summary),
        "variant_chain": lambda: variant_chain(summary),
        "batch_diagnostics": lambda: batch.batch_diagnostics(diagnostics, counterparts),
        "disagreement": lambda: batch.disagreement(load("disagreement"), summary),
        "focus": lambda: batch.focus(load("disagreement")),
        "selected_depth": lambda: batch.selected_depth(load("depth")),
        "recovery_tradeoff": lambda: recovery.recovery_tradeoff(summary, diagnostics),
        "takeovers_over_training": lambda: recovery.takeovers_over_training(curves),
    }


def _steps(chain: list[str]) -> list[str]:
    """What each variant adds to the one before it that is there: "+ gate, spread" where that is the first."""
    names = list(CHAIN)
    places = [names.index(method) for method in chain]
    added = [[CHAIN[name] for name in names[a + 1 : b + 1]] for a, b in zip(places, places[1:], strict=False)]
    return [CHAIN[chain[0]], *(f"+ {', '.join(parts)}" for parts in added)]


def _curve(ax: Axes, data: pd.DataFrame, x: str, method: str, methods: list[str], band: bool) -> None:
    """The mean over seeds at the versions of the first seed, with its band; x is averaged over seeds too."""
    mine = look(method, methods)
    seeds = [part.sort_values("version") for _, part in data.groupby("seed")]
    versions = seeds[0]["version"].to_numpy(float)
    versions = versions[versions <= min(part["version"].max() for part in seeds)]
    ys = np.array([np.interp(versions, part["version"], part["success"]) for part in seeds])
    xs = np.mean([np.interp(versions, part["version"], part[x]) for part in seeds], axis=0)
    mean, low, high = style.spread(ys)
    if len(seeds) == 1:
        low, high = wilson(seeds[0]["successes"], seeds[0]["episodes"])
    every = max(1, len(versions) // 8)
    drawn: dict[str, Any] = {"color": mine.colour, "ls": mine.line, "marker": mine.marker, "markevery": every}
    drawn["lw"] = 1.5 if len(methods) <= CROWD else 1.1
    drawn["ms"] = style.size(mine.marker, 3.6)
    ax.plot(xs, mean, **drawn, zorder=4 if band else 3, clip_on=False)
    if band:
        ax.fill_between(xs, np.clip(low, 0, 1), np.clip(high, 0, 1), color=mine.colour, alpha=0.15, lw=0)


def _legend_of_bands(fig: Figure, methods: list[str], banded: list[str], seeds: int) -> None:
    kind = "95 % Wilson interval of one evaluation" if seeds == 1 else style.spread_note(seeds)
    of = "" if banded == methods else f" of {' and '.join(label(m) for m in banded)}"
    style.legend(fig, [style.line_key(m, methods) for m in methods], f"Band{of}: {kind}")


def _levels(ax: Axes, target: float, start: float) -> None:
    """Dashed target and dotted start, named at the right edge."""
    levels = [(start, "start", (0, (1, 2)))] + ([(target, "target", (0, (2, 2)))] if np.isfinite(target) else [])
    for value, name, dashes in levels:
        ax.axhline(value, color="black", lw=0.9, ls=dashes, zorder=1)
        ax.annotate(name, (1.0, value), xycoords=("axes fraction", "data"), xytext=(2, 0), textcoords="offset points",
                    va="center", fontsize=7.5)  # fmt: skip


def _speedup(ax: Axes, x: float, width: float, gain: metrics.Speedup, method: str, methods: list[str]) -> None:
    if gain.value is None:
        ax.text(x, 1.02, "–", ha="center", va="bottom", fontsize=8)
    else:
        style.bar(ax, x, width, gain.value, gain.bound, method, methods)


def _reported_speedups() -> pd.DataFrame:
    """By (setting, method), a column a resource. Wall time is reported for DivOPD alone."""
    main = reported("main_results").set_index(["setting", "method"])
    wall = reported("wall_speedup").assign(method="divopd").set_index(["setting", "method"])["wall"]
    return pd.DataFrame({
        "trained_tokens": main["token_speedup"],
        "learner_seconds": main["gpu_speedup"],
        "wall_seconds": wall,
    })  # fmt: skip


def _ratio_axis(axis: Any) -> None:
    """Ratios on a logarithmic axis: halves and doubles as far apart, with ticks that people use."""
    axis.axes.set_yscale("log", base=2)
    ticks = [1 / 16, 1 / 8, 1 / 4, 1 / 2, 0.7, 1.0, 1.4, 2, 3, 4, 8, 16]
    axis.set_major_locator(FixedLocator(ticks))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.2g}×"))


def _seeds_with_baseline(runs: pd.DataFrame) -> pd.Series:
    """Method -> how many seeds it shares with the baseline."""
    shared = runs.loc[runs["method"] == runs["baseline"], "seed"]
    return runs[runs["seed"].isin(shared)].groupby("method")["seed"].nunique()
