"""The one style of all figures: size, looks of methods, panels, marks, and writing them as PNG and PDF.

Figures are as wide as a page's text (WIDTH inches), so that their letters are printed at the size given here. Methods
differ by marker, line style and hatch as well as by colour (labels.py): all of it reads in grey.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib.style
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_pdf import FigureCanvasPdf
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, MaxNLocator
from numpy.typing import ArrayLike

from divopd.analysis.labels import Marker, look
from divopd.analysis.uncertainty import mean_interval
from divopd.paper import SOURCE

WIDTH = 7.2
DPI = 200
LEAST_SPAN = 0.1  # of an axis of success rates: less is noise on panels of about a hundred episodes
STYLE: dict[Any, Any] = {
    "font.size": 8.5, "axes.titlesize": 9, "axes.labelsize": 8.5, "legend.fontsize": 8.5, "xtick.labelsize": 8,
    "ytick.labelsize": 8, "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "grid.alpha": 0.25,
    "grid.linewidth": 0.6, "lines.linewidth": 1.5, "lines.markersize": 4, "legend.frameon": False, "axes.titlepad": 5,
    "hatch.linewidth": 0.7, "pdf.fonttype": 42, "svg.hashsalt": "divopd",
}  # fmt: skip
REPORTED = f"reported in {SOURCE}"


class NothingToDrawError(Exception):
    """A figure's runs are absent; the text says which."""


def draw(makers: Mapping[str, Callable[[], Figure]], out: Path) -> tuple[list[Path], dict[str, str]]:
    """Write each figure as PNG and PDF under `out`: the paths written, and figure -> why it was left out.

    The same data gives the same bytes, whatever matplotlibrc, style files or backend the user has: pyplot, which would
    load the backend, has no part in it, and all starts from matplotlib's own defaults. Files of a figure that is left
    out now are removed: they show other runs.
    """
    out.mkdir(parents=True, exist_ok=True)
    written: list[Path] = []
    left_out: dict[str, str] = {}
    with matplotlib.style.context(["default", STYLE]):
        for name, make in makers.items():
            paths = [out / f"{name}.{kind}" for kind in ("png", "pdf")]
            try:
                fig = make()
            except NothingToDrawError as reason:
                left_out[name] = str(reason)
                for path in paths:
                    path.unlink(missing_ok=True)
                continue
            # worked out once, and drawn once a format: savefig would do both again for each
            fig.set_dpi(DPI)
            if (engine := fig.get_layout_engine()) is not None:
                engine.execute(fig)
            fig.set_layout_engine("none")
            FigureCanvasAgg(fig).print_png(paths[0], metadata={"Software": None})
            FigureCanvasPdf(fig).print_pdf(paths[1], metadata={"CreationDate": None, "Producer": None})
            written += paths
    return written, left_out


def grid(rows: int, columns: int, height: float, **options: Any) -> tuple[Figure, np.ndarray]:
    """A page-wide figure and its (rows, columns) axes, each `height` inches high with its labels."""
    width = WIDTH if columns > 1 or rows > 1 else WIDTH * 0.75
    size = (width, height * rows + 0.55)
    fig = Figure(figsize=size, layout="constrained")
    return fig, fig.subplots(rows, columns, squeeze=False, **options)


