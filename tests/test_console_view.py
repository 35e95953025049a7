"""What `divopd run` makes of Snakemake's events: words, time left, a terminal's status line, the table at the end."""

from __future__ import annotations

import io
import os
import re
from pathlib import Path

import pytest

from divopd.console.ending import ending
from divopd.console.estimate import TimeLeft
from divopd.console.view import QUICK, TARGETS, WORDS, Console, reason
from divopd.provenance import ROOT


def test_words_are_of_rules_that_there_are():
    text = "\n".join(path.read_text() for path in (ROOT / "workflow").rglob("*") if path.suffix in ("", ".smk")
                     and path.is_file())  # fmt: skip
    rules = {name: body for name, body in re.findall(r"^rule (\w+):\n(.*?)(?=^\S|\Z)", text, re.DOTALL | re.MULTILINE)}
    assert {name for name, body in rules.items() if "shell:" not in body} == TARGETS
    assert set(WORDS) | QUICK <= set(rules)


def test_time_left_counts_what_is_left_by_its_rule():
    times = TimeLeft({"games": 1, "train": 3, "evaluate": 3, "page": 1}, cores=2)
    times.finished("games", 500.0)
    assert times.left([]) is None  # nothing that runs again has finished
    times.finished("train", 60.0)
    # 2 trainings, of which one began 20 s ago; no evaluation yet, so 3 at a training's price; the page
    assert times.left([("train", 20.0)]) == (40 + 60 + 3 * 60 + 10) / 2
    times.finished("evaluate", 30.0)
    assert times.left([("train", 20.0)]) == (40 + 60 + 2 * 30 + 10) / 2
    assert TimeLeft({"train": 2}, cores=8).left([("train", 0.0)]) is None


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_shows_how_far_jobs_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "200")
    log = tmp_path / "a.log"
    clock = [0.0]
    wildcards = {"setting": "tiny", "method": "divopd", "seed": "0"}
    begin = {"event": "job_info", "jobid": 3, "rule_name": "train", "wildcards": wildcards, "log": [str(log)]}
    for screen in (Terminal(), io.StringIO()):
        console = Console(screen, "tiny", 2, now=lambda: clock[0])
        console.event({"event": "run_info", "stats": {"train": 2, "all": 1, "total": 3}, "dryrun": False})
        log.write_text("tiny/divopd/0: update 31/32\n")  # of an earlier run
        os.utime(log, (0, 0))
        console.event(begin | {"dryrun": False, "shellcmd": "x"})
        console.tick()
        log.write_text("tiny/divopd/0: update 4/32\ntiny/divopd/0: update 5/32, 1.00 updates/s, 0:27 left; 9 s\n")
        for second in (1.0, 70.0, 200.0):
            clock[0] += second
            console.tick()
        shown = screen.getvalue().count("train tiny divopd seed 0 (update 5/32, ")
        assert shown == (3 if screen.isatty() else 1)  # a log hears of it after two minutes of silence
        log.write_text(log.read_text() + "results/x: diverged\n")
        console.event({"event": "job_finished", "job_id": 3})
        last = re.split("\r\x1b\\[K|\n", screen.getvalue())[-2]
        assert last.startswith("[1/2] done  train tiny divopd seed 0 (4:31): its weights diverged"), last
        assert "31/32" not in screen.getvalue()


def test_reasons_are_one_line():
    said = 'WorkflowError in file "/a/workflow/rules/common.smk", line 23:\nexperiments/x.yaml: unknown key sedes'
    assert reason(said) == "experiments/x.yaml: unknown key sedes"
    assert reason('Traceback (most recent call last):\n  File "x", line 1\nKeyError: 3') == "KeyError: 3"


def test_the_end_shows_the_table_of_the_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "demo").symlink_to(ROOT / "results" / "demo-reference")
    monkeypatch.chdir(tmp_path)
    lines = ending("demo")
    assert lines[1].split() == ["Setting", "Method", "Start", "Peak", "Final-5", "Token", "speedup"]
    assert len(lines) <= 16 and len({len(line) for line in lines[1:11]}) == 1  # nine rows, in columns
    page = (ROOT / "results" / "demo-reference" / "report.md").read_text()
    for word in re.findall(r"[\d.]+", " ".join(lines[2:11])):
        assert word in page
    assert any("results/demo/report.html" in line for line in lines)
    assert sum("left out" in line for line in lines) == 1
    assert ending("none") == []
