"""The workflow: small, lint-clean, plans the right jobs, and reruns only what a change touches."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from divopd import runlog
from divopd.analysis.report import FIGURES, report
from divopd.analysis.runs import load_run
from divopd.config import RunConfig
from divopd.provenance import ROOT, file_hash
from divopd.suite import load_suite
from synthetic import write_run

PARTS = ("workflow", "divopd", "baselines", "experiments")


def snakemake(root: Path, *args: str, suite: str = "experiments/demo.yaml") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "snakemake", "--configfile", suite, *args]
    env = os.environ | {"XDG_CACHE_HOME": str(root / ".xdg"), "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, cwd=root, capture_output=True, text=True, env=env, timeout=300)


def planned(run: subprocess.CompletedProcess[str]) -> dict[str, int]:
    """Jobs by rule, as a dry run counts them."""
    assert run.returncode == 0, run.stderr[-2000:]
    counts = re.findall(r"^(\w+) +(\d+)$", run.stdout, flags=re.MULTILINE)
    return {name: int(count) for name, count in counts if name not in ("total", "all")}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A copy of what the workflow reads, with stand-ins for checkpoints and panels, older than any result."""
    for part in PARTS:
        shutil.copytree(ROOT / part, tmp_path / part, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "environment.yml", tmp_path)
    for cell in load_suite(tmp_path / "experiments" / "demo.yaml"):
        for policy in (cell.student, cell.teacher):
            (tmp_path / policy.path).mkdir(parents=True, exist_ok=True)
            (tmp_path / policy.path / "model.safetensors").write_bytes(b"")
        panel = tmp_path / cell.env.eval_panel
        panel.parent.mkdir(parents=True, exist_ok=True)
        panel.write_text("gen/eval/0\n")
    old = time.time() - 1000
    for path in tmp_path.rglob("*"):
        os.utime(path, (old, old))
    return tmp_path


def finished(project: Path) -> list[RunConfig]:
    """Results of the demo as if it had run."""
    cells = load_suite(project / "experiments" / "demo.yaml")
    for cell in cells:
        write_run(project / "results", cell, updates=20)
    results, figures = project / "results" / "demo", project / "figures" / "demo"
    for stage in ("collect", "tables"):
        report(results, results, figures, stage)
    (results / "games.txt").write_text("2000 tasks ready\n")
    figures.mkdir(parents=True)
    for name in FIGURES:  # drawing them takes long, and tests of their own
        for kind in ("png", "pdf"):
            (figures / f"{name}.{kind}").touch()
    for stage in ("page", "html"):
        report(results, results, figures, stage)
    return cells


def test_the_snakefile_is_short_and_each_stage_has_a_file():
    assert len((ROOT / "workflow" / "Snakefile").read_text().splitlines()) < 60
    stages = {path.stem for path in (ROOT / "workflow" / "rules").glob("*.smk")}
    assert {"train", "evaluate", "report"} <= stages


def test_lint_and_format(project: Path):
    run = snakemake(project, "--lint")
    assert run.returncode == 0, run.stderr
    assert "good condition" in run.stderr + run.stdout
    files = [str(path) for path in (ROOT / "workflow").rglob("*") if path.name == "Snakefile" or path.suffix == ".smk"]
    check = [sys.executable, "-m", "snakefmt", "--check", "--config", str(ROOT / "pyproject.toml"), *files]
    assert subprocess.run(check, capture_output=True).returncode == 0


@pytest.mark.parametrize("suite", ["demo", "laptop", "paper"])
def test_one_job_a_cell(project: Path, suite: str):
    cells = len(load_suite(ROOT / "experiments" / f"{suite}.yaml"))
    jobs = planned(snakemake(project, "--cores", "2", "--dry-run", suite=f"experiments/{suite}.yaml"))
    once = ("games", "collect", "tables", "figures", "page", "html")
    assert jobs == {"train": cells, "evaluate": cells} | dict.fromkeys(once, 1)


def test_a_typo_in_the_suite_is_one_clear_line(project: Path):
    suite = project / "experiments" / "demo.yaml"
    suite.write_text(suite.read_text().replace("seeds:", "sedes:"))
    run = snakemake(project, "--cores", "1", "--dry-run")
    assert run.returncode != 0
    said = run.stdout + run.stderr
    assert "unknown key sedes; did you mean 'seeds'?" in said
    assert "Traceback" not in said


