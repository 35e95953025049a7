"""`divopd run`: what a person sees, what comes after a kill or Ctrl-C. Snakemake is real, its jobs are stand-ins."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
import yaml

from divopd.provenance import ROOT

SNAKEFILE = """
RUNS = "results/tiny/{setting}/{method}/seed{seed}/status.json"

rule all:
    default_target: True
    input: expand(RUNS, setting="tiny", method=["vanilla", "divopd"], seed=0)

rule train:
    output: RUNS
    log: "results/tiny/logs/{setting}.{method}.seed{seed}.log"
    shell: "PYTHON job.py {wildcards.method} {output} 2>&1 | tee {log}"
"""
JOB = """
import os, pathlib, sys, time
method, out = sys.argv[1:]
if pathlib.Path(f"fail-{method}").exists():
    print("/x/divopd/store.py:1: UserWarning: a full disk\\nWARNING divopd: a lost worker")
    print("Error: no such model\\n", flush=True)
    sys.exit(1)
if pathlib.Path("slow").exists():
    pathlib.Path(f"pid-{method}").write_text(str(os.getpid()))
    for i in range(600):
        print(f"tiny/{method}/0: update {i}/600, 10.00 updates/s", flush=True)
        time.sleep(0.1)
pathlib.Path(out).write_text("{}")
"""


@pytest.fixture
def suite(tmp_path: Path) -> Iterator[Path]:
    """A folder with a suite of two cells whose trainings are JOB; a file `slow` makes them last a minute."""
    (tmp_path / "workflow").mkdir()
    for part in ("plugins", "profiles"):
        (tmp_path / "workflow" / part).symlink_to(ROOT / "workflow" / part)
    (tmp_path / "workflow" / "Snakefile").write_text(SNAKEFILE.replace("PYTHON", sys.executable))
    (tmp_path / "job.py").write_text(JOB)
    settings = tmp_path / "experiments" / "settings"
    settings.mkdir(parents=True)
    policies = {"student": {"path": "models/a"}, "teacher": {"path": "models/b"}}
    (settings / "tiny.yaml").write_text(yaml.safe_dump({"cap": 2} | policies))
    content = {"name": "tiny", "settings": ["tiny"], "methods": ["vanilla", "divopd"]}
    (tmp_path / "experiments" / "tiny.yaml").write_text(yaml.safe_dump(content))
    yield tmp_path
    for process in here(tmp_path):
        process.kill()


def here(folder: Path) -> list[psutil.Process]:
    """What is alive of the processes that work in a folder."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.status() != psutil.STATUS_ZOMBIE and process.cwd() == str(folder):
                found.append(process)
        except psutil.Error:
            pass
    return found


