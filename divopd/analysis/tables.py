"""The suite's tables, from summary and diagnostics CSVs: Markdown and LaTeX to read, CSV with every digit.

Beside ours stand the numbers that the paper reports (arXiv 2609.34838), marked "reported": other models, other games,
one run a cell. They are for orientation, not for comparison digit by digit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from divopd.analysis import metrics
from divopd.analysis.labels import label, ordered
from divopd.analysis.uncertainty import improvement_probability, iqm_by_method, paired_bootstrap
from divopd.paper import reported
from divopd.seeds import rng

DASH = "–"
SPEEDUPS = {"trained_tokens": "Token speedup", "learner_seconds": "Learner-time speedup"}


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


def main_table(
    summary: pd.DataFrame, counterparts: dict[str, str], starts: Mapping[str, Mapping[str, float]] | None = None
) -> Table:
    """Peak, final-5, nAUC and speedups, a row a (setting, method), means over seeds, beside what the paper reports.

    `counterparts`: setting -> the paper's setting that stands beside it; `starts`: setting -> SettingSpec.reported of
    that one.
    """
    paper = reported("main_results").set_index(["setting", "method"])
    rows: list[list[str]] = []
    numbers: list[dict[str, Any]] = []
    for setting, method, runs in _cells(summary):
        gains = {name: _gain(runs, name) for name in SPEEDUPS}
        facts = _reported(paper, counterparts.get(setting, setting), method)
        start, teacher = (
            (starts or {}).get(setting, {}).get(f"{who}_success") for who in ("student_initial", "teacher")
        )
        n: dict[str, Any] = (
            {"setting": setting, "method": method, "seeds": len(runs)}
            | {name: runs[name].mean() for name in ("start", "peak", "final5_mean", "final5_std", "nauc", "target")}
            | {f"speedup_{name}": gain.value for name, gain in gains.items()}
            | {f"bound_{name}": gain.bound for name, gain in gains.items()}
            | {"reached": _reached(runs), "diverged": int((runs["status"] != "done").sum())}
            | {"reported_start": start, "reported_teacher": teacher}
            | {f"reported_{name}": facts.get(name) for name in paper.columns}
        )
        numbers.append(n)
        mark = "†" if n["diverged"] else ""
        rows.append([
            setting, label(method) + mark, str(n["seeds"]), _percent(n["start"]), _percent(n["peak"]),
            _mean_std(100 * n["final5_mean"], 100 * n["final5_std"]), _percent(n["nauc"]), _percent(n["target"], 0),
            *(_times(gains[name]) for name in SPEEDUPS), _fraction(runs),
            _number(start), _number(teacher), _number(facts.get("peak")),
            _mean_std(facts.get("final5_mean"), facts.get("final5_std")),
            _number(facts.get("token_speedup"), 2, "×"), _number(facts.get("gpu_speedup"), 2, "×"),
        ])  # fmt: skip
    header = ["Setting", "Method", "Seeds", "Start", "Peak", "Final-5", "nAUC", "Target", *SPEEDUPS.values(), "Reached"]
    header += ["Start (reported)", "Teacher (reported)", "Peak (reported)", "Final-5 (reported)"]
    header += ["Token speedup (reported)", "GPU speedup (reported)"]
    notes = [
        "Success in percent. Final-5: mean ± standard deviation of the last five evaluations, averaged over seeds. "
        "Speedup: baseline's cost over the method's, through the first evaluation at the target, geometric mean over "
        "seeds; < where some seed of the method never got there and counts with the bound of its whole cost, > where "
        f"one of the baseline did not, {DASH} where nothing can be said. Reached: seeds at the target.",
        "Reported: arXiv 2609.34838, at its own scale; one run a cell. Teacher: its success there; ours is not logged.",
    ]
    if any(n["diverged"] for n in numbers):
        notes.append("† Holds diverged runs, which count as success 0 after their last evaluation in nAUC.")
    return Table("Success and speedup", header, rows, pd.DataFrame(numbers), notes)


def aggregate_table(summary: pd.DataFrame, counterparts: dict[str, str]) -> Table:
    """Over settings, a row a method: geometric-mean speedups, reach rate, IQM of final-5, chance of improvement.

    Each method over the settings that have it and its baseline; how many entered stands beside.
    """
    paper = reported("main_results")
    paper = paper[paper["setting"].isin([counterparts.get(s, s) for s in summary["setting"].unique()])]
    baseline, total = str(summary["baseline"].iloc[0]), summary["setting"].nunique()
    with_baseline = summary.loc[summary["method"] == baseline, "setting"].unique()
    rows, numbers = [], []
    for method in ordered(summary["method"]):
        runs = summary[(summary["method"] == method) & summary["setting"].isin(with_baseline)]
        gains = {name: [_gain(part, name) for _, part in runs.groupby("setting")] for name in SPEEDUPS}
        known = {name: [gain for gain in gains[name] if gain.value is not None] for name in SPEEDUPS}
        means = {name: metrics.combine(known[name]) for name in SPEEDUPS}
        facts = paper[paper["method"] == method]
        theirs = {c: metrics.geometric_mean(facts[c].dropna()) for c in ("token_speedup", "gpu_speedup")}
        scores = _paired(runs, summary, baseline)
        stat = _intervals(scores, method, baseline) if scores else {}
        settings, at_target = len(scores), len(known["trained_tokens"])
        numbers.append(
            {"method": method, "settings": settings, "speedup_settings": at_target, "all_settings": total}
            | {f"speedup_{name}": mean.value for name, mean in means.items()}
            | {f"bound_{name}": mean.bound for name, mean in means.items()}
            | {"reached": _reached(runs), **stat, **{f"reported_{k}": v for k, v in theirs.items()}}
        )
        rows.append([
            label(method), f"{at_target}/{total}", *(_times(means[name]) for name in SPEEDUPS), _rate(runs),
            f"{settings}/{total}", _interval(stat, "iqm", 100, 1), _interval(stat, "better", 1, 2),
            *(_number(theirs[name], 2, "×") for name in theirs),
        ])  # fmt: skip
    header = ["Method", "Settings at target", *(f"{name}, geometric mean" for name in SPEEDUPS.values()), "Reach rate"]
    header += ["Settings", "Final-5, IQM", "P(better than baseline)"]
    header += ["Token speedup (reported)", "GPU speedup (reported)"]
    return Table("Over settings", header, rows, pd.DataFrame(numbers), [_AGGREGATE_NOTE])


_AGGREGATE_NOTE = (
    "Settings: those that have the method and its baseline, of all; at target: those of them whose speedup is known or "
    f"bounded, which enter the geometric mean; a bound among them makes it a bound (<, >), bounds of both kinds leave "
    f"{DASH}. Brackets: 95 % bootstrap interval over seeds, paired with the baseline's and stratified by setting; "
    "without brackets there is one seed a setting, and nothing is known about seeds."
)


def diagnostics_table(diagnostics: pd.DataFrame, counterparts: dict[str, str]) -> Table:
    """Batch composition and use of what arrived, a row a (setting, method), means over seeds."""
    paper = reported("batch_diagnostics").set_index(["setting", "method"])
    columns: dict[str, tuple[str, Callable[[Any], str]]] = {
        "effective_rollouts": ("Effective rollouts", _number),
        "top_rollout_token_share": ("Top rollout's tokens", _percent),
        "turns_per_rollout": ("Turns a rollout", _number),
        "dead_row_share": ("Dead rows", _percent),
        "kl_per_token": ("KL a token (nats)", lambda v: _number(v, 3)),
        "never_selected_share": ("Never selected", _percent),
        "selected_gini": ("Gini", lambda v: _number(v, 2)),
        "mean_age": ("Age (versions)", lambda v: _number(v, 2)),
        "load": ("Load", lambda v: _number(v, 2)),
        "stale_rows": ("Stale rows", lambda v: _number(v, 0)),
        "teacher_tokens_scored_over_trained": ("Scored / trained", lambda v: _number(v, 2)),
    }
    rows, numbers = [], []
    for setting, method, runs in _cells(diagnostics):
        facts = _reported(paper, counterparts.get(setting, setting), method)
        n = {name: runs[name].mean() for name in columns}
        theirs = {f"reported_{name}": facts.get(name) for name in paper.columns}
        numbers.append({"setting": setting, "method": method, "seeds": len(runs), **n, **theirs})
        shown = [show(n[name]) for name, (_, show) in columns.items()]
        rows.append([setting, label(method), *shown, *(columns[name][1](facts.get(name)) for name in paper.columns)])
    header = ["Setting", "Method", *(title for title, _ in columns.values())]
    header += [f"{columns[name][0]} (reported)" for name in paper.columns]
    notes = [
        "Means over updates, then seeds. Never selected: share of rollouts with a valid turn of which none was "
        "trained. Load: arrival over drain rate of turns. Scored / trained: teacher tokens over trained ones.",
        "Reported: arXiv 2609.34838, at its own scale.",
    ]
    return Table("Batches, and what became of the turns", header, rows, pd.DataFrame(numbers), notes)


def _cells(frame: pd.DataFrame) -> list[tuple[str, str, pd.DataFrame]]:
    out = []
    for setting in frame["setting"].unique():
        part = frame[frame["setting"] == setting]
        out += [(setting, method, part[part["method"] == method]) for method in ordered(part["method"])]
    return out


def _reported(paper: pd.DataFrame, setting: str, method: str) -> dict[str, float]:
    return paper.loc[(setting, method)].dropna().to_dict() if (setting, method) in paper.index else {}


def _gain(runs: pd.DataFrame, resource: str) -> metrics.Speedup:
    """One cell's speedup over its seeds."""
    values = runs[f"speedup_{resource}"].astype(float)
    bounds = runs[f"bound_{resource}"].astype("string").fillna("")
    pairs = zip(values, bounds, strict=True)
    return metrics.combine(metrics.Speedup(None if math.isnan(value) else value, bound) for value, bound in pairs)


