"""A suite whose methods differ by one swept quantity: a table, a figure and a page by that quantity.

The suite names the quantity as a dotted key of its cells (`sweep: pipeline.load`); a series is a rule. A method without
the key, such as one without a cap under `method.params.cap`, stands apart as "none". Reads the report's CSVs alone.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from pydantic import BaseModel

from divopd.analysis.labels import label, look, ordered
from divopd.analysis.report import _counterparts, _load
from divopd.analysis.tables import DASH, Table
from divopd.config import RunConfig
from divopd.paper import reported
from divopd.suite import SuiteError, load_suite, read_yaml, suite_spec

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NONE = "none"
TITLES = {
    "pipeline.load": "Arrival / drain aimed at",
    "method.params.cap": "Cap k (turns a rollout)",
    "train.max_staleness": "Maximum staleness (versions)",
    "method.rule": "Rule",
}
# column: (heading, how it is written: digits after the point of a number, or of a percentage)
COLUMNS = {
    "peak": ("Peak success (%)", 1, 100.0),
    "final5_mean": ("Final-5 success (%)", 1, 100.0),
    "nauc": ("nAUC (%)", 1, 100.0),
    "tokens_to_target": ("Tokens to target (k)", 0, 1e-3),
    "load": ("Load measured", 2, 1.0),
    "effective_rollouts": ("Effective rollouts", 1, 1.0),
    "never_selected_share": ("Never selected (%)", 1, 100.0),
    "mean_age": ("Mean age (versions)", 2, 1.0),
    "stale_rows_per_update": ("Stale rows an update", 1, 1.0),
}  # fmt: skip
PANELS = ("final5_mean", "peak", "tokens_to_target", "effective_rollouts", "never_selected_share", "mean_age",
          "stale_rows_per_update", "load")  # fmt: skip
PERCENT = ("peak", "final5_mean", "final", "nauc")  # of the reported columns
# swept key: the paper's table and its columns under our names
PAPER: dict[str, tuple[str, dict[str, str]]] = {
    "pipeline.load": ("producer_load", {"reader": "method", "arrival_over_drain": "value", "final_success": "final",
                                        "nauc_150": "nauc"}),
    "method.params.cap": ("cap", {"cap": "value"}),
    "train.max_staleness": ("staleness", {"max_staleness": "value"}),
    "method.rule": ("matched_access", {}),
}  # fmt: skip
FACTS = ["peak", "final5_mean", "best5_mean", "final", "nauc", "mean_age", "stale_rows"]


def sweep(results: Path, suite: Path, figures: Path) -> list[str]:
    """Write sweep.csv, tables/sweep.{md,tex} and sweep.md into `results`, sweep.{png,pdf} into `figures`.

    Raises SuiteError where the suite sweeps nothing or a key that its cells do not have, RunLogError where `divopd
    report` has not collected its runs.
    """
    from divopd.analysis.figures import draw

    spec = suite_spec(read_yaml(suite), suite)
    if spec.sweep is None:
        raise SuiteError(f"{suite}: no key sweep: name what its methods differ by, such as `sweep: pipeline.load`")
    cells = {(c.setting, c.method.name): (c.method.rule, value_of(c, spec.sweep, suite)) for c in load_suite(suite)}
    if all(value is None for _, value in cells.values()):
        raise SuiteError(f"{suite}: sweep: no method has {spec.sweep!r}")
    summary = _load(results, "summary")
    frame = by_value(summary, _load(results, "diagnostics"), cells)
    facts = _facts(spec.sweep, _counterparts(summary))
    tables = sweep_tables(frame, facts, spec.sweep)
    frame.to_csv(results / "sweep.csv", index=False, float_format="%.10g")
    folder = results / "tables"
    folder.mkdir(exist_ok=True)
    (folder / "sweep.md").write_text("\n".join(table.markdown() for table in tables))
    (folder / "sweep.tex").write_text("\n".join(table.latex() for table in tables))
    draw({"sweep": lambda: sweep_figure(frame, facts, spec.sweep or "")}, figures)
    link = Path(os.path.relpath(figures / "sweep.png", results)).as_posix()
    page = [
        f"# {spec.description or spec.name}\n",
        *(table.markdown() for table in tables),
        f"![{spec.name}]({link})\n",
    ]
    (results / "sweep.md").write_text("\n".join(page))
    return [tables[0].markdown(), f"sweep -> {results}/sweep.{{csv,md}}, {figures}/sweep.{{png,pdf}}"]


def value_of(cell: RunConfig, key: str, suite: Path) -> Any:
    """The value of a dotted key in a cell; None where a mapping on the way lacks it. Raises SuiteError for a typo."""
    at: Any = cell
    for part in key.split("."):
        if isinstance(at, BaseModel):
            if part not in type(at).model_fields:
                have = ", ".join(type(at).model_fields)
                raise SuiteError(f"{suite}: sweep: {key!r}: no {part!r} there; valid: {have}")
            at = getattr(at, part)
        elif isinstance(at, Mapping):
            at = at.get(part)
        else:
            raise SuiteError(f"{suite}: sweep: {key!r}: {part!r} is below a plain value")
    return at


def by_value(summary: pd.DataFrame, diagnostics: pd.DataFrame, cells: dict[tuple[str, str], Any]) -> pd.DataFrame:
    """A row a (setting, rule, value), means over seeds, in the order of rules and values; `value` is text.

    `tokens_to_target` is a lower bound (`bound` ">") where a seed never got there.
    """
    keys = ["setting", "method", "seed"]
    runs = summary.merge(diagnostics[[*keys, *(c for c in diagnostics if c not in summary)]], on=keys)
    runs["stale_rows_per_update"] = runs["stale_rows"] / runs["updates"]
    runs["tokens_to_target"] = runs["cost_trained_tokens"]
    rows = []
    for (setting, method), part in runs.groupby(["setting", "method"], sort=False):
        rule, value = cells[str(setting), str(method)]
        rows.append({
            "setting": setting, "rule": rule, "value": _text(value), "method": method, "seeds": len(part),
            **{name: part[name].mean() for name in (*COLUMNS, "final5_std", "target")},
            "bound": "" if part["reached"].dropna().astype(bool).all() else ">",
            "diverged": int((part["status"] != "done").sum()),
        })  # fmt: skip
    frame = pd.DataFrame(rows)
    places = {value: i for i, value in enumerate(_ordered_values(frame["value"]))}
    rules = {rule: i for i, rule in enumerate(ordered(frame["rule"]))}
    order = frame.assign(rule=frame["rule"].map(rules), value=frame["value"].map(places))
    return frame.loc[order.sort_values(["setting", "rule", "value"], kind="stable").index].reset_index(drop=True)


def sweep_tables(frame: pd.DataFrame, facts: pd.DataFrame, key: str) -> list[Table]:
    """Ours, a row a (setting, rule, value), and what the paper reports of the same sweep."""
    shown = []
    for r in frame.to_dict("records"):
        cells = {name: _cell(r[name], digits, scale) for name, (_, digits, scale) in COLUMNS.items()}
        cells["final5_mean"] += "" if pd.isna(r["final5_std"]) else f" ± {100 * r['final5_std']:.1f}"
        cells["tokens_to_target"] = (r["bound"] if cells["tokens_to_target"] != DASH else "") + cells[
            "tokens_to_target"
        ]
        shown.append([r["setting"], label(r["rule"]), _show(r["value"]), str(r["seeds"]), *cells.values()])
    header = ["Setting", "Rule", TITLES.get(key, key), "Seeds", *(heading for heading, _, _ in COLUMNS.values())]
    targets = ", ".join(f"{s} {100 * t:.0f} %" for s, t in frame.groupby("setting")["target"].first().items() if t == t)
    notes = [
        "Means over seeds; final-5 ± standard deviation of the last five evaluations. Tokens: prompt + response of the "
        f"batches' rows through the first evaluation at the target ({targets or 'none: the baseline does not rise'}), "
        "> where a seed never got there. Load: arrival over drain of the whole run.",
    ]
    tables = [Table(f"Sweep of {key}", header, shown, frame, notes)]
    if len(facts):
        tables.append(_reported_table(facts, key))
    return tables


def _reported_table(facts: pd.DataFrame, key: str) -> Table:
    names = [name for name in FACTS if facts[name].notna().any()]
    rows = [
        [r["setting"] if isinstance(r["setting"], str) else DASH, label(r["method"]), _show(r["value"])]
        + [_cell(r[name], 0 if name == "stale_rows" else 1 if name in PERCENT else 2, 1.0) for name in names]
        for r in facts.to_dict("records")
    ]
    header = [
        "Setting",
        "Rule",
        TITLES.get(key, key),
        *(name.replace("_", " ").replace("final5 mean", "final-5") for name in names),
    ]
    return Table("Reported in arXiv 2609.34838, at its own scale", header, rows, facts)


def sweep_figure(frame: pd.DataFrame, facts: pd.DataFrame, key: str) -> Figure:
    """A panel a quantity, the swept value across, a line a rule; open diamonds are the paper's. First setting alone."""
    import matplotlib.pyplot as plt
    from matplotlib.lines import Line2D

    from divopd.analysis.figures import REPORTED

    part = frame[frame["setting"] == frame["setting"].iloc[0]]
    values, rules = _ordered_values(part["value"]), ordered(part["rule"])
    fig, axes = plt.subplots(2, 4, figsize=(12, 5.4), layout="constrained", sharex=True)
    for ax, name in zip(axes.flat, PANELS, strict=True):
        for rule in rules:
            _series(ax, part[part["rule"] == rule], name, values, rule, rules)
        for fact in facts.to_dict("records"):
            _fact(ax, fact, name, values, rules)
        ax.set_title(COLUMNS[name][0], loc="left")
        ax.set_ylim(0, 1.08 * ax.get_ylim()[1])
        ax.set_xlim(-0.4, len(values) - 0.6)
        slanted = {"rotation": 30, "ha": "right"} if not any(map(_is_number, values)) else {}
        ax.set_xticks(range(len(values)), [_show(value) for value in values], **slanted)
    for ax in axes[1]:
        ax.set_xlabel(TITLES.get(key, key))
    handles = [
        Line2D([], [], color=(s := look(r, rules)).colour, ls=s.line, marker=s.marker, label=s.label) for r in rules
    ]
    handles.append(Line2D([], [], ls="", marker="D", mfc="white", mec="black", ms=5.5, label=REPORTED))
    fig.legend(handles=handles, loc="outside upper center", ncols=4, handlelength=3.2)
    seeds = int(part["seeds"].max())
    note = "Triangles: never at the target, what was used by the end. " if (part["bound"] == ">").any() else ""
    fig.supxlabel(
        f"{note}{part['setting'].iloc[0]}, {seeds} seed{'s' if seeds > 1 else ''}", fontsize=8, color="#333333"
    )
    return fig


