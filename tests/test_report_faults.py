"""A report is made of what there is: odd suites, runs that cannot be used, folders behind links."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from divopd import runlog
from divopd.analysis.html import data
from divopd.analysis.redraw import redraw
from divopd.analysis.report import CSVS, report
from divopd.analysis.runs import find_runs
from divopd.cli import main
from divopd.evaluate import evaluate_run
from divopd.runlog import RunLogError
from synthetic import cell, write_run
from train_runs import quiet

ALWAYS = ("learning_curves", "batch_diagnostics", "speedup_by_target")  # figures that the workflow asks for


def grid(root: Path, *methods: str, seeds: int = 1, updates: int = 20) -> Path:
    for method in methods:
        for seed in range(seeds):
            write_run(root, cell(method=method, seed=seed), updates=updates)
    return root


def edit(run: Path, table: str, change: Callable[[pd.DataFrame], pd.DataFrame]) -> None:
    """Change the rows of a log's table and leave its schema as it is."""
    import pyarrow as pa

    old = runlog.read_table(run, table)
    new = pa.Table.from_pandas(change(old.to_pandas()), schema=old.schema, preserve_index=False)
    pq.write_table(new.replace_schema_metadata(old.schema.metadata), run / f"{table}.parquet")


def never_selected(turns: pd.DataFrame) -> pd.DataFrame:
    return turns.assign(selected_at=-1, dropped="stale", dropped_at=0)


SUITES: dict[str, Callable[[Path], object]] = {
    "vanilla alone": lambda root: grid(root, "vanilla"),
    "no baseline": lambda root: grid(root, "divopd", "divopd_base", seeds=2),
    "one seed of one, three of the other": lambda root: (grid(root, "vanilla"), grid(root, "divopd", seeds=3)),
    "one evaluation after training began": lambda root: grid(root, "vanilla", "divopd", updates=10),
    "no turn is ever selected": lambda root: [
        edit(write_run(root, cell(method=method), updates=20), "turns", never_selected)
        for method in ("vanilla", "divopd")
    ],
    "no student turn at all": lambda root: [
        edit(write_run(root, cell(method=method), updates=20), "turns", lambda turns: turns.assign(actor="teacher"))
        for method in ("vanilla", "divopd")
    ],
    "no turn": lambda root: edit(write_run(root, cell(), updates=20), "turns", lambda turns: turns.iloc[:0]),
}


@pytest.mark.parametrize("make", SUITES.values(), ids=SUITES.keys())
def test_every_stage_takes_an_odd_suite(make: Callable[[Path], object], tmp_path: Path):
    make(tmp_path / "results")
    out = tmp_path / "out"
    report(tmp_path / "results", out, tmp_path / "figures" / "out")
    for path in [out / f"{name}.csv" for name in CSVS] + sorted((out / "tables").glob("*.csv")):
        assert len(pd.read_csv(path).columns) > 3, path.name  # a header even where there is no row
    assert all((tmp_path / "figures" / "out" / f"{name}.png").exists() for name in ALWAYS)
    assert (out / "report.md").exists() and (out / "report.html").exists()
    assert [error for _, error in redraw([out], tmp_path / "figures", 1)] == [None]


def test_without_a_baseline_there_is_no_gain_and_a_line_says_so(tmp_path: Path):
    grid(tmp_path, "divopd", "divopd_base")
    said = report(tmp_path, tmp_path, tmp_path / "figures", "collect")
    assert (
        "no finished run of the baseline 'vanilla': no gains and no speedups; --baseline can be one of divopd"
        in said[1]
    )
    with pytest.raises(RunLogError, match="baseline 'vanila'"):  # a name that was typed is another matter
        report(tmp_path, tmp_path, tmp_path / "figures", "collect", "vanila")


# a fault of one run -> how to make it, and what the report says of it
def garbage(name: str) -> Callable[[Path], object]:
    return lambda run: (run / name).write_bytes(b"PAR1 no more")


def lost(version: int) -> Callable[[Path], object]:
    return lambda run: edit(run, "evals", lambda evals: evals[evals["version"] != version])


FAULTS: dict[str, tuple[Callable[[Path], object], str]] = {
    "corrupt turns": (garbage("turns.parquet"), "turns.parquet is corrupt; delete"),
    "corrupt evals": (garbage("evals.parquet"), "evals.parquet is corrupt; delete"),
    "corrupt meta": (garbage("meta.json"), "meta.json is corrupt; delete"),
    "corrupt status": (garbage("status.json"), "status.json is corrupt; delete"),
    "corrupt config": (garbage("config.yaml"), "config.yaml is corrupt"),
    "corrupt timings": (garbage("timings.json"), "timings.json is corrupt; delete"),
    "no updates": (lambda run: (run / "updates.parquet").unlink(), "updates.parquet is missing; run `divopd train`"),
    "start not evaluated": (lost(0), "has no evaluation of version 0, whose checkpoint is gone; delete"),
    "end not evaluated": (lost(20), "has no evaluation of version 20, whose checkpoint is gone; delete"),
    "no evaluation": (lambda run: edit(run, "evals", lambda evals: evals[:0]), "no evaluation of version 0 and 20"),
    "nonsense": (lambda run: edit(run, "evals", lambda evals: evals.assign(version=-evals["version"])), ""),
}  # fmt: skip