def _reach(runs: pd.DataFrame) -> list[bool]:
    return [bool(reached) for reached in runs["reached"].dropna()]


def _reached(runs: pd.DataFrame) -> float:
    return metrics.reach_rate(_reach(runs))


def _fraction(runs: pd.DataFrame) -> str:
    known = _reach(runs)
    return f"{sum(known)}/{len(known)}" if known else DASH


def _rate(runs: pd.DataFrame) -> str:
    return f"{100 * _reached(runs):.0f} % ({_fraction(runs)})" if _reach(runs) else DASH


def _paired(runs: pd.DataFrame, summary: pd.DataFrame, baseline: str) -> dict[str, np.ndarray]:
    """Setting -> (seeds, 2) final-5 of baseline and method, over the seeds that both have."""
    base = summary[summary["method"] == baseline].set_index(["setting", "seed"])["final5_mean"]
    scores = {}
    for setting, part in runs.groupby("setting", sort=False):
        mine = part.set_index(["setting", "seed"])["final5_mean"]
        wide = pd.concat([base, mine], axis=1, join="inner").dropna()
        if len(wide):
            scores[str(setting)] = wide.to_numpy()
    return scores


def _intervals(scores: dict[str, np.ndarray], method: str, baseline: str) -> dict[str, float]:
    """IQM of the method, and its chance of improvement on the baseline, with intervals where there are seeds."""
    several = max(len(array) for array in scores.values()) > 1
    statistics = {"iqm": iqm_by_method}
    if method != baseline:
        statistics["better"] = improvement_probability
    out: dict[str, float] = {}
    for name, statistic in statistics.items():
        # the same stream for every method: those with the same seeds are resampled alike
        point, low, high = paired_bootstrap(scores, statistic, rng("report", "bootstrap", name))
        out[name] = float(point[1])
        if several:
            out |= {f"{name}_low": float(low[1]), f"{name}_high": float(high[1])}
    return out


