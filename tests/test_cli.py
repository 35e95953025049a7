"""The command line: quick to answer, one line for each expected failure, real progress."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

from divopd import checks, doctor
from divopd.cli import main
from divopd.config import PolicyConfig
from divopd.progress import Progress
from synthetic import cell, write_run

ROOT = Path(__file__).resolve().parent.parent


def run(*args: object) -> Result:
    return CliRunner().invoke(main, [str(arg) for arg in args])


def fails(result: Result, *words: str) -> None:
    """Exit code 1 and one line that holds the words; no trace."""
    assert result.exit_code == 1, result.output
    lines = result.output.strip().splitlines()
    assert len(lines) == 1 and lines[0].startswith("Error: "), result.output
    for word in words:
        assert word in lines[0], f"{word!r} not in {lines[0]!r}"


@pytest.fixture
def suite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A suite of one setting whose checkpoints are not there, in the working directory."""
    (tmp_path / "settings").mkdir()
    setting = {"student": {"path": "models/student"}, "teacher": {"path": "models/teacher"}}
    (tmp_path / "settings" / "small.yaml").write_text(yaml.safe_dump(setting))
    content = {"name": "test", "settings": ["small"], "methods": ["vanilla"]}
    (tmp_path / "suite.yaml").write_text(yaml.safe_dump(content))
    (tmp_path / "models").mkdir()
    (tmp_path / "experiments").mkdir()
    (tmp_path / "experiments" / "panels").symlink_to(ROOT / "experiments" / "panels")
    monkeypatch.chdir(tmp_path)
    return tmp_path / "suite.yaml"


def checkpoints(root: Path) -> None:
    """Those that the suite names, which are shipped ones."""
    for name, shipped in (("student", "student-0.5m"), ("teacher", "teacher")):
        (root / "models" / name).symlink_to(ROOT / "models" / "alfworld" / shipped)


def test_help_is_quick_and_imports_nothing_heavy():
    code = (
        "import sys, divopd.cli as c\n"
        "try: c.main(['--help'])\n"
        "except SystemExit: pass\n"
        "heavy = {'torch', 'transformers', 'pandas', 'pyarrow', 'matplotlib', 'textworld', 'snakemake', 'numpy'}\n"
        "print('HEAVY', sorted(heavy & set(sys.modules)))"
    )
    # CPU seconds, not wall: other tests may run beside
    before = os.times()
    out = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    after = os.times()
    assert "HEAVY []" in out
    assert all(command in out for command in ("train", "evaluate", "report", "rules", "doctor"))
    assert after.children_user + after.children_system - before.children_user - before.children_system < 1.0


@pytest.mark.parametrize("command", ["train", "evaluate", "report", "rules", "doctor"])
def test_each_command_has_help(command: str):
    result = run(command, "--help")
    assert result.exit_code == 0 and result.output.startswith("Usage:")


def test_rules_lists_every_rule_with_its_parameters():
    result = run("rules")
    names = [line.split()[0] for line in result.output.splitlines()]
    assert names == sorted(path.stem for path in (ROOT / "baselines").glob("*.py") if not path.stem.startswith("_"))
    line = next(line for line in result.output.splitlines() if line.startswith("divopd "))
    assert "[cap=4]" in line and "spread wide" in line


def test_unknown_key_in_yaml(suite: Path):
    suite.write_text(suite.read_text() + "common: {train: {updats: 3}}\n")
    fails(run("train", "--suite", suite, "-s", "small", "-m", "vanilla"), "suite.yaml", "updats", "'updates'")


def test_unknown_rule(suite: Path):
    suite.write_text(suite.read_text().replace("- vanilla", "- vanilla\n- vanila"))
    fails(run("train", "--suite", suite, "-s", "small", "-m", "vanila"), "unknown rule 'vanila'", "vanilla")


def test_unknown_cell(suite: Path):
    fails(run("train", "--suite", suite, "-s", "smal", "-m", "vanilla"), "'small'")


def test_missing_checkpoint(suite: Path):
    fails(run("train", "--suite", suite, "-s", "small", "-m", "vanilla"), "checkpoint models/student", "missing")


