"""What a gradient audit found: CSVs, a table, a figure and one page (docs/audit.md)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from divopd.analysis.labels import label, look, ordered
from divopd.analysis.tables import DASH, Table
from divopd.paper import reported

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from divopd.audit.measure import Audit

LABELS = {"oracle": "Largest inner product"}
AGES = (("#0072B2", "o"), ("#E69F00", "s"), ("#555555", "^"))  # versions 0, 1, 2 and more


def write(found: Audit, title: str, env: str, out: Path) -> list[str]:
    """Write audit.csv, audit_turns.csv, audit_checks.csv, audit.md, audit.png and audit.pdf; lines to print."""
    from divopd.analysis.style import draw

    out.mkdir(parents=True, exist_ok=True)
    frame = with_reported(found.rules, env)
    for name, part in (("audit", frame), ("audit_turns", found.turns), ("audit_checks", found.checks)):
        part.to_csv(out / f"{name}.csv", index=False, float_format="%.10g")
    table = audit_table(frame, found.facts, title)
    page = [table.markdown(), ranks_table(found).markdown(), checks_table(found.checks).markdown()]
    if frame["rescued"].notna().any() or "true_cosine" in frame:
        page.insert(1, signal_table(frame, found.facts).markdown())
    (out / "audit.md").write_text("\n".join([*page, "![Gradient audit](audit.png)\n"]), encoding="utf-8")
    draw({"audit": lambda: audit_figure(frame, found)}, out)
    return [table.markdown(), f"audit -> {out}/audit{{,_turns,_checks}}.csv, audit.md, audit.{{png,pdf}}"]


def with_reported(rules: pd.DataFrame, env: str) -> pd.DataFrame:
    """The rules in the order of all tables, the oracle last, with what the paper reports for this environment."""
    paper = reported("gradient_alignment")
    facts = paper[paper["env"] == env].set_index("method")[["projection", "cosine"]].add_prefix("reported_")
    place = {name: i for i, name in enumerate(ordered(rules["rule"]))} | {"oracle": len(rules)}
    first = rules.sort_values("rule", key=lambda c: c.map(place), kind="stable", ignore_index=True)
    return first.join(facts, on="rule")


def audit_table(frame: pd.DataFrame, facts: dict[str, Any], title: str) -> Table:
    """A row a rule: what its batch holds, and its gradient against the pool's."""
    rows = [
        [
            _name(r["rule"]), _f(r["batches"], 0), _f(r["rows"], 0), _f(r["dead_rows"], 1), _f(r["rollouts"], 1),
            _spread(r["projection"], r["projection_std"]), _spread(r["cosine"], r["cosine_std"], 3),
            _f(r["norm_ratio"], 2), _percent(r["dropped_turns"]), _percent(r["dropped_norm"]),
            _f(r["reported_projection"], 2), _f(r["reported_cosine"], 2),
        ]
        for r in frame.to_dict("records")
    ]  # fmt: skip
    header = ["Rule", "Batches", "Rows", "Dead rows", "Rollouts", "Projection", "Cosine", "Norm ratio", "Turns dropped",
              "Norm dropped", "Projection (reported)", "Cosine (reported)"]  # fmt: skip
    how = f"a sketch of {facts['sketch']} numbers" if facts["sketch"] else "whole"
    notes = [
        f"Pool: {facts['rows']} rows of {facts['rollouts']} rollouts, {facts['dead']} of them dead, mean age "
        f"{facts['mean_age']:.2f} versions. Gradients of {facts['parameters']:,} parameters, {how}.",
        "Projection: inner product of the batch's and the pool's mean gradient over the latter's square; a batch that "
        "is the pool has 1. The pool's mean is over live rows, a batch's over all its rows. ± standard deviation over "
        f"{facts['seeds']} draws, where a rule draws. Dropped: share of the live turns of the batch's rollouts that "
        "the batch left, by number and by squared gradient norm.",
        "Reported: arXiv 2609.34838, same environment, its own models.",
    ]
    return Table(f"Gradient audit, {title}", header, rows, frame, notes)


def signal_table(frame: pd.DataFrame, facts: dict[str, Any]) -> Table:
    """A row a rule: how near its step is to what sampled tokens estimate, and whether its turns can still be won."""
    cosines = {"true_cosine": "Cosine, whole pool", "choice_cosine": "of the choice", "noise_cosine": "of the sampling"}
    cosines = {name: title for name, title in cosines.items() if name in frame}
    pool = {"true_cosine": facts["truth_cosine"], "choice_cosine": 1.0, "noise_cosine": facts["truth_cosine"]}
    rows = [
        [name, *(_f(r[key], 3) for key in cosines), _percent(r["won"]), _percent(r["rescued"])]
        for name, r in [*((_name(r["rule"]), r) for r in frame.to_dict("records")), ("All live turns", pool | facts)]
    ]
    header = ["Rule", *cosines.values(), "From won rollouts", "Teacher wins from there"]
    notes = [
        "Cosine, whole pool: the batch's gradient with the pool's gradient of the reverse KL over the vocabulary, of "
        "which sampled tokens give an estimate. Of the choice: the same with the batch's own gradient over "
        "the vocabulary, so that only the choice of rows counts; of the sampling: the batch's gradient with its own "
        "over it. Teacher wins: it acts to the end from the state in which the turn was played. Percent.",
    ]
    return Table("Signal and lost causes", header, rows, frame, notes)