def _interval(stat: dict[str, float], name: str, scale: float, digits: int) -> str:
    if name not in stat:
        return DASH
    text = f"{scale * stat[name]:.{digits}f}"
    if f"{name}_low" not in stat:
        return text
    return f"{text} [{scale * stat[f'{name}_low']:.{digits}f}, {scale * stat[f'{name}_high']:.{digits}f}]"


def _number(value: float | None, digits: int = 1, unit: str = "") -> str:
    return DASH if value is None or pd.isna(value) else f"{value:.{digits}f}{unit}"


def _percent(value: float | None, digits: int = 1) -> str:
    return DASH if value is None or pd.isna(value) else f"{100 * value:.{digits}f}"


def _mean_std(mean: float | None, std: float | None) -> str:
    return DASH if mean is None or pd.isna(mean) else f"{mean:.1f} ± {_number(std)}"


def _times(gain: metrics.Speedup) -> str:
    return DASH if gain.value is None else f"{gain.bound}{gain.value:.2f}×"


_TEX = str.maketrans({
    "%": r"\%", "_": r"\_", "&": r"\&", "#": r"\#", "±": r"$\pm$", "×": r"$\times$", "<": "$<$", ">": "$>$",
    "†": r"\dag{}", "–": "--", "∞": r"$\infty$",
})  # fmt: skip


def _tex(text: str) -> str:
    return text.translate(_TEX)