def test_a_finished_suite_has_nothing_to_do_until_a_rule_changes(project: Path):
    finished(project)
    done = snakemake(project, "--cores", "1", "--dry-run")
    assert "Nothing to be done" in done.stdout + done.stderr, done.stdout
    rule = project / "baselines" / "divopd.py"
    rule.write_text(rule.read_text() + "# a change\n")
    changed = snakemake(project, "--cores", "1", "--dry-run")
    jobs = planned(changed)
    cells = [cell for cell in load_suite(project / "experiments" / "demo.yaml") if cell.method.rule == "divopd"]
    assert (jobs["train"], jobs["evaluate"], jobs["collect"]) == (len(cells), len(cells), 1)
    outputs = re.findall(r"output: (\S+status\.json)", changed.stdout)
    assert {Path(path).parent.as_posix() for path in outputs} == {cell.run_dir().as_posix() for cell in cells}


def test_divopd_run_ends_with_the_table_and_where_the_rest_lies(project: Path):
    cells = finished(project)
    command = [sys.executable, "-m", "divopd.cli", "run", "experiments/demo.yaml", "--cores", "2"]
    env = os.environ | {"XDG_CACHE_HOME": str(project / ".xdg")}
    run = subprocess.run(command, cwd=project, capture_output=True, text=True, env=env, timeout=300)
    assert run.returncode == 0, run.stdout + run.stderr
    assert run.stdout.startswith("demo: everything is there and up to date\n")
    lines = run.stdout.splitlines()
    assert lines[2].split()[:2] == ["Setting", "Method"]
    assert [line.split()[0] for line in lines[3:12:3]] == sorted({cell.setting for cell in cells})
    assert len(lines) < 20 and "results/demo/report.html" in run.stdout and "figures/demo/" in run.stdout


@pytest.fixture
def tiny_project(project: Path, tiny_cell: Callable[..., RunConfig]) -> Path:
    """The same project with a suite of one tiny setting and two methods: untrained models, seconds a cell."""
    whole = tiny_cell(train={"updates": 4, "batch_rows": 8, "learning_rate": 1e-3}).model_dump(mode="json")
    sections = ("student", "teacher", "env", "prompt", "train", "pipeline", "evaluation")
    setting = {"cap": 2} | {name: whole[name] for name in sections}
    (project / "experiments" / "settings" / "tiny.yaml").write_text(yaml.safe_dump(setting))
    suite = {"name": "tiny", "settings": ["tiny"], "methods": ["vanilla", "divopd"]}
    (project / "experiments" / "tiny.yaml").write_text(yaml.safe_dump(suite))
    return project


def test_overrides_reach_the_jobs_or_are_refused(project: Path):
    """What Snakemake merges is what the cells are made of, and one file of its own that jobs read."""
    more = project / "more.yaml"
    more.write_text("methods: {top_b: {}}\n")
    plain = planned(snakemake(project, "--cores", "1", "--dry-run"))
    assert not (project / "results").exists()
    args = ("--cores", "1", "--dry-run")
    both = snakemake(project, str(more), *args, "--config", "seeds=[3,4]", "name=other+1")
    assert planned(both)["train"] == 2 * 4 * plain["train"] // 3
    [merged] = (project / "results" / "other+1" / "suites").iterdir()
    cells = load_suite(merged)
    assert {cell.seed for cell in cells} == {3, 4} and {cell.suite for cell in cells} == {"other+1"}
    demo = {(c.setting, c.method.name): c for c in load_suite(project / "experiments" / "demo.yaml")}
    for cell in cells:  # all else is as in the first file, settings and presets included
        if cell.method.name != "top_b":
            same = demo[cell.setting, cell.method.name]
            assert cell.model_copy(update={"seed": 0, "suite": "demo"}) == same
    before = merged.stat().st_mtime_ns
    snakemake(project, str(more), *args, "--config", "seeds=[3,4]", "name=other+1")
    assert [path.stat().st_mtime_ns for path in merged.parent.iterdir()] == [before]  # never written again
    wrong = {"sedes=[1]": "unknown key sedes", "name=../x": "is no name", "seeds=[1,1]": "seeds: 1 is there twice"}
    for change, words in wrong.items():
        refused = snakemake(project, "--dry-run", "--config", change)
        said = refused.stdout + refused.stderr
        assert refused.returncode != 0 and words in said and "merged from experiments/demo.yaml" in said
        assert "Traceback" not in said


def test_a_key_twice_is_not_left_to_snakemakes_reader(project: Path):
    suite = project / "experiments" / "demo.yaml"
    suite.write_text(suite.read_text() + "seeds: [5]\n")
    run = snakemake(project, "--cores", "1", "--dry-run")
    assert run.returncode != 0 and "key 'seeds' is there twice" in run.stdout + run.stderr


def test_an_override_that_changes_no_cell_reruns_none(project: Path):
    finished(project)
    args = ("--cores", "1", "--dry-run", "--until", "train", "evaluate")
    assert "Nothing to be done" in snakemake(project, *args, "--config", "description=other").stdout