def _series(ax: Axes, part: pd.DataFrame, name: str, values: list[str], rule: str, rules: list[str]) -> None:
    style, scale = look(rule, rules), COLUMNS[name][2]
    there = part[part["value"] != NONE]
    x = [values.index(value) for value in there["value"]]
    ax.plot(x, scale * there[name], color=style.colour, ls=style.line, marker=style.marker, zorder=3)
    apart = part[part["value"] == NONE]
    ax.plot([len(values) - 1] * len(apart), scale * apart[name], style.marker, color=style.colour, zorder=3)
    if name == "tokens_to_target":
        beyond = part[part["bound"] == ">"]
        ax.plot([values.index(v) for v in beyond["value"]], 1.04 * scale * beyond[name], "^", mfc="white", mec="black")


def _fact(ax: Axes, fact: dict[str, Any], name: str, values: list[str], rules: list[str]) -> None:
    """The paper's value, where the panel's quantity is the paper's, in the colour of its rule, at its place."""
    theirs = {"final5_mean": fact["final5_mean"], "peak": fact["peak"], "mean_age": fact["mean_age"]}.get(name)
    if name == "final5_mean" and pd.isna(theirs):
        theirs = fact["final"]
    if theirs is None or pd.isna(theirs) or fact["method"] not in rules:
        return
    numbers = [float(value) for value in values if _is_number(value)]
    if fact["value"] in values:
        x = float(values.index(fact["value"]))
    elif _is_number(fact["value"]) and numbers and numbers[0] <= float(fact["value"]) <= numbers[-1]:
        x = float(np.interp(float(fact["value"]), numbers, np.arange(len(numbers))))
    else:
        return
    ax.plot(x, theirs, "D", mfc="white", mec=look(fact["method"], rules).colour, mew=1.4, ms=5.5, zorder=4)


