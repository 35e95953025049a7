"""A titled table of texts with the numbers behind it, as Markdown, LaTeX and CSV; how numbers are written in one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd

from divopd.analysis import metrics
from divopd.analysis.labels import ordered
from divopd.analysis.uncertainty import Interval
from divopd.paper import SOURCE

DASH = "–"
FEW = (
    "(of n): fewer than five evaluations were made after training began, n of them in the run with the fewest; the "
    "untrained student's never counts."
)
REPORTED = f"Reported: {SOURCE}, at its own scale: other models, other games, one run a cell."


@dataclass
class Table:
    """A titled table of texts. `frame` holds the numbers behind it, unrounded."""

    title: str
    header: list[str]
    rows: list[list[str]]
    frame: pd.DataFrame
    notes: list[str] = field(default_factory=list)

    def markdown(self) -> str:
        cells = [self.header, *self.rows]
        widths = [max(len(row[j]) for row in cells) for j in range(len(self.header))]

        def line(row: list[str]) -> str:
            padded = [c.ljust(w) if j < 2 else c.rjust(w) for j, (c, w) in enumerate(zip(row, widths, strict=True))]
            return f"| {' | '.join(padded)} |"

        rule = "|" + "|".join("-" * (w + 2) if j < 2 else "-" * (w + 1) + ":" for j, w in enumerate(widths)) + "|"
        notes = "".join(f"\n{note}\n" for note in self.notes)
        return f"**{self.title}**\n\n" + "\n".join([line(self.header), rule, *map(line, self.rows)]) + "\n" + notes

    def latex(self) -> str:
        """A booktabs tabular, with a rule between settings and the notes as comments."""
        lines, previous = [], None
        for row in self.rows:
            if previous is not None and row[0] != previous:
                lines.append(r"\midrule")
            shown = ["" if row[0] == previous else row[0], *row[1:]]
            lines.append(" & ".join(map(_tex, shown)) + r" \\")
            previous = row[0]
        head = " & ".join(map(_tex, self.header)) + r" \\"
        notes = [f"% {note}" for note in self.notes]
        columns = "ll" + "r" * (len(self.header) - 2)
        body = [f"% {self.title}; needs the booktabs package", rf"\begin{{tabular}}{{{columns}}}", r"\toprule", head]
        return "\n".join([*body, r"\midrule", *lines, r"\bottomrule", r"\end{tabular}", *notes]) + "\n"

    def write(self, folder: Path, name: str) -> None:
        """Write <name>.md, .tex and .csv into the folder."""
        (folder / f"{name}.md").write_text(self.markdown(), encoding="utf-8")
        (folder / f"{name}.tex").write_text(self.latex(), encoding="utf-8")
        # a frame without rows made of records has no columns either, and no reader takes a file without a header
        frame = self.frame if len(self.frame.columns) else pd.DataFrame(columns=self.header)
        frame.to_csv(folder / f"{name}.csv", index=False, float_format="%.10g")


def cells(frame: pd.DataFrame) -> Iterator[tuple[str, str, pd.DataFrame]]:
    """(setting, method, its runs): settings as they come, methods in their usual order."""
    for setting in frame["setting"].unique():
        part = frame[frame["setting"] == setting]
        for method in ordered(part["method"]):
            yield str(setting), method, part[part["method"] == method]


def facts_of(paper: pd.DataFrame, key: object) -> dict[str, float]:
    """The paper's numbers under a key of its index; empty if it has none."""
    return paper.loc[key].dropna().to_dict() if key in paper.index else {}


def number(value: float | None, digits: int = 1, unit: str = "") -> str:
    return DASH if value is None or pd.isna(value) else f"{value:.{digits}f}{unit}"


def percent(value: float | None, digits: int = 1) -> str:
    """A fraction in percent, without the sign."""
    return DASH if value is None or pd.isna(value) else f"{100 * value:.{digits}f}"


def mean_std(mean: float | None, std: float | None) -> str:
    return DASH if mean is None or pd.isna(mean) else f"{mean:.1f} ± {number(std)}"


def interval(value: Interval | None, scale: float = 1.0, digits: int = 1, unit: str = "", sign: bool = False) -> str:
    """A value, with its 95 % interval in brackets where there is one; `sign`: with a plus where it is above 0."""
    if value is None or pd.isna(value.value):
        return DASH
    form = f"{'+' if sign else ''}.{digits}f"
    text = f"{scale * value.value:{form}}{unit}"
    return f"{text} [{scale * value.low:{form}}, {scale * value.high:{form}}]" if value.known else text


def fewest(runs: pd.DataFrame) -> int:
    """The smallest number of evaluations that a final-5 of these runs is a mean of; five where nothing is said."""
    return int(runs["final5_count"].min()) if "final5_count" in runs and len(runs) else metrics.LAST


def few(count: int) -> str:
    """ " (of 4)" behind a final-5 for which only so many evaluations were made after training began; "" for five."""
    return f" (of {count})" if count < metrics.LAST else ""


def few_settings(summary: pd.DataFrame) -> str:
    """ "a 4, b 2": settings in which some run's final-5 has fewer than five evaluations; "" where none has."""
    counts = {setting: fewest(runs) for setting, runs in summary.groupby("setting", sort=False)}
    return ", ".join(f"{setting} {count}" for setting, count in counts.items() if count < metrics.LAST)


def few_note(runs: pd.DataFrame) -> list[str]:
    """The note that a table of these runs needs."""
    return [FEW] if fewest(runs) < metrics.LAST else []


def times(gain: metrics.Speedup, spread: Interval | None = None) -> str:
    """A speedup, with its interval over seeds if it is exact; a dash with its bound where a side missed the target."""
    if gain.value is None:
        return DASH
    if gain.bound:
        return f"{DASH} ({gain.bound}{gain.value:.2f}×)"
    return interval(spread, digits=2, unit="×") if spread is not None else f"{gain.value:.2f}×"


def reach(runs: pd.DataFrame, column: str = "reached") -> list[bool]:
    """Whether each run that has a target reached it."""
    return [bool(reached) for reached in runs[column].dropna()]


def fraction(flags: Sequence[bool]) -> str:
    return f"{sum(flags)}/{len(flags)}" if flags else DASH


_TEX = str.maketrans({
    "%": r"\%", "_": r"\_", "&": r"\&", "#": r"\#", "±": r"$\pm$", "×": r"$\times$", "<": "$<$", ">": "$>$",
    "†": r"\dag{}", "–": "--", "∞": r"$\infty$", "τ": r"$\tau$", "−": "--",
})  # fmt: skip


def _tex(text: str) -> str:
    return text.translate(_TEX)