def panels(names: Sequence[str], height: float, columns: int = 3, **options: Any) -> tuple[Figure, list[Axes]]:
    """A panel a name, titled with it, at most `columns` side by side."""
    columns = 2 if len(names) == 4 else min(columns, len(names))
    fig, axes = grid(-(-len(names) // columns), columns, height, **options)
    for ax, name in zip(axes.flat, names, strict=False):
        ax.set_title(name, loc="left", fontweight="bold")
    for ax in axes.flat[len(names) :]:
        ax.set_axis_off()
    return fig, list(axes.flat[: len(names)])


def pairs(names: Sequence[str], height: float) -> tuple[Figure, list[tuple[Axes, Axes]]]:
    """Two panels a name, one above the other (side by side where there is one name); titled with it."""
    if len(names) == 1:
        fig, axes = grid(1, 2, height * 1.15)
        both = [(axes[0][0], axes[0][1])]
    else:
        columns = 2 if len(names) == 4 else min(3, len(names))
        fig, axes = grid(2 * -(-len(names) // columns), columns, height)
        places = [(2 * (i // columns), i % columns) for i in range(len(names))]
        both = [(axes[row][column], axes[row + 1][column]) for row, column in places]
        used = {ax for pair in both for ax in pair}
        for ax in axes.flat:
            if ax not in used:
                ax.set_axis_off()
    for (first, _), name in zip(both, names, strict=True):
        first.set_title(name, loc="left", fontweight="bold")
    return fig, both


# values over seeds ---------------------------------------------------------------------------------------------------


def spread(values: ArrayLike) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Mean over seeds, the first axis, and its 95 % interval; least and largest for two seeds, the value for one."""
    seeds = np.asarray(values, dtype=float)
    return mean_interval(seeds) if len(seeds) > 2 else (seeds.mean(axis=0), seeds.min(axis=0), seeds.max(axis=0))


def rate_spread(rates: ArrayLike) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """`spread` of values in [0, 1]: their interval is cut where no rate lies."""
    mean, low, high = spread(rates)
    return mean, np.maximum(low, 0.0), np.minimum(high, 1.0)


def spread_note(seeds: int) -> str:
    """What `spread` shows, for the note below a figure; "" for one seed."""
    several = f"mean and 95 % interval where there are {seeds} seeds"
    return {1: "", 2: "2 seeds: mean, least and largest"}.get(seeds, several)


def most_seeds(frame: pd.DataFrame) -> int:
    """The largest number of seeds that a setting of `frame` has."""
    return int(frame.groupby("setting")["seed"].nunique().max())


# marks ---------------------------------------------------------------------------------------------------------------


def size(marker: Marker, points: float) -> float:
    """The size at which a marker looks as large as a disc of `points`."""
    if isinstance(marker, tuple):
        return points * (1.5 if marker[1] else 1.05)
    return points * {"o": 1.0, "*": 1.7, "D": 0.9, "s": 0.95, "d": 1.2, "X": 1.15, "P": 1.15}.get(marker, 1.05)


def offset(j: int, count: int, width: float = 0.8) -> float:
    """Where the j-th of `count` marks stands in a group `width` wide around 0."""
    return (j - (count - 1) / 2) * width / count


def stem(ax: Axes, x: float, values: np.ndarray, method: str, methods: Collection[str]) -> None:
    """A mark at the mean over seeds on a stem from 0, with its interval; a dash on the axis where nothing is known."""
    values = values[np.isfinite(values)]
    if not len(values):
        ax.text(x, 0, "–", ha="center", va="bottom", fontsize=8)
        return
    style, (mean, low, high) = look(method, methods), map(float, spread(values))
    ax.plot([x, x], [0, mean], color=style.colour, lw=1.6, alpha=0.45, solid_capstyle="butt", zorder=2)
    ax.plot(x, mean, marker=style.marker, color=style.colour, ms=size(style.marker, 4.4), mec="white", mew=0.3, ls="",
            zorder=4)  # fmt: skip
    if high > low:
        ax.plot([x, x], [low, high], color="black", lw=0.8, zorder=3)


def bar(ax: Axes, x: float, width: float, value: float, bound: str, method: str, methods: Collection[str]) -> None:
    """A bar from 1 to `value` on a logarithmic axis; a bound is pale, with a hollow triangle the way the truth lies."""
    style = look(method, methods)
    ax.bar(x, value - 1.0, width, bottom=1.0, color=style.colour, alpha=0.4 if bound else 0.95, hatch=style.hatch,
           edgecolor="white", lw=0, zorder=2)  # fmt: skip
    if bound:
        ax.plot(x, value, marker={"<": "v", ">": "^"}[bound], mfc="white", mec="black", ms=4.2, mew=0.9, zorder=5)


def fact(ax: Axes, x: float, value: float | None, size: float = 7.0) -> None:
    """What the paper reports, a short black line."""
    if value is not None:
        ax.plot(x, value, marker="_", color="black", ms=size, mew=1.6, ls="", zorder=6)


# legends and axes ----------------------------------------------------------------------------------------------------


def line_key(method: str, methods: Collection[str]) -> Line2D:
    style = look(method, methods)
    return Line2D([], [], color=style.colour, ls=style.line, marker=style.marker, ms=size(style.marker, 4.2),
                  label=style.label)  # fmt: skip


def mark_key(method: str, methods: Collection[str]) -> Line2D:
    style = look(method, methods)
    return Line2D([], [], color=style.colour, ls="", marker=style.marker, ms=size(style.marker, 5.5),
                  label=style.label)  # fmt: skip


def patch_key(method: str, methods: Collection[str]) -> Patch:
    s = look(method, methods)
    return Patch(facecolor=s.colour, alpha=0.95, hatch=s.hatch, edgecolor="white", lw=0, label=s.label)


def fact_key() -> Line2D:
    return Line2D([], [], ls="", marker="_", color="black", ms=9, mew=1.6, label=REPORTED)


def legend(fig: Figure, handles: Sequence[Any], note: str = "") -> None:
    """Above the figure, in at most four columns; the note below it."""
    fig.legend(handles=handles, loc="outside upper center", ncols=min(len(handles), 4), handlelength=3.0,
               columnspacing=1.6, borderaxespad=0.2)  # fmt: skip
    if note:
        fig.supxlabel(note, fontsize=8, color="#333333")


def percent_axis(axis: Any, bins: int = 6) -> None:
    """Fractions shown as percentages, without zeros that say nothing."""
    axis.set_major_locator(MaxNLocator(bins, steps=[1, 2, 2.5, 5, 10]))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:.6g}%"))


def first_column(ax: Axes) -> bool:
    """Whether a panel stands at the left edge of its figure."""
    place = ax.get_subplotspec()
    return place is not None and place.is_first_col()


def widen(axis: Any, least: float) -> None:
    """Let an axis span at least `least`, so that a difference that is noise does not look large."""
    low, high = axis.get_view_interval()
    lack = max(0.0, least - (high - low)) / 2
    axis.axes.set_ylim(low - lack, high + lack)


def count_axis(axis: Any, bins: int = 5) -> None:
    """Updates or tokens: few ticks, thousands as k and millions as M."""
    axis.set_major_locator(MaxNLocator(bins, steps=[1, 2, 2.5, 5, 10]))
    axis.set_major_formatter(FuncFormatter(thousands))


def thousands(value: float, _: object = None) -> str:
    return f"{value / 1e6:g}M" if value >= 1e6 else f"{value / 1e3:g}k" if value >= 1e3 else f"{value:g}"


def wrapped(setting: str) -> str:
    """A setting's name on two lines: alfworld, 0.5m."""
    return setting.replace("-", "\n", 1)


def at(frame: pd.DataFrame, key: object, column: str) -> float | None:
    """A cell of an indexed frame; None where it is not there or not known."""
    if key not in frame.index or column not in frame:
        return None
    value = frame.loc[key, column]
    return None if pd.isna(value) else float(value)