def _facts(key: str, counterparts: dict[str, str]) -> pd.DataFrame:
    """The paper's rows of this sweep for the settings that ours stand for, and those without a setting."""
    if key not in PAPER:
        return pd.DataFrame(columns=["setting", "method", "value", *FACTS])
    table, names = PAPER[key]
    facts = reported(table).rename(columns=names)
    for name in ("setting", "method", *FACTS):
        if name not in facts:
            facts[name] = "vanilla" if name == "method" else np.nan
    values = facts["method"] if key == "method.rule" else facts["value"].map("{:g}".format).replace("nan", NONE)
    facts = facts.assign(value=values)
    return facts[facts["setting"].isna() | facts["setting"].isin(counterparts.values())]


def _ordered_values(values: pd.Series) -> list[str]:
    """Distinct texts: numbers by size, or rules in their usual order, and NONE last."""
    found = set(values) - {NONE}
    first = sorted(found, key=float) if all(map(_is_number, found)) else ordered(found)
    return first + [NONE] * (NONE in set(values))


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _text(value: Any) -> str:
    return NONE if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def _show(value: str) -> str:
    return value if _is_number(value) or value == NONE else label(value)


def _cell(value: float, digits: int, scale: float) -> str:
    return DASH if pd.isna(value) else f"{scale * value:.{digits}f}"
