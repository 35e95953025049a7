"""`divopd report`: collect -> tables -> figures -> one page. Every stage after the first reads the CSVs alone."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from divopd.analysis import collect, turns
from divopd.analysis.runs import Run, check_comparable, find_runs, load_run
from divopd.analysis.tables_all import LEFT_OUT, TABLES, sweep_csv, write_tables
from divopd.analysis.tables_controls import SWEEPS
from divopd.provenance import ROOT
from divopd.runlog import STAGES, RunLogError, read_json
from divopd.suite import SettingSpec, SuiteError, expand, read_setting, read_yaml, suite_spec

CSVS = ("curves", "summary", "diagnostics", "speedups", "timings", "depth", "disagreement")
# in the page's order; one whose runs are absent is left out, the first two never
FIGURES = ("learning_curves", "batch_diagnostics", "efficiency", "speedup_by_target", "variant_chain", "disagreement",
           "focus", "selected_depth", "recovery_tradeoff", "takeovers_over_training")  # fmt: skip


# CSVs of which each run makes its own rows
PER_RUN: dict[str, Callable[[Run], pd.DataFrame]] = {
    "curves": collect.curve,
    "diagnostics": lambda run: pd.DataFrame([collect.diagnostics(run)]),
    "depth": turns.depth,
    "disagreement": turns.disagreement,
}


def report(
    results: Path,
    out: Path,
    figures: Path,
    stage: str = "all",
    baseline: str | None = None,
    allow: Sequence[str] = (),
    suite: Path | None = None,
) -> list[str]:
    """Make what `stage` names ("all", "collect", "tables", "figures", "page", "html"); lines that say what was made.

    With a `suite` file only its cells enter, and its baseline is the default ("vanilla" without). Raises RunLogError
    where there is no finished run, none of the baseline, or a log or CSV cannot be read, MixedRunsError where runs
    cannot be compared, SuiteError for the suite file.
    """
    out.mkdir(parents=True, exist_ok=True)
    lines: list[str] = []
    if stage in ("all", "collect"):
        lines += _collect(results, out, baseline, allow, suite)
    if stage in ("all", "tables"):
        lines += _tables(out)
    if stage in ("all", "figures"):
        lines += _figures(out, figures)
    if stage in ("all", "page"):
        lines += _page(results, out, figures)
    if stage in ("all", "html"):
        lines += _html(results, out)
    return lines


def _collect(results: Path, out: Path, baseline: str | None, allow: Sequence[str], suite: Path | None) -> list[str]:
    content = read_yaml(suite) if suite else {}
    spec = suite_spec(content, suite) if suite else None
    done, left_out = find_runs(results, expand(content, suite) if suite else None)
    lines = [f"left out, {lacks}: {folder}" for folder, lacks in left_out.items()]
    if not done:
        why = f" ({lines[0]})" if lines else ""
        raise RunLogError(f"{results} holds no finished run{why}; run `divopd train` and `divopd evaluate` first")
    allow = [*allow, *(spec.allow if spec else ())]
    runs: list[Run] = []
    parts: dict[str, list[pd.DataFrame]] = {name: [] for name in PER_RUN}
    for folder in done:
        run = load_run(folder, allow)
        for name, make in PER_RUN.items():
            parts[name].append(make(run))
        runs.append(run.without_rows())  # all turns of a suite at once would fill the memory
    baseline = baseline or (spec.baseline if spec else "vanilla")
    _check_baseline(baseline, runs)
    check_comparable(runs, allow, spec.sections_by_method if spec else ())
    curves = pd.concat(parts["curves"], ignore_index=True)
    _save(collect.summarise(curves, runs, baseline), out, "summary")
    _save(collect.speedup_by_target(curves, baseline), out, "speedups")
    _save(pd.DataFrame([run.key | _seconds(run.path) for run in runs]), out, "timings")
    for name, tables in parts.items():
        _save(pd.concat(tables, ignore_index=True), out, name)
    return [f"{len(runs)} runs -> {out}/{{{','.join(CSVS)}}}.csv", *lines]


def _check_baseline(baseline: str, runs: Sequence[Run]) -> None:
    have = sorted({run.config.method.name for run in runs})
    if baseline not in have:
        raise RunLogError(f"no finished run of the baseline {baseline!r}; --baseline can be one of {', '.join(have)}")


def _tables(out: Path) -> list[str]:
    counterparts = _counterparts(_load(out, "summary"))
    made, left_out = write_tables(lambda name: _load(out, name), counterparts, _starts(counterparts), out)
    lines = [made["main"].markdown(), f"{len(made)} tables -> {out / 'tables'}/*.{{md,tex,csv}}"]
    return [*lines, *left_out_line("tables", left_out, out / "tables" / LEFT_OUT)]


def _figures(out: Path, folder: Path) -> list[str]:
    from divopd.analysis import figures, style

    counterparts = _counterparts(_load(out, "summary"))
    written, left_out = style.draw(figures.makers(lambda name: _load(out, name), counterparts), folder)
    items = [f"- {name.replace('_', ' ')}: {why}" for name, why in left_out.items()]
    (folder / LEFT_OUT).write_text("\n".join(["Figures left out:\n", *items]) + "\n" if items else "")
    line = f"{len(written) // 2} figures -> {folder}/*.{{png,pdf}}"
    return [line, *left_out_line("figures", left_out, folder / LEFT_OUT)]


def left_out_line(kind: str, left_out: Mapping[str, str], details: Path) -> list[str]:
    """One line for all tables or figures that were left out, with the command that one of them needs, if any."""
    if not left_out:
        return []
    command = re.search(r"`([^`]+)`", " ".join(left_out.values()))
    such = f", such as `{command[1]}`" if command else ""
    return [f"{len(left_out)} {kind} left out, their runs are not there: {details} says what each needs{such}"]


def _page(results: Path, out: Path, folder: Path) -> list[str]:
    summary, timings = _load(out, "summary"), _load(out, "timings")
    hashes = summary.filter(regex="^(schema|git|hash_)").drop(columns="hash_config").drop_duplicates()
    parts = [f"# Report on {', '.join(summary['suite'].unique())}\n"]
    minutes = {stage: timings[stage].sum() / 60 for stage in STAGES}
    parts.append(
        f"{len(summary)} runs; {int((summary['status'] != 'done').sum())} diverged. Time in stages: "
        f"{sum(minutes.values()):.1f} core-minutes (" + ", ".join(f"{k} {v:.1f}" for k, v in minutes.items())
        + "); starting Python and what no stage covers come on top.\n"
    )  # fmt: skip
    texts = [out / "tables" / file for file in (*(f"{name}.md" for name in TABLES), LEFT_OUT)]
    parts += [path.read_text() for path in texts if path.exists()]
    pictures = {name: folder / f"{name}.png" for name in FIGURES}
    for name in SWEEPS:  # suites of their own, and so are their figures
        theirs = sweep_csv(name, out).parent
        places = [theirs / "figures", folder.parent / theirs.name]  # where `divopd sweep` and the workflow put them
        pictures |= {f"sweep_{name}": place / "sweep.png" for place in places if (place / "sweep.png").exists()}
    for name, path in pictures.items():
        if path.exists():
            parts.append(f"![{name.replace('_', ' ')}]({Path(os.path.relpath(path, out)).as_posix()})\n")
    if (folder / LEFT_OUT).exists():
        parts.append((folder / LEFT_OUT).read_text())
    parts.append(f"## What made it\n\n{_markdown(hashes)}\n")
    (out / "report.md").write_text("\n".join(parts))
    return [f"page -> {out / 'report.md'}"]


def _html(results: Path, out: Path) -> list[str]:
    from divopd.analysis.html import write_page

    made = write_page(results, out, {name: _load(out, name) for name in ("curves", "summary", "timings")})
    return [f"page -> {made} ({made.stat().st_size / 1e6:.1f} MB)"]


def _counterparts(summary: pd.DataFrame) -> dict[str, str]:
    """Setting -> the paper's setting that its file names; a setting without a file stands for itself."""
    named = {setting: _setting(setting) for setting in summary["setting"].unique()}
    return {setting: spec.paper_setting for setting, spec in named.items() if spec and spec.paper_setting}


