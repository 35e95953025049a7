"""Ctrl-C and SIGTERM end a command in one line that says what is kept, whatever it was doing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from divopd import interrupts
from divopd.cli import main
from divopd.config import RunConfig
from divopd.provenance import ROOT


def interrupted(sign: signal.Signals, when: Callable[[], object], *args: str) -> tuple[int, list[str]]:
    """Exit code and the lines but progress of a command that gets a signal, as from a terminal, when `when` holds."""
    process = subprocess.Popen(
        [sys.executable, "-m", "divopd.cli", *args],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    deadline = time.monotonic() + 120
    while not when():
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.02)
    os.killpg(process.pid, sign)
    said, _ = process.communicate(timeout=60)
    return process.returncode, said.splitlines()


@pytest.mark.slow
@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM])
def test_training_goes_on_from_its_resume_point(tiny_cell: Callable[..., RunConfig], tmp_path: Path, sign: int):
    cell = tiny_cell(train={"updates": 4000, "batch_rows": 8, "learning_rate": 1e-3})
    file, out = tmp_path / "config.yaml", tmp_path / "results"
    file.write_text(cell.model_dump_json())
    args = ("train", "--config", str(file), "--out", str(out), "--progress", "none")
    point = cell.run_dir(out) / "resume" / "state.pt"
    code, lines = interrupted(sign, point.exists, *args)
    assert code == 128 + sign
    assert lines == [f"interrupted: {interrupts.KEPT['train']}"]
    code, lines = interrupted(sign, lambda: True, *args)  # at once: while it imports or loads
    assert code in (128 + sign, -sign) and point.exists()


@pytest.mark.slow
def test_a_pool_of_processes_ends_at_once_and_without_traces(tmp_path: Path):
    """Games by the hundred, in processes that are importing or compiling: neither is waited for."""
    suite = tmp_path / "suite.yaml"
    (tmp_path / "settings").mkdir()
    policies = "student: {path: a}\nteacher: {path: b}\n"
    env = f"env: {{cache_dir: {tmp_path / 'games'}, train_tasks: 'gen/train/0:3000'}}\n"
    (tmp_path / "settings" / "tiny.yaml").write_text(f"cap: 2\n{policies}{env}")
    suite.write_text("name: tiny\nsettings: [tiny]\nmethods: [vanilla]\n")
    args = ("prepare", "--suite", str(suite), "--workers", "2", "--progress", "none")

    def importing() -> bool:
        """It has started its processes."""
        return any(child.children() for child in psutil.Process().children() if str(suite) in child.cmdline())

    for when in (importing, lambda: any((tmp_path / "games").rglob("*"))):
        code, lines = interrupted(signal.SIGINT, when, *args)
        assert (code, lines) == (130, [f"interrupted: {interrupts.KEPT['prepare']}"])


def test_every_promise_is_of_a_command():
    assert set(interrupts.KEPT) <= set(main.commands)
