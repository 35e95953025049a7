"""Which runs there are, and which of them may stand side by side.

Runs of one setting must have been made alike but for what a method is: a difference in schema, code, panel,
checkpoints, a method's rule file or a section of the configuration stops the report unless it is allowed by name. In
how rollouts arrive (`pipeline.arrives` and `order`) all runs must be alike: what "vanilla" takes depends on it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from divopd import runlog
from divopd.config import RunConfig
from divopd.types import DropReason

# sections of a RunConfig; "student" and "teacher" are also hashes, like "panel" and "rule_file"
SECTIONS = ("train", "pipeline", "env", "prompt", "evaluation", "rollout_temperature", "student", "teacher")
NOT_OF_THE_SUITE = "not a cell of the suite"
ARRIVALS = ("arrives", "order")  # of the section "pipeline", compared apart
MIXABLE = ("schema", "code", "panel", "rule_file", "arrivals", *SECTIONS)


class MixedRunsError(RuntimeError):
    """Runs that cannot be compared; names the kind, two of the runs, and how to allow it."""


@dataclass(frozen=True)
class Run:
    """One finished run, read whole."""

    path: Path
    config: RunConfig
    meta: dict[str, Any]
    status: dict[str, Any]
    turns: pd.DataFrame
    updates: pd.DataFrame
    evals: pd.DataFrame

    @property
    def key(self) -> dict[str, Any]:
        c = self.config
        return {"suite": c.suite, "setting": c.setting, "env": c.env.name, "method": c.method.name, "seed": c.seed}

    def without_rows(self) -> Run:
        """The same run with empty tables."""
        empty = {name: getattr(self, name).iloc[:0] for name in runlog.SCHEMAS}
        return replace(self, **empty)

    @property
    def provenance(self) -> dict[str, Any]:
        """Schema, source commit and the first 12 digits of each hash."""
        hashes = {name: (value or "")[:12] for name, value in self.meta["identity"].items()}
        git = self.meta["git"]
        commit = f"{(git['commit'] or '')[:12]}{'+changes' if git['dirty'] else ''}"
        hashes["code"] = self.meta.get("code", "")[:12]  # not kept by older logs
        return {"schema": self.meta["schema"], "git": commit, **{f"hash_{name}": h for name, h in hashes.items()}}


def find_runs(root: Path, cells: Iterable[RunConfig] | None = None) -> tuple[list[Path], dict[Path, str]]:
    """Folders under `root` that hold a trained and evaluated run, sorted; the others, each with what it lacks.

    With the `cells` of a suite (`root` is that suite's folder) only runs of these cells, configured as they are now,
    count.
    """
    wanted = None if cells is None else {root.joinpath(*cell.run_dir("").parts[1:]): cell for cell in cells}
    folders = {*run_folders(root), *(wanted or ())}
    done, left_out = [], {}
    for folder in sorted(folders):
        if lacks := _lacks(folder, wanted):
            left_out[folder] = lacks
        else:
            done.append(folder)
    return done, left_out


def run_folders(root: Path) -> list[Path]:
    """Folders seed*/ below `root` that hold a config.yaml, through symbolic links too, each real folder once.

    What lies there comes before what is linked; a link that leads back to where the walk has been ends it.
    """
    found, walked, waiting = [], set(), [root]
    for start in waiting:
        for at, names, files in os.walk(start):
            real = os.path.realpath(at)
            if real in walked:
                names.clear()
                continue
            walked.add(real)
            names.sort()
            waiting += [Path(at, name) for name in names if os.path.islink(os.path.join(at, name))]
            if "config.yaml" in files and Path(at).name.startswith("seed"):
                found.append(Path(at))
    return found


def _lacks(folder: Path, wanted: Mapping[Path, RunConfig] | None) -> str:
    """Why a folder's run cannot enter a report; "" if it can."""
    if wanted is not None and folder not in wanted:
        return NOT_OF_THE_SUITE
    if not (folder / "status.json").exists():
        return "not finished"
    if not (folder / "evaluated.json").exists():
        return "not evaluated, run `divopd evaluate` on it"
    if wanted is not None:
        try:
            config = runlog.read_config(folder)
        except runlog.RunLogError as error:
            return str(error)
        if config != wanted[folder]:
            return "configured otherwise than the suite says now, train it again"
    return ""


def load_run(folder: Path, allow: Collection[str] = ()) -> Run:
    """Read one run. Raises RunLogError for a file that is missing, corrupt or of another schema, and where evaluations
    that every run has are lost.

    The batch of the update at which a run diverged trained nothing: its turns count as waiting at the end.
    Where "schema" is allowed, a log of another schema enters if it has every column of today's; others are left out.
    """
    if "schema" in allow:
        meta, status = (_any_schema(folder, name) for name in ("meta.json", "status.json"))
        tables = {name: _same_columns(folder, name) for name in runlog.SCHEMAS}
    else:
        try:
            meta, status = runlog.read_json(folder, "meta.json"), runlog.read_json(folder, "status.json")
            tables = {name: runlog.read_table(folder, name) for name in runlog.SCHEMAS}
        except runlog.RunLogError as error:
            hint = ", or pass --allow schema to read what it has" if "has schema" in str(error) else ""
            raise runlog.RunLogError(f"{error}{hint}") from error
    frames = {name: table.to_pandas() for name, table in tables.items()}
    updates, turns = len(frames["updates"]), frames["turns"]
    if lost := runlog.lost_evaluations(set(frames["evals"]["version"]), updates, status["status"]):
        raise runlog.RunLogError(f"{folder / 'evals.parquet'} {runlog.say_lost(folder, lost)}")
    refused = turns["selected_at"] >= updates
    turns.loc[refused, "dropped"], turns.loc[refused, "dropped_at"] = DropReason.UNREAD.value, updates
    turns.loc[refused, "selected_at"] = -1
    return Run(folder, runlog.read_config(folder), meta, status, **frames)


def _any_schema(folder: Path, name: str) -> dict[str, Any]:
    try:
        return runlog.read_json(folder, name)
    except runlog.RunLogError:
        content = json.loads((folder / name).read_text(encoding="utf-8")) if (folder / name).exists() else None
        if not isinstance(content, dict) or "schema" not in content:
            raise
        return content


def _same_columns(folder: Path, name: str) -> pa.Table:
    """A table of any schema version, cut and cast to today's columns."""
    try:
        return runlog.read_table(folder, name)
    except runlog.RunLogError as error:
        if "has schema" not in str(error):
            raise
        table, today = pq.read_table(folder / f"{name}.parquet"), runlog.SCHEMAS[name]
        lacks = [column for column in today.names if column not in table.column_names]
        if lacks:
            raise runlog.RunLogError(
                f"{folder / name}.parquet lacks {', '.join(lacks)}, so it cannot be mixed with others even under "
                f"--allow schema; delete {folder} and run this cell again"
            ) from error
        return table.select(today.names).cast(today)


def check_comparable(runs: Sequence[Run], allow: Collection[str] = (), by_method: Collection[str] = ()) -> None:
    """Raise MixedRunsError where runs of one setting differ in a hash or in how they were made.

    `allow`: what may differ. `by_method`: sections that the suite sets for single methods, which make a method what it
    is; they are compared between seeds alone.
    """
    for name in allow:
        if name not in MIXABLE:
            raise MixedRunsError(f"cannot allow {name!r} to differ; one of {', '.join(MIXABLE)}")
    for kind in MIXABLE:
        # rules are compared within a method, panels within an environment, arrivals everywhere, the rest in a setting
        scope: tuple[str, ...] = {"rule_file": ("method",), "panel": ("env",), "arrivals": ()}.get(kind, ("setting",))
        if ("pipeline" if kind == "arrivals" else kind) in by_method:
            scope = (*scope, "method")
        seen: dict[tuple[Any, ...], tuple[dict[str, Any], Run]] = {}
        for run in runs:
            value = _made_with(run, kind)
            first, other = seen.setdefault(tuple(run.key[name] for name in scope), (value, run))
            if first != value and kind not in allow:
                keys = [f"{key} {first.get(key)} / {value.get(key)}" for key in value if first.get(key) != value[key]]
                raise MixedRunsError(
                    f"{other.path} and {run.path} differ in {kind} ({', '.join(keys)}): "
                    f"rerun one, or pass --allow {kind} to mix them"
                )


def _made_with(run: Run, kind: str) -> dict[str, Any]:
    """What is compared under a name of MIXABLE, by key. Where a checkpoint or a cache lies makes no difference."""
    if kind == "schema":
        return {"version": run.meta["schema"]}
    if kind == "code":  # logs of before it was kept have the commit alone
        return {"hash": (run.meta.get("code") or f"commit {run.meta['git']['commit']}")[:19]}
    if kind == "arrivals":
        return {name: getattr(run.config.pipeline, name) for name in ARRIVALS}
    digest = {"hash": (run.meta["identity"].get(kind) or "none")[:12]}
    if kind not in SECTIONS:
        return digest
    section = getattr(run.config, kind)
    if kind in ("student", "teacher"):
        return digest | section.model_dump(exclude={"path"})
    if not hasattr(section, "model_dump"):
        return {"value": section}
    left_out = {"env": {"cache_dir"}, "pipeline": set(ARRIVALS)}.get(kind, set())
    return dict(section.model_dump(exclude=left_out))