def ranks_table(found: Audit) -> Table:
    """Spearman's correlations of the cached s(u), over the pool and by age."""
    from divopd.audit.measure import spearman

    turns, facts = found.turns[found.turns["valid"]], found.facts
    rows = [["all", "recomputed", str(len(turns)), _f(facts["spearman"], 3)]]
    for age, part in turns.groupby("age"):
        rows.append([str(age), "recomputed", str(len(part)), _f(spearman(part["disagreement"], part["recomputed"]), 3)])
    rows.append(["all", "gradient norm", str(len(turns)), _f(facts["spearman_norm"], 3)])
    rows.append(["all", "inner product with the pool's", str(len(turns)), _f(facts["spearman_along"], 3)])
    if turns["rescued"].notna().any():
        rows.append(["all", "teacher wins from there", str(len(turns)), _f(facts["spearman_rescued"], 3)])
    header = ["Age (versions)", "Cached s(u) against", "Turns", "Spearman"]
    return Table("Ranks of the cached s(u)", header, rows, pd.DataFrame(rows, columns=header))


def checks_table(checks: pd.DataFrame) -> Table:
    """Identities that hold for any full batch; of the covariance the rule where it holds least."""
    worst = checks.sort_values("distance", ascending=False, kind="stable").drop_duplicates("identity").sort_index()
    counts = checks["identity"].value_counts()
    rows = [
        [
            r["identity"],
            _name(r["rule"]) if counts[r["identity"]] == 1 else f"largest of {counts[r['identity']]} rules",
            f"{r['distance']:.1e}",
            f"{r['expected']:.1e}" if r["expected"] else "rounding",
        ]
        for r in worst.to_dict("records")
    ]
    header = ["Identity", "Rule", "Distance", "Expected"]
    notes = [
        "Distance between the two sides over the length of the longer. Covariance: with the inclusion shares of the "
        "draws; base: mean over draws against its expectation, to which it tends."
    ]
    return Table("Identities (METHOD of arXiv 2609.34838, batch composition)", header, rows, checks, notes)


def audit_figure(frame: pd.DataFrame, found: Audit) -> Figure:
    """Projection and cosine by rule beside the paper's, and the cached against the recomputed s(u)."""
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    from divopd.analysis.style import REPORTED

    size = (10.5, 1.6 + 0.3 * len(frame))
    fig = Figure(figsize=size, layout="constrained")
    axes = fig.subplots(1, 3, width_ratios=(1, 1, 1.05))
    _dots(axes[0], frame, "projection")
    axes[0].axvline(1, color="black", lw=0.8, ls=(0, (2, 2)))
    axes[0].set_xlabel("Projection (pool gradient = 1)")
    axes[0].set_yticks(range(len(frame)), [_name(rule) for rule in frame["rule"]])
    _dots(axes[1], frame, "cosine")
    axes[1].set_xlabel("Cosine with the pool gradient")
    axes[1].set_yticks(range(len(frame)), [])
    _scatter(axes[2], found)
    mine = Line2D([], [], ls="", marker="o", color="black", ms=5, label="this pool, ± standard deviation over draws")
    theirs = Line2D([], [], ls="", marker="D", mfc="white", mec="black", ms=4.5, label=REPORTED)
    fig.legend(handles=[mine, theirs], loc="outside upper left", ncols=2)
    return fig


def _dots(ax: Axes, frame: pd.DataFrame, column: str) -> None:
    rules = list(frame["rule"])
    for y, row in enumerate(frame.to_dict("records")):
        style = look(row["rule"], rules)
        ax.errorbar(row[column], y, xerr=row[f"{column}_std"], color=style.colour, marker=style.marker, ms=6, zorder=3)
        fact = row[f"reported_{column}"]
        if np.isfinite(fact):
            ax.plot(fact, y, "D", mfc="none", mec="black", ms=4.5, zorder=4)
    ax.set_ylim(len(frame) - 0.5, -0.5)
    ax.set_xlim(left=min(0.0, ax.get_xlim()[0]))


def _scatter(ax: Axes, found: Audit) -> None:
    turns = found.turns[found.turns["valid"]]
    for age, (colour, marker) in enumerate(AGES):
        last = age == len(AGES) - 1
        part = turns[turns["age"] >= age] if last else turns[turns["age"] == age]
        name = f"age {age}{' and more' if last and turns['age'].max() > age else ''}"
        if len(part):
            ax.plot(part["disagreement"], part["recomputed"], marker, ms=3.5, mfc="none", mec=colour, label=name)
    low, high = turns[["disagreement", "recomputed"]].min().min(), turns[["disagreement", "recomputed"]].max().max()
    ax.plot([low, high], [low, high], color="black", lw=0.8, ls=(0, (2, 2)), zorder=1)
    ax.set_xlabel("Cached s(u) (nats)")
    ax.set_ylabel("s(u) under the checkpoint (nats)")
    ax.set_title(f"Spearman {found.facts['spearman']:.3f}", loc="left")
    ax.legend(loc="upper left", handletextpad=0.2)


def _name(rule: str) -> str:
    return LABELS.get(rule) or label(rule)


def _f(value: float, digits: int) -> str:
    return DASH if pd.isna(value) else f"{value:.{digits}f}"


def _spread(value: float, deviation: float, digits: int = 2) -> str:
    return f"{value:.{digits}f} ± {deviation:.{digits}f}" if deviation > 1e-9 else _f(value, digits)


def _percent(value: float) -> str:
    return DASH if pd.isna(value) else f"{100 * value:.1f}"