def test_missing_engine(suite: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(doctor.ENGINES["alfworld"], "no_such_engine", "no-such-engine")
    fails(run("train", "--suite", suite, "-s", "small", "-m", "vanilla"), "no-such-engine", "make install", "g++")


def test_missing_compiler(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    check = doctor.compiler()
    assert not check.ok and "g++" in check.detail
    assert not check.needed  # the engine is built already
    monkeypatch.setitem(doctor.ENGINES["alfworld"], "no_such_engine", "no-such-engine")
    assert doctor.compiler().needed


def test_unwritable_output(suite: Path):
    checkpoints(suite.parent)
    (suite.parent / "file").write_text("")
    fails(run("train", "--suite", suite, "-s", "small", "-m", "vanilla", "--out", "file/results"), "file", "--out")


def test_another_run_in_the_way(suite: Path):
    checkpoints(suite.parent)
    args = ["train", "--suite", suite, "-s", "small", "-m", "vanilla"]
    from divopd.runlog import RunLog
    from divopd.suite import load_suite

    config = load_suite(suite)[0]
    RunLog.open(config.run_dir("results"), config)
    suite.write_text(suite.read_text() + "common: {train: {updates: 3}}\n")
    fails(run(*args), "another run", "config differs", "--replace")


def test_corrupt_logs(tmp_path: Path):
    folder = write_run(tmp_path, cell(), updates=10)
    (folder / "evals.parquet").write_bytes(b"PAR1")
    fails(run("report", tmp_path), "evals.parquet is corrupt", "run this cell again")
    (folder / "config.yaml").write_text("a: [")
    fails(run("evaluate", folder), "config.yaml is corrupt")
    fails(run("evaluate", tmp_path), "config.yaml is missing", "divopd train")
    fails(run("report", tmp_path / "none"), "none: no such folder", "no finished run")
    assert not (tmp_path / "none").exists()


def test_mistakes_in_a_recipe(tmp_path: Path):
    file, out = tmp_path / "recipe.yaml", tmp_path / "models"
    shape = {"hidden": 32, "layers": 1, "heads": 2, "ffn": 32, "stages": []}
    file.write_text(yaml.safe_dump({"env": {}, "models": {"small": shape | {"hiden": 3}}}))
    args = ["models", file, "--out", out, "--work", tmp_path / "work"]
    fails(run(*args), "recipe.yaml: models.small.hiden: Extra inputs")
    file.write_text(yaml.safe_dump({"env": {}, "models": {"small": shape}}))
    fails(run(*args, "--model", "smal"), "recipe.yaml: no model 'smal'; it has small")
    file.write_text(yaml.safe_dump({"env": {}, "models": {"../small": shape}}))
    fails(run(*args), "recipe.yaml: models.../small", "'../small' is no name")
    file.write_text("models: [")
    fails(run(*args), "recipe.yaml: not readable as YAML")
    assert not out.exists()


def test_replace_starts_over_where_a_log_is_of_another_schema(suite: Path, monkeypatch: pytest.MonkeyPatch):
    """As the message of an old log advises."""
    from divopd.runlog import RunLog
    from divopd.suite import load_suite

    checkpoints(suite.parent)
    config = load_suite(suite)[0]
    folder = config.run_dir("results")
    RunLog.open(folder, config)
    meta = (folder / "meta.json").read_text()
    (folder / "meta.json").write_text(meta.replace('"schema": ', '"schema": 9'))
    args = ["train", "--suite", suite, "-s", "small", "-m", "vanilla"]
    fails(run(*args), "another run (schema differs)", "--replace")
    monkeypatch.setattr("divopd.train._train", lambda *_: RunLog.open(folder, config).finish("done"))
    assert run(*args, "--replace").exit_code == 0


def test_unexpected_errors_say_how_to_see_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def broken(*_: object) -> None:
        raise ZeroDivisionError("by\nzero")

    monkeypatch.setattr("divopd.selection.available_rules", broken)
    fails(run("rules"), "ZeroDivisionError: by zero", "--debug")
    assert isinstance(run("--debug", "rules").exception, ZeroDivisionError)


def test_usage_errors():
    for args in (["train"], ["train", "--config", "x.yaml", "-s", "small"], ["report"], ["nonsense"]):
        assert run(*args).exit_code == 2


def test_report_command(tmp_path: Path):
    for method in ("vanilla", "divopd"):
        write_run(tmp_path, cell(method=method), updates=20)
    out = tmp_path / "out"
    for stage in ("collect", "tables"):
        result = run("report", tmp_path, "--out", out, "--stage", stage)
        assert result.exit_code == 0, result.output
    assert "DivOPD" in result.output and (out / "tables" / "main.md").exists()
    fails(
        run("report", tmp_path, "--out", tmp_path / "other", "--stage", "tables"), "summary.csv is missing", "collect"
    )


def test_doctor(suite: Path):
    result = run("doctor", "--suite", suite)
    lines = result.output.splitlines()
    assert result.exit_code == 1
    assert any(line.startswith("ok      python: 3.1") for line in lines)
    assert any("torch" in line and "core(s)" in line for line in lines)
    assert "MISSING checkpoint models/student" in result.output and "check(s) failed" in result.output


def test_a_hub_id_is_not_a_missing_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """It is looked for in the local cache, and on the hub unless HF_HUB_OFFLINE says not to."""
    monkeypatch.chdir(tmp_path)
    check = checks.checkpoint(PolicyConfig(path="Qwen/Qwen3-1.7B", revision="abc"))
    assert not check.ok and "hf download Qwen/Qwen3-1.7B --revision abc" in check.detail
    for path in ("./here", "models/alfworld/student", str(tmp_path / "x")):
        assert not checks.checkpoint(PolicyConfig(path=path)).ok


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_lines_come_every_so_often(monkeypatch: pytest.MonkeyPatch):
    now = iter(range(100))
    monkeypatch.setattr(time, "monotonic", lambda: next(now))
    stream = io.StringIO()
    with Progress("cell", "update", stream=stream, every=4.0) as progress:
        for done in range(5, 13):  # resumed at 4
            progress(done, 12, f"loss {done}")
    lines = stream.getvalue().splitlines()
    # one unit a second since the fifth: a line each four seconds, and the last one
    assert lines == [
        "cell: update 8/12, 1.00 updates/s, 0:04 left; loss 8",
        "cell: update 12/12, 1.00 updates/s; loss 12",
    ]


def test_progress_shows_the_last_state_of_a_stopped_run():
    stream = io.StringIO()
    with Progress("cell", stream=stream) as progress:
        progress(1, 3)
        progress(2, 3)
    assert stream.getvalue().count("\n") == 1 and "2/3" in stream.getvalue()


def test_progress_is_a_bar_on_a_terminal_and_can_be_silent():
    stream = Terminal()
    with Progress("cell", "update", stream=stream) as progress:
        for done in range(1, 4):
            progress(done, 3, "loss 1")
    assert "3/3" in stream.getvalue() and "loss 1" in stream.getvalue() and "\r" in stream.getvalue()
    stream = Terminal()
    with Progress("cell", style="none", stream=stream) as progress:
        progress(1, 3)
    assert stream.getvalue() == ""


def test_every_command_takes_a_suite_both_ways(suite: Path):
    """As an argument, and after --suite; commands that take results too take it after them."""
    checked = []
    for name, command in main.commands.items():
        if name == "run" or not any("--suite" in option.opts for option in command.params):
            continue  # `run` hands further arguments on to Snakemake
        checked.append(name)
        first = ["results"] if any(p.name == "results_dir" for p in command.params) else []
        suite.write_text("seeds: [0\n")
        (suite.parent / "results").mkdir(exist_ok=True)
        cell_ = ["-s", "small", "-m", "vanilla"] if name == "train" else []
        ways = ([suite], ["--suite", suite], [suite, "--suite", suite])
        said = {run(name, *first, *way, *cell_).output for way in ways}
        assert len(said) == 1 and "suite.yaml: not readable as YAML" in said.pop(), name
        two = run(name, *first, suite, "--suite", "other.yaml", *cell_)
        assert two.exit_code == 2 and "two suites" in two.output
    assert {"train", "report", "prepare", "panel", "doctor", "plan", "sweep"} <= set(checked)
    for name in ("plan", "prepare", "panel", "sweep"):
        assert "no suite: give SUITE_FILE" in run(name, *(["results"] if name == "sweep" else [])).output


@pytest.mark.parametrize("twice", ["--seed 3", "--rule divopd", "--stream a.yaml", "--run a"])
def test_replay_counts_nothing_twice(twice: str):
    result = run("replay", "--stream", "b.yaml", *twice.split(), *twice.split())
    assert result.exit_code == 2 and f"{twice.replace(' ', ': ')} is there twice" in result.output
