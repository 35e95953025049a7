"""`divopd report`: collect -> tables -> figures -> one page. Every stage after the first reads the CSVs alone."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from divopd.analysis import collect, turns
from divopd.analysis.runs import NOT_OF_THE_SUITE, Run, check_comparable, find_runs, load_run
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
    "timings": lambda run: pd.DataFrame([run.key | _seconds(run.path)]),
}
RUNS_LEFT_OUT = "runs_left_out"


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
    where no run can be used or a CSV cannot be read, MixedRunsError where runs cannot be compared, SuiteError for the
    suite file. A run that cannot be used is left out: a line and both pages say which, and why.
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
    runs, parts, faults = _read(done, allow)
    lines += [f"left out, {fault}: {folder}" for folder, fault in faults.items()]
    if not runs:
        raise RunLogError(f"{results} holds no run that can be read ({lines[-1]})")
    default = spec.baseline if spec else "vanilla"
    lines += _check_baseline(baseline or default, runs, may_lack=baseline in (None, default))
    check_comparable(runs, allow, spec.sections_by_method if spec else ())
    curves = parts["curves"]
    parts["summary"] = collect.summarise(curves, runs, baseline or default)
    parts["speedups"] = collect.speedup_by_target(curves, baseline or default)
    for name, table in parts.items():
        _save(table, out, name)
    _save_runs_left_out(left_out | faults, out)
    return [f"{len(runs)} runs -> {out}/{{{','.join(CSVS)}}}.csv", *lines]


def _read(folders: Sequence[Path], allow: Sequence[str]) -> tuple[list[Run], dict[str, pd.DataFrame], dict[Path, str]]:
    """Runs without their rows, the CSVs that each makes its own rows of, and the folders that cannot be used, with why.

    What is wrong with one run must not cost the others their report.
    """
    runs: dict[tuple[Any, ...], Run] = {}
    parts: dict[str, list[pd.DataFrame]] = {name: [] for name in PER_RUN}
    faults: dict[Path, str] = {}
    for folder in folders:
        try:
            run = load_run(folder, allow)
            made = {name: make(run) for name, make in PER_RUN.items()}
        except RunLogError as error:
            faults[folder] = str(error)
            continue
        except Exception as error:  # a log whose types are right can still hold anything
            faults[folder] = f"{type(error).__name__}: {error}; delete it and run this cell again"
            continue
        if (same := runs.get(tuple(run.key.values()))) is not None:
            faults[folder] = f"the same cell as {same.path}"
            continue
        for name, table in made.items():
            parts[name].append(table)
        runs[tuple(run.key.values())] = run.without_rows()  # all turns of a suite at once would fill the memory
    tables = {name: pd.concat(made, ignore_index=True) for name, made in parts.items() if made}
    return list(runs.values()), tables, faults


def _check_baseline(baseline: str, runs: Sequence[Run], may_lack: bool) -> list[str]:
    """What to say where no run is the baseline's: a typed name is wrong then, a suite's may not be there yet."""
    have = sorted({run.config.method.name for run in runs})
    if baseline in have:
        return []
    lacks = f"no finished run of the baseline {baseline!r}"
    if not may_lack:
        raise RunLogError(f"{lacks}; --baseline can be one of {', '.join(have)}")
    return [f"{lacks}: no gains and no speedups; --baseline can be one of {', '.join(have)}"]


def _save_runs_left_out(left_out: Mapping[Path, str], out: Path) -> None:
    """For the pages; no file where no run was left out. Runs of other suites are none that anyone would miss."""
    path = out / f"{RUNS_LEFT_OUT}.csv"
    path.unlink(missing_ok=True)
    missed = sorted((folder, why) for folder, why in left_out.items() if why != NOT_OF_THE_SUITE)
    if missed:
        rows = [{"run": folder.as_posix(), "why": " ".join(why.split())} for folder, why in missed]
        pd.DataFrame(rows).to_csv(path, index=False)


def runs_left_out(out: Path) -> dict[str, str]:
    """Run -> why the collected report is without it."""
    if not (out / f"{RUNS_LEFT_OUT}.csv").exists():
        return {}
    frame = _load(out, RUNS_LEFT_OUT)
    return dict(zip(frame["run"], frame["why"], strict=True))


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
    (folder / LEFT_OUT).write_text("\n".join(["Figures left out:\n", *items]) + "\n" if items else "", encoding="utf-8")
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
    if left_out := runs_left_out(out):
        parts.append("Runs left out:\n\n" + "".join(f"- {run}: {why}\n" for run, why in left_out.items()))
    texts = [out / "tables" / file for file in (*(f"{name}.md" for name in TABLES), LEFT_OUT)]
    parts += [path.read_text(encoding="utf-8") for path in texts if path.exists()]
    pictures = {name: folder / f"{name}.png" for name in FIGURES}
    for name in SWEEPS:  # suites of their own, and so are their figures
        theirs = sweep_csv(name, out).parent
        places = [theirs / "figures", folder.parent / theirs.name]  # where `divopd sweep` and the workflow put them
        pictures |= {f"sweep_{name}": place / "sweep.png" for place in places if (place / "sweep.png").exists()}
    for name, path in pictures.items():
        if path.exists():
            parts.append(f"![{name.replace('_', ' ')}]({Path(os.path.relpath(path, out)).as_posix()})\n")
    if (folder / LEFT_OUT).exists():
        parts.append((folder / LEFT_OUT).read_text(encoding="utf-8"))
    parts.append(f"## What made it\n\n{_markdown(hashes)}\n")
    (out / "report.md").write_text("\n".join(parts), encoding="utf-8")
    return [f"page -> {out / 'report.md'}"]


def _html(results: Path, out: Path) -> list[str]:
    from divopd.analysis.html import write_page

    csvs = {name: _load(out, name) for name in ("curves", "summary", "timings")}
    made = write_page(results, out, csvs, runs_left_out(out))
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
        frame = pd.read_csv(path, **options).copy()  # in one piece a type: a column each makes every selection slow
    except FileNotFoundError as error:
        raise RunLogError(f"{path} is missing; run `divopd {made_by}` first") from error
    except (pd.errors.ParserError, pd.errors.EmptyDataError, UnicodeDecodeError) as error:
        raise RunLogError(f"{path} is corrupt; run `divopd {made_by}` again") from error
    if name in ("summary", "sweep") and "final5_count" not in frame:
        raise RunLogError(f"{path} was written by another version; run `divopd {made_by}` again")
    return frame


def _markdown(frame: pd.DataFrame) -> str:
    header = [str(column) for column in frame.columns]
    rows = [[str(value) for value in row] for row in frame.itertuples(index=False)]
    return "\n".join(f"| {' | '.join(row)} |" for row in [header, ["---"] * len(header), *rows])
