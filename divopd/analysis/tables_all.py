"""All tables of a suite, from its CSVs alone; those whose runs are absent are left out, with what they need."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import pandas as pd

from divopd.analysis import tables, tables_controls, tables_costs, tables_use
from divopd.analysis.scores import scores_table
from divopd.analysis.table import Table
from divopd.analysis.tables_controls import SWEEPS, NoRunsError

# in the page's order
ALWAYS = ("main", "aggregate", "full", "speedups", "scores", "diagnostics", "utilisation", "teacher_tokens")
TABLES = (*ALWAYS, "cap_control", "matched_access", *(f"sweep_{name}" for name in SWEEPS))
LEFT_OUT = "left_out.md"  # beside the tables: which are missing, and what they need


def write_tables(
    load: Callable[[str], pd.DataFrame],
    counterparts: dict[str, str],
    starts: Mapping[str, Mapping[str, float]],
    results: Path,
) -> tuple[dict[str, Table], dict[str, str]]:
    """Write results/tables/<name>.{md,tex,csv}: the tables made, and name -> what a table left out needs.

    `load(name)` reads one of the report's CSVs. Sweeps are suites of their own: their CSVs lie in folders beside
    `results`. Files of a table that is left out now are removed: they show other runs.
    """
    summary, diagnostics = load("summary"), load("diagnostics")
    makers: dict[str, Callable[[], Table]] = {
        "main": lambda: tables.main_table(summary, counterparts, starts),
        "aggregate": lambda: tables.aggregate_table(summary, counterparts),
        "full": lambda: tables_costs.full_table(summary, load("timings"), counterparts),
        "speedups": lambda: tables_costs.speedups_table(summary, counterparts),
        "scores": lambda: scores_table(summary),
        "diagnostics": lambda: tables.diagnostics_table(diagnostics, counterparts),
        "utilisation": lambda: tables_use.utilisation_table(diagnostics),
        "teacher_tokens": lambda: tables_use.teacher_tokens_table(diagnostics, counterparts),
        "cap_control": lambda: tables_controls.cap_control_table(summary, counterparts),
        "matched_access": lambda: tables_controls.matched_access_table(summary, counterparts),
        **{f"sweep_{name}": partial(sweep, name, results, counterparts) for name in SWEEPS},
    }
    folder = results / "tables"
    folder.mkdir(exist_ok=True)
    made, left_out = {}, {}
    for name in TABLES:
        try:
            made[name] = makers[name]()
            made[name].write(folder, name)
        except NoRunsError as needs:
            left_out[name] = str(needs)
            for kind in ("md", "tex", "csv"):
                (folder / f"{name}.{kind}").unlink(missing_ok=True)
    lines = [f"- {name.replace('_', ' ')}: needs {needs}" for name, needs in left_out.items()]
    (folder / LEFT_OUT).write_text("\n".join(["Tables left out:\n", *lines]) + "\n" if lines else "", encoding="utf-8")
    return made, left_out


def sweep(name: str, results: Path, counterparts: Mapping[str, str]) -> Table:
    """A sweep's table from the CSV that `divopd sweep` wrote into the folder beside this suite's."""
    path = sweep_csv(name, results)
    if not path.exists():
        raise NoRunsError(tables_controls.sweep_needed(name, path.parent))
    frame = pd.read_csv(path)
    if "key" not in frame or frame["key"].iloc[0] != SWEEPS[name][2]:  # of an older experiments/sweeps/<name>.yaml
        raise NoRunsError(f"{path} does not sweep {SWEEPS[name][2]}; {tables_controls.sweep_needed(name, path.parent)}")
    return tables_controls.sweep_table(name, frame, tables_controls.sweep_facts(SWEEPS[name][2], counterparts))


def sweep_csv(name: str, results: Path) -> Path:
    """results/<suite> -> results/sweep-<name>/sweep.csv; committed suites, named -reference, have committed sweeps."""
    kept = "-reference" if results.resolve().name.endswith("-reference") else ""
    return results.parent / f"sweep-{SWEEPS[name][1]}{kept}" / "sweep.csv"