@pytest.mark.parametrize(("spoil", "says"), FAULTS.values(), ids=FAULTS.keys())
def test_one_runs_fault_leaves_that_run_out(spoil: Callable[[Path], object], says: str, tmp_path: Path):
    grid(tmp_path / "results", "vanilla", "divopd", seeds=2)
    bad = cell(method="divopd", seed=1).run_dir(tmp_path / "results")
    spoil(bad)
    stages = [part for stage in ("collect", "tables", "page", "html") for part in ("--stage", stage)]
    ran = CliRunner().invoke(main, ["report", str(tmp_path / "results"), "--out", str(tmp_path / "out"), *stages])
    assert ran.exit_code == 0, ran.output
    (line,) = [line for line in ran.output.splitlines() if line.startswith("left out, ")]
    assert line.endswith(str(bad)) and says in line
    assert len(pd.read_csv(tmp_path / "out" / "summary.csv")) == 3
    for page in ("report.md", "report.html"):
        text = (tmp_path / "out" / page).read_text()
        assert "Runs left out" in text and "divopd/seed1" in text, page
    # mended, it is there again and nothing says that it was not
    shutil.rmtree(bad)
    write_run(tmp_path / "results", cell(method="divopd", seed=1), updates=20)
    for stage in ("collect", "page"):
        report(tmp_path / "results", tmp_path / "out", tmp_path / "out" / "figures", stage)
    assert len(pd.read_csv(tmp_path / "out" / "summary.csv")) == 4
    assert "Runs left out" not in (tmp_path / "out" / "report.md").read_text()


def test_where_no_run_can_be_used_the_first_fault_is_the_error(tmp_path: Path):
    grid(tmp_path, "vanilla")
    lost(0)(cell().run_dir(tmp_path))
    with pytest.raises(RunLogError, match="no run that can be read .*no evaluation of version 0"):
        report(tmp_path, tmp_path / "out", tmp_path / "figures")


def test_a_faulty_run_of_the_baseline_costs_the_gains_alone(tmp_path: Path):
    grid(tmp_path, "vanilla", "divopd")
    lost(0)(cell().run_dir(tmp_path))
    said = report(tmp_path, tmp_path / "out", tmp_path / "figures", "collect")
    assert said[0].startswith("1 runs") and "no gains" in said[-1]


def test_what_spoils_after_collecting_is_named_on_the_page(tmp_path: Path):
    grid(tmp_path, "vanilla", "divopd")
    for stage in ("collect", "tables"):
        report(tmp_path, tmp_path, tmp_path / "figures", stage)
    run = cell(method="divopd").run_dir(tmp_path)
    for name in ("turns.parquet", "transcripts.parquet"):
        garbage(name)(run)
    found = data.unpack(data.run_details(run, 10**6))
    assert ["turns.parquet is corrupt" in found["missing"][0], "transcripts.parquet is corrupt" in found["missing"][1]]
    garbage("meta.json")(run)
    report(tmp_path, tmp_path, tmp_path / "figures", "html")
    assert "meta.json is corrupt" in data.unpack(data.run_details(run, 10**6))["missing"][0]


def test_an_evaluation_that_cannot_be_made_again_is_refused_before_any_episode(tmp_path: Path):
    run = write_run(tmp_path, cell())
    (run / "evals.parquet").unlink()
    (run / "checkpoints").mkdir()
    (run / "checkpoints" / "v00060-e00060.safetensors").touch()  # the last one is kept
    with pytest.raises(
        RunLogError, match=r"no evaluation of version 0, whose checkpoint is gone; delete .* run this cell"
    ):
        evaluate_run(run, quiet)


# links ---------------------------------------------------------------------------------------------------------------


def test_runs_behind_links_are_found_once(tmp_path: Path):
    real = tmp_path / "disk"
    for seed in (0, 1):
        write_run(real, cell(seed=seed), updates=10)
    write_run(real, cell(method="divopd"), updates=10)
    results = tmp_path / "results"
    runs = results / "synthetic" / "alfworld-0.5m" / "alfworld"
    runs.mkdir(parents=True)
    there = real / "synthetic" / "alfworld-0.5m" / "alfworld"
    (runs / "vanilla").symlink_to(there / "vanilla")  # a method
    (runs / "divopd").mkdir()
    (runs / "divopd" / "seed0").symlink_to(there / "divopd" / "seed0")  # a run
    (runs / "again").symlink_to(there / "vanilla")  # the same runs
    (runs / "loop").symlink_to(results)
    (runs / "divopd" / "self").symlink_to("self")
    (runs / "divopd" / "gone").symlink_to("nowhere")
    found = find_runs(results)[0]
    assert len(found) == 3 and {os.path.realpath(path) for path in found} == {
        str(there / "vanilla" / "seed0"), str(there / "vanilla" / "seed1"), str(there / "divopd" / "seed0"),
    }  # fmt: skip
    linked = tmp_path / "linked"
    linked.symlink_to(results)
    assert len(find_runs(linked)[0]) == 3  # the folder itself
    report(linked, tmp_path / "out", tmp_path / "out" / "figures", "collect")
    assert len(pd.read_csv(tmp_path / "out" / "summary.csv")) == 3


def test_two_folders_of_one_cell_count_once(tmp_path: Path):
    run = write_run(tmp_path, cell())
    shutil.copytree(run, tmp_path / "copy" / "seed0")
    said = report(tmp_path, tmp_path / "out", tmp_path / "figures", "collect")
    assert said[0].startswith("1 runs") and "left out, the same cell as" in said[1]
