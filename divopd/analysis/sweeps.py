"""A suite whose methods differ by one swept quantity: a table, a figure and a page by that quantity.

The suite names the quantity as a dotted key of its cells (`sweep: pipeline.load`); a series is a rule. A method without
the key, such as one without a cap under `method.params.cap`, stands apart as "none". Reads the report's CSVs alone.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
from pydantic import BaseModel

from divopd.analysis.compare import over_seeds
from divopd.analysis.figures_sweep import TITLES, ordered_values, show, sweep_figure
from divopd.analysis.labels import arrivals, label, ordered
from divopd.analysis.metrics import LAST
from divopd.analysis.report import _counterparts, _load
from divopd.analysis.runs import ARRIVALS
from divopd.analysis.style import draw
from divopd.analysis.table import DASH, Table, few, few_note, fewest, interval
from divopd.analysis.tables_controls import FACTS, NONE, PERCENT, sweep_facts
from divopd.analysis.uncertainty import Interval
from divopd.config import RunConfig
from divopd.runlog import RunLogError
from divopd.suite import SuiteError, load_suite, read_yaml, suite_spec

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
ALSO = ("best5_mean", "final", "stale_rows")  # in the CSV, for the suite's own tables
MEASURED = ("peak", "final5_mean", "nauc")  # of COLUMNS, with an interval over seeds


def sweep(results: Path, suite: Path, figures: Path) -> list[str]:
    """Write sweep.csv, tables/sweep.{md,tex} and sweep.md into `results`, sweep.{png,pdf} into `figures`.

    Raises SuiteError where the suite sweeps nothing or a key that its cells do not have, RunLogError where `divopd
    report` has not collected its runs.
    """
    spec = suite_spec(read_yaml(suite), suite)
    if spec.sweep is None:
        raise SuiteError(f"{suite}: no key sweep: name what its methods differ by, such as `sweep: pipeline.load`")
    cells = {(c.setting, c.method.name): (c.method.rule, value_of(c, spec.sweep, suite)) for c in load_suite(suite)}
    if all(value is None for _, value in cells.values()):
        raise SuiteError(f"{suite}: sweep: no method has {spec.sweep!r}")
    frame = by_value(_load(results, "summary"), _load(results, "diagnostics"), cells)
    frame.insert(0, "key", spec.sweep)
    frame.to_csv(results / "sweep.csv", index=False, float_format="%.10g")
    tables = draw_again(results, figures)
    return [tables[0].markdown(), f"sweep -> {results}/sweep.{{csv,md}}, {figures}/sweep.{{png,pdf}}"]


def draw_again(results: Path, figures: Path) -> list[Table]:
    """Tables, figure and page of a sweep, from sweep.csv alone. Raises RunLogError where that cannot be read."""
    frame = _load(results, "sweep", "sweep ...", dtype={"value": str, "bound": str}).fillna({"bound": ""})
    if "key" not in frame:
        raise RunLogError(f"{results / 'sweep.csv'} does not name its key; run `divopd sweep` again")
    key, counterparts = str(frame["key"].iloc[0]), _counterparts(frame)
    facts = sweep_facts(key, counterparts)
    tables = sweep_tables(frame, facts, key)
    folder = results / "tables"
    folder.mkdir(exist_ok=True)
    (folder / "sweep.md").write_text("\n".join(table.markdown() for table in tables), encoding="utf-8")
    (folder / "sweep.tex").write_text("\n".join(table.latex() for table in tables), encoding="utf-8")
    draw({"sweep": lambda: sweep_figure(frame, facts, key, counterparts)}, figures)
    link = Path(os.path.relpath(figures / "sweep.png", results)).as_posix()
    page = [f"# {TITLES.get(key, key)}\n", *(table.markdown() for table in tables), f"![sweep of {key}]({link})\n"]
    (results / "sweep.md").write_text("\n".join(page), encoding="utf-8")
    return tables


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
    merged = summary.merge(diagnostics[[*keys, *(c for c in diagnostics if c not in summary)]], on=keys)
    runs = merged.copy().assign(  # a copy is in one piece, of which pandas does not warn
        stale_rows_per_update=merged["stale_rows"] / merged["updates"], tokens_to_target=merged["cost_trained_tokens"]
    )
    rows = []
    for (setting, method), part in runs.groupby(["setting", "method"], sort=False):
        rule, value = cells[str(setting), str(method)]
        rows.append({
            "setting": setting, "rule": rule, "value": _text(value), "method": method, "seeds": len(part),
            **{name: part[name].mean() for name in (*COLUMNS, *ALSO, "final5_std", "target")},
            "final5_count": fewest(part),
            **{f"{name}_{side}": getattr(spread, side) for name in (*MEASURED, *ALSO)
               for spread in [over_seeds(part[name])] for side in ("low", "high")},
            **{name: part[name].iloc[0] for name in ARRIVALS if name in part},
            "bound": "" if part["reached"].dropna().astype(bool).all() else ">",
            "diverged": int((part["status"] != "done").sum()),
        })  # fmt: skip
    frame = pd.DataFrame(rows)
    places = {value: i for i, value in enumerate(ordered_values(frame["value"]))}
    rules = {rule: i for i, rule in enumerate(ordered(frame["rule"]))}
    order = frame.assign(rule=frame["rule"].map(rules), value=frame["value"].map(places))
    return frame.loc[order.sort_values(["setting", "rule", "value"], kind="stable").index].reset_index(drop=True)


def sweep_tables(frame: pd.DataFrame, facts: pd.DataFrame, key: str) -> list[Table]:
    """Ours, a row a (setting, rule, value), and what the paper reports of the same sweep."""
    shown = []
    for r in frame.to_dict("records"):
        cells = {name: _cell(r[name], digits, scale) for name, (_, digits, scale) in COLUMNS.items()}
        cells |= {name: interval(Interval(r[name], r[f"{name}_low"], r[f"{name}_high"]), 100) for name in MEASURED}
        if pd.isna(r["final5_mean_low"]) and pd.notna(r["final5_std"]):
            cells["final5_mean"] += f" ± {100 * r['final5_std']:.1f}"
        cells["final5_mean"] += few(int(r.get("final5_count", LAST)))
        cells["tokens_to_target"] = (r["bound"] if cells["tokens_to_target"] != DASH else "") + cells[
            "tokens_to_target"
        ]
        shown.append([r["setting"], label(r["rule"]), show(r["value"]), str(r["seeds"]), *cells.values()])
    header = ["Setting", "Rule", TITLES.get(key, key), "Seeds", *(heading for heading, _, _ in COLUMNS.values())]
    targets = ", ".join(f"{s} {100 * t:.0f} %" for s, t in frame.groupby("setting")["target"].first().items() if t == t)
    notes = [
        "Means over seeds, with 95 % t intervals where there are several; final-5 of one seed ± standard deviation of "
        "the last five evaluations after training began. Tokens: prompt + response of the "
        f"batches' rows through the first evaluation at the target ({targets or 'none: the baseline does not rise'}), "
        "> where a seed never got there. Load: arrival over drain of the whole run.",
    ]
    notes += [*few_note(frame), *arrivals(frame)]
    tables = [Table(f"Sweep of {key}", header, shown, frame, notes)]
    if len(facts):
        tables.append(_reported_table(facts, key))
    return tables


def _reported_table(facts: pd.DataFrame, key: str) -> Table:
    names = [name for name in FACTS if facts[name].notna().any()]
    rows = [
        [r["setting"] if isinstance(r["setting"], str) else DASH, label(r["method"]), show(r["value"])]
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


def _text(value: Any) -> str:
    return NONE if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def _cell(value: float, digits: int, scale: float) -> str:
    return DASH if pd.isna(value) else f"{scale * value:.{digits}f}"