@pytest.mark.slow
def test_odd_names_through_real_jobs(tiny_project: Path):
    """A space, a quote and braces in the suite file's path, every sign that names may hold, and overrides."""
    folder = tiny_project / "my suites"
    (folder / "settings").mkdir(parents=True)
    shutil.move(tiny_project / "experiments" / "settings" / "tiny.yaml", folder / "settings" / "t+i.n-y_1.yaml")
    methods = {"vanilla": {}, "k+2.5": {"rule": "divopd", "params": {"cap": 2}}}
    content = {"name": "o+d.d", "settings": ["t+i.n-y_1"], "methods": methods, "sweep": "method.params.cap"}
    suite = "my suites/it's {one}.yaml"
    (tiny_project / suite).write_text(yaml.safe_dump(content))
    targets = ["results/o+d.d/sweep.md", "results/o+d.d/tables/main.md"]
    run = snakemake(tiny_project, "--cores", "2", *targets, "--config", "seeds=[3]", suite=suite)
    assert run.returncode == 0, (run.stdout + run.stderr)[-4000:]
    # a cell that is new in a suite that has run is trained by the next call, not by the one after it
    run = snakemake(tiny_project, "--cores", "2", "results/o+d.d/summary.csv", suite=suite)
    assert run.returncode == 0, (run.stdout + run.stderr)[-4000:]
    results = tiny_project / "results" / "o+d.d"
    runs = sorted(path.parent.relative_to(results).as_posix() for path in results.rglob("evaluated.json"))
    assert runs == [f"t+i.n-y_1/alfworld/{method}/seed{n}" for method in ("k+2.5", "vanilla") for n in (0, 3)]
    assert len((results / "summary.csv").read_text().splitlines()) == 3  # of the suite as it was run last
    shutil.rmtree(results / "t+i.n-y_1" / "alfworld" / "vanilla" / "seed0")
    (tiny_project / "baselines" / "vanilla.py").write_text("def broken(:\n")
    failed = snakemake(tiny_project, "--cores", "1", "--until", "train", suite=suite)
    assert failed.returncode != 0  # a job's exit code is the command's, not that of `tee`


@pytest.mark.slow
def test_a_tiny_grid_end_to_end(tiny_project: Path):
    first = snakemake(tiny_project, "--cores", "2", suite="experiments/tiny.yaml")
    assert first.returncode == 0, (first.stdout + first.stderr)[-4000:]
    results = tiny_project / "results" / "tiny"
    for cell in load_suite(tiny_project / "experiments" / "tiny.yaml"):
        run_dir = cell.run_dir(tiny_project / "results")
        runlog.validate(run_dir)
        run = load_run(run_dir)
        assert (run.status["status"], len(run.updates)) == ("done", 4)
        assert set(run.evals["version"]) >= {0, 3} and (run.evals.groupby("version").size() == 3).all()
        assert len(list((run_dir / "checkpoints").iterdir())) == 1  # of the evaluated ones the last alone is kept
    assert "2 runs; 0 diverged" in (results / "report.md").read_text()
    assert (tiny_project / "figures" / "tiny" / "learning_curves.png").stat().st_size > 10_000
    assert "DivOPD report: tiny" in (results / "report.html").read_text()
    assert "update 4/4" in (results / "logs" / "train" / "tiny.alfworld.divopd.seed0.log").read_text()

    again = snakemake(tiny_project, "--cores", "2", suite="experiments/tiny.yaml")
    assert "Nothing to be done" in again.stdout + again.stderr
    reported = snakemake(tiny_project, "--cores", "1", "--report", "snakemake.html", suite="experiments/tiny.yaml")
    assert reported.returncode == 0, (reported.stdout + reported.stderr)[-4000:]
    assert "report.html" in (tiny_project / "snakemake.html").read_text()

    rule = tiny_project / "baselines" / "divopd.py"
    rule.write_text(rule.read_text() + "# a change\n")
    before = (results / "tiny" / "alfworld" / "vanilla" / "seed0" / "status.json").stat().st_mtime_ns
    changed = snakemake(tiny_project, "--cores", "2", "--until", "train", suite="experiments/tiny.yaml")
    assert changed.returncode == 0, (changed.stdout + changed.stderr)[-4000:]
    assert (results / "tiny" / "alfworld" / "vanilla" / "seed0" / "status.json").stat().st_mtime_ns == before
    meta = runlog.read_json(results / "tiny" / "alfworld" / "divopd" / "seed0", "meta.json")
    assert meta["identity"]["rule_file"] == file_hash(rule)
