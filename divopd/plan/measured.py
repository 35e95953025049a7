"""What a cell of small models costs, from the runs of its setting that lie under results/."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pyarrow.compute as pc
import pyarrow.parquet as pq

from divopd.config import RunConfig
from divopd.files import RunLogError
from divopd.runlog import read_config


@dataclass(frozen=True, slots=True)
class Seen:
    """A finished run, a update or a whole: what its log says it took."""

    config: RunConfig
    update_seconds: float  # all but start-up and evaluation, one process
    episode_seconds: float  # of evaluation
    evaluations: int
    generated: float  # response tokens an update
    scored: float  # tokens an update
    trained: float  # row tokens an update
    computed: float  # tokens an update
    log_bytes: float
    source: str


def seen_runs(results: Path) -> list[Seen]:
    """All finished and evaluated runs below `results` whose logs can be read."""
    found = []
    for status in sorted(results.glob("*/*/*/*/seed*/status.json")):
        try:
            run = _seen(status.parent)
        except (RunLogError, OSError, KeyError, ValueError):  # another version's, or half removed
            continue
        if run is not None:
            found.append(run)
    return found


def _seen(run_dir: Path) -> Seen | None:
    config = read_config(run_dir)
    seconds = json.loads((run_dir / "timings.json").read_text())
    updates = pq.read_table(run_dir / "updates.parquet", columns=["row_tokens", "computed_tokens", "teacher_tokens"])
    evals = pq.read_table(run_dir / "evals.parquet", columns=["version"])
    turns = pq.read_table(run_dir / "turns.parquet", columns=["response_tokens"])
    n = updates.num_rows
    if not n or not evals.num_rows:
        return None
    work = sum(value for stage, value in seconds.items() if stage not in ("startup", "evaluation"))
    return Seen(
        config=config,
        update_seconds=work / n,
        episode_seconds=seconds["evaluation"] / evals.num_rows,
        evaluations=len(set(evals.column("version").to_pylist())),
        generated=pc.sum(turns.column("response_tokens")).as_py() / n,
        scored=updates.column("teacher_tokens").to_pylist()[-1] / n,
        trained=pc.sum(updates.column("row_tokens")).as_py() / n,
        computed=pc.sum(updates.column("computed_tokens")).as_py() / n,
        log_bytes=sum(path.stat().st_size for path in run_dir.glob("*.parquet")) / n,
        source=run_dir.as_posix(),
    )


def nearest(cell: RunConfig, runs: list[Seen]) -> Seen | None:
    """The run that is most like a cell: its setting, then its method, then its load; None without its setting."""
    same = [run for run in runs if run.config.setting == cell.setting]

    def unlike(run: Seen) -> tuple[bool, bool, float]:
        other = run.config
        load = abs((other.pipeline.load or 1.0) - (cell.pipeline.load or 1.0))
        return (other.method.name != cell.method.name, other.method.rule != cell.method.rule, load)

    return min(same, key=unlike, default=None)
