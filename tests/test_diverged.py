"""Real runs that diverged, through everything that reads a run's log."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
from click.testing import CliRunner

from diverged_suite import DIVERGING, SETTING, write_suite
from divopd.analysis import turns
from divopd.analysis.html import data
from divopd.analysis.report import CSVS, report
from divopd.analysis.runs import load_run
from divopd.audit.rebuild import rebuild
from divopd.cli_audit import audit as audit_command
from divopd.plan.measured import seen_runs
from divopd.provenance import ROOT
from divopd.replay import Recorded
from divopd.replay.report import Report, RuleChoice
from divopd.runlog import RunLogError, read_json, read_table
from divopd.transcripts import MARKS
from train_runs import quiet


def run_of(results: Path, method: str) -> Path:
    return results / SETTING / "alfworld" / method / "seed0"


@pytest.fixture(scope="module")
def made(diverged: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All stages of its report."""
    out = tmp_path_factory.mktemp("report")
    report(diverged[0], out, out / "figures", suite=diverged[1])
    return out


def test_the_fixture_is_what_it_says(diverged: tuple[Path, Path]):
    updates = {name: read_json(run_of(diverged[0], name), "status.json")["updates"] for name in DIVERGING}
    assert updates["divopd"] > updates["divopd_base"] == 1 and updates["top_b"] == 0
    last = read_table(run_of(diverged[0], "divopd"), "turns").to_pandas()["selected_at"].max()
    assert last == updates["divopd"]  # the refused batch, which is what readers trip over


def test_the_report_has_all_runs_and_marks_those_that_diverged(made: Path):
    summary = pd.read_csv(made / "summary.csv").set_index("method")
    assert summary["status"].to_dict() == {"vanilla": "done", **dict.fromkeys(DIVERGING, "diverged")}
    assert summary.loc[["divopd_base", "top_b"], ["final5_mean", "final5_count"]].eq(0).all(axis=None)
    text = (made / "tables" / "main.md").read_text()
    assert text.count("†") == 4 and "DivOPD-Base†" in text and "0.0 (of 0)" in text
    assert all((made / f"{name}.csv").stat().st_size > 20 for name in CSVS)
    for name in ("learning_curves", "batch_diagnostics", "speedup_by_target"):  # which the workflow asks for
        assert (made / "figures" / f"{name}.png").exists()
    assert "3 diverged" in (made / "report.md").read_text() and (made / "report.html").exists()
    assert not (made / "runs_left_out.csv").exists()


def test_a_refused_batch_trained_nothing(diverged: tuple[Path, Path]):
    run = load_run(run_of(diverged[0], "divopd"))
    logged = read_table(run.path, "turns").to_pandas()
    assert (logged["selected_at"] == len(run.updates)).sum() == 8
    assert turns.depth(run)["selected"].sum() == 8 * len(run.updates)
    sums = turns.disagreement(run)
    assert 0 < sums["updates"].sum() <= len(run.updates)
    assert turns.disagreement(load_run(run_of(diverged[0], "top_b"))).empty


def test_a_page_shows_their_updates(diverged: tuple[Path, Path]):
    for name in DIVERGING:
        found = data.unpack(data.run_details(run_of(diverged[0], name), 10**6))
        updates = read_json(run_of(diverged[0], name), "status.json")["updates"]
        assert found["missing"] == [] and len(found["metrics"]["update"]) == updates
        assert len(found.get("turns", {"at": {}})["at"]) == updates
        assert 0 < len(found["episodes"]) <= 2 * MARKS


def test_replay_takes_what_was_trained(diverged: tuple[Path, Path], tmp_path: Path):
    for name in ("divopd", "divopd_base"):
        replayed = Report([RuleChoice.parse(rule) for rule in ("vanilla", name)], None)
        replayed.run(run_of(diverged[0], name))
        updates = read_json(run_of(diverged[0], name), "status.json")["updates"]
        assert f"its own rule gives {updates} of its {updates} batches again" in replayed.write(tmp_path)
    with pytest.raises(RunLogError, match="top_b/seed0 diverged at its first update, so there is none to replay"):
        Recorded(run_of(diverged[0], "top_b"))


@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_an_audit_where_gradients_have_vanished_knows_nothing(diverged: tuple[Path, Path], tmp_path: Path):
    run = run_of(diverged[0], "divopd")
    last = read_json(run, "status.json")["updates"] - 1
    arguments = [str(run), "--update", str(last), "--seeds", "2", "--progress", "none", "--whole", "--out"]
    CliRunner().invoke(audit_command, [*arguments, str(tmp_path)], catch_exceptions=False)
    assert pd.read_csv(tmp_path / "audit.csv")["cosine"].isna().all()
    assert (tmp_path / "audit.png").exists() and (tmp_path / "audit.md").exists()
    with pytest.raises(RunLogError, match="diverged at its first update: there is no batch to audit"):
        rebuild(run_of(diverged[0], "top_b"), 0, quiet)


def test_a_plan_measures_those_that_made_updates(diverged: tuple[Path, Path]):
    assert {run.config.method.name for run in seen_runs(diverged[0].parent)} == {"vanilla", "divopd", "divopd_base"}


@pytest.mark.slow
def test_the_workflow_reports_on_a_diverged_run(tmp_path: Path, game_cache: Path):
    for part in ("workflow", "divopd", "baselines"):
        shutil.copytree(ROOT / part, tmp_path / part, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "environment.yml", tmp_path)
    (tmp_path / "experiments").mkdir()
    suite = write_suite(tmp_path / "experiments", game_cache, ("vanilla", "divopd")).relative_to(tmp_path)
    env = os.environ | {"XDG_CACHE_HOME": str(tmp_path / ".xdg"), "OMP_NUM_THREADS": "1", "PYTHONPATH": str(tmp_path)}
    command = [sys.executable, "-m", "snakemake", "--cores", "2", "--configfile", str(suite)]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=env, timeout=500)
    assert ran.returncode == 0, ran.stderr[-2000:]
    results = tmp_path / "results" / "diverging"
    assert "1 diverged" in (results / "report.md").read_text() and (results / "report.html").exists()
    assert json.loads((run_of(results, "divopd") / "status.json").read_text())["status"] == "diverged"