def _starts(counterparts: dict[str, str]) -> dict[str, dict[str, float]]:
    """Setting -> success in percent of student and teacher, as the file of the paper's setting says it is reported."""
    found = {setting: _setting(paper) for setting, paper in counterparts.items()}
    return {setting: spec.reported for setting, spec in found.items() if spec}


def _setting(name: str) -> SettingSpec | None:
    try:
        return read_setting(ROOT / "experiments" / "settings" / f"{name}.yaml")
    except SuiteError:
        return None


def _seconds(folder: Path) -> dict[str, float]:
    seconds = read_json(folder, "timings.json")
    return {stage: seconds.get(stage, 0.0) for stage in STAGES}


def _save(frame: pd.DataFrame, out: Path, name: str) -> None:
    frame.to_csv(out / f"{name}.csv", index=False, float_format="%.10g")


def _load(out: Path, name: str, made_by: str = "report ... --stage collect", **options: Any) -> pd.DataFrame:
    path = out / f"{name}.csv"
    try:
        return pd.read_csv(path, **options).copy()  # in one piece a type: a column each makes every selection slow
    except FileNotFoundError as error:
        raise RunLogError(f"{path} is missing; run `divopd {made_by}` first") from error
    except (pd.errors.ParserError, pd.errors.EmptyDataError, UnicodeDecodeError) as error:
        raise RunLogError(f"{path} is corrupt; run `divopd {made_by}` again") from error


def _markdown(frame: pd.DataFrame) -> str:
    header = [str(column) for column in frame.columns]
    rows = [[str(value) for value in row] for row in frame.itertuples(index=False)]
    return "\n".join(f"| {' | '.join(row)} |" for row in [header, ["---"] * len(header), *rows])