def start(folder: Path, *args: str, command: tuple[str, ...] = ("divopd.cli", "run"), **env: str) -> subprocess.Popen:
    """`divopd run` as a terminal starts it, in a process group of its own."""
    file = ("--configfile",) if command[0] == "snakemake" else ()
    return subprocess.Popen(
        [sys.executable, "-m", *command, *file, "experiments/tiny.yaml", "--cores", "2", *args],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": str(folder / ".xdg")} | env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def run(folder: Path, *args: str, **env: str) -> tuple[int, str]:
    process = start(folder, *args, **env)
    said, _ = process.communicate(timeout=120)
    return process.returncode, said


def wait_for(what: Callable[[], object], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def at_work(folder: Path) -> list[int]:
    """Start both trainings, which then last a minute; their processes."""
    pids = [folder / f"pid-{method}" for method in ("vanilla", "divopd")]
    wait_for(lambda: all(path.is_file() and path.read_text() for path in pids))
    return [int(path.read_text()) for path in pids]


def alive(pids: list[int]) -> list[int]:
    return [pid for pid in pids if psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE]


@pytest.mark.slow
def test_a_line_for_each_start_and_end(suite: Path):
    code, said = run(suite)
    assert code == 0, said
    lines = said.splitlines()
    assert lines[0] == "tiny: 2 jobs (2 train) on 2 cores"
    assert {line for line in lines if "start" in line} == {
        f"[0/2] start train tiny {method} seed 0" for method in ("vanilla", "divopd")
    }
    assert [re.sub(r"\(0:\d\d\).*", "", line)[:17] for line in lines[-2:]] == ["[1/2] done  train", "[2/2] done  train"]
    assert len(lines) == 5  # no reasons, no lists of files
    code, said = run(suite)
    assert (code, said) == (0, "tiny: everything is there and up to date\n")


@pytest.mark.slow
def test_failed_jobs_are_named_with_their_error(suite: Path):
    (suite / "fail-vanilla").touch()
    code, said = run(suite)
    assert code == 1
    log = "results/tiny/logs/tiny.vanilla.seed0.log"
    assert said.count(f"train tiny vanilla seed 0: no such model ({log})") == 2, said  # as it fails, and at the end
    assert "warning: a full disk (train tiny vanilla seed 0)" in said
    assert "warning: a lost worker (train tiny vanilla seed 0)" in said
    assert "tiny: 1 of 2 jobs failed\n" in said and "divopd report results/tiny" in said
    assert "Traceback" not in said and "CalledProcessError" not in said and len(said.splitlines()) < 12
    (suite / "fail-vanilla").unlink()
    code, said = run(suite)
    assert code == 0 and "divopd" not in said  # the other one is kept


@pytest.mark.slow
@pytest.mark.parametrize("killed", ["snakemake", "both"])
def test_after_a_kill_the_next_run_goes_on(suite: Path, killed: str):
    (suite / "slow").touch()
    first = start(suite)
    jobs = at_work(suite)
    [snakemake] = psutil.Process(first.pid).children()
    snakemake.kill()
    if killed == "both":
        first.kill()
    said, _ = first.communicate(timeout=60)
    assert list((suite / ".snakemake" / "locks").glob("*.lock"))
    if killed == "snakemake":
        assert first.returncode == 137 and "ended by signal 9; the same command goes on" in said
        assert not alive(jobs)
    else:
        assert alive(jobs) == jobs  # nobody was left to end them
    (suite / "slow").unlink()
    code, said = run(suite)
    assert code == 0, said
    assert "tiny: removed the Snakemake lock of a run that was killed" in said
    assert ("processes that a killed run of this suite had left" in said) == (killed == "both")
    assert not alive(jobs)


@pytest.mark.slow
@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_it_ends_its_jobs_and_goes_on_later(suite: Path, sign: signal.Signals):
    (suite / "slow").touch()
    first = start(suite)
    jobs = at_work(suite)
    code, said = run(suite)  # another terminal
    assert code == 1 and len(said.splitlines()) == 1
    assert f"another run of this suite is at work here, process {first.pid}: wait" in said
    if sign == signal.SIGINT:
        os.killpg(first.pid, sign)  # as a terminal does
    else:
        first.terminate()
    said, _ = first.communicate(timeout=60)
    assert first.returncode == 128 + sign
    after = said[said.index("interrupted") :].splitlines()
    assert len(after) == 2 and "the same command goes on" in after[1], said
    assert "FAILED" not in said and "Traceback" not in said
    assert not alive(jobs) and not here(suite)
    (suite / "slow").unlink()
    code, said = run(suite)
    assert code == 0 and "lock" not in said, said


@pytest.mark.slow
def test_a_plain_snakemake_is_waited_for_alive_and_cleared_away_dead(suite: Path):
    (suite / "slow").touch()
    plain = start(suite, command=("snakemake",))
    jobs = at_work(suite)
    code, said = run(suite)
    assert code == 1 and said.splitlines() == [
        f"tiny: another snakemake (process {plain.pid}) is at work on these files: wait until it has ended"
    ]
    assert alive(jobs) == jobs
    os.killpg(plain.pid, signal.SIGKILL)
    plain.communicate()
    (suite / "slow").unlink()
    code, said = run(suite)
    assert code == 0 and "removed the Snakemake lock" in said, said


@pytest.mark.slow
def test_two_suites_at_once_and_a_lock_of_a_third(suite: Path):
    """What another suite's run has locked stays, and what a killed run of this one left goes."""
    (suite / "slow").touch()
    other = (suite / "experiments" / "tiny.yaml").read_text().replace("name: tiny", "name: other")
    (suite / "experiments" / "other.yaml").write_text(other)
    busy = start(suite)
    at_work(suite)
    theirs = {path: path.read_text() for path in (suite / ".snakemake" / "locks").iterdir()}
    stale = suite / ".snakemake" / "locks" / "7.output.lock"
    stale.write_text("results/other/tiny/vanilla/seed0/status.json\n")
    process = subprocess.run(
        [sys.executable, "-m", "divopd.cli", "run", "experiments/other.yaml", "--", "--until", "nothing"],
        cwd=suite, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert "other: removed the Snakemake lock" in process.stdout
    assert {path: path.read_text() for path in (suite / ".snakemake" / "locks").iterdir()} == theirs
    busy.kill()


@pytest.mark.slow
def test_what_snakemake_says_is_shown_on_demand(suite: Path):
    code, said = run(suite, "--", "--dry-run")
    assert (code, said) == (0, "tiny: 2 jobs (2 train) to run\n")
    code, said = run(suite, "--", "--list-rules")
    assert code == 0 and said.split() == ["all", "train"]
    code, said = run(suite, "results/tiny/tiny/divopd/seed0/status.json")  # a target
    assert code == 0 and "[1/1] done  train tiny divopd seed 0" in said
    code, said = run(suite, "--verbose")
    assert code == 0 and "1 of 2 steps" in said and "rule train:" in said and "[0/1] start" in said


@pytest.mark.slow
def test_a_workflow_that_cannot_start_is_one_line(suite: Path):
    snakefile = suite / "workflow" / "Snakefile"
    snakefile.write_text(snakefile.read_text() + '\nraise WorkflowError("no panel here")\n')
    code, said = run(suite)
    assert code == 1 and said == "Error: no panel here\n"
    code, said = run(suite / "experiments", "--suite", "tiny.yaml")
    assert code == 1 and said == "Error: no workflow/Snakefile here: run it from the root of the repository\n"


@pytest.mark.slow
def test_a_home_that_is_not_there(suite: Path):
    code, said = run(suite, HOME="/dev/null/x", XDG_CACHE_HOME="")
    assert code == 0 and said.endswith("\n") and "[2/2] done" in said, said
