"""Files that several processes write, and the lock on a run's folder."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from divopd import runlog
from divopd.cli import main
from divopd.config import RunConfig
from divopd.evaluate import evaluate_run
from divopd.files import LOCK, RunLogError, atomic_write, only_writer
from divopd.train import train
from synthetic import cell, write_run
from train_runs import quiet

HOLD = "import sys, pathlib; from divopd.files import only_writer\nwith only_writer(pathlib.Path(sys.argv[1])):\n" \
       "    print('held', flush=True); sys.stdin.read()"  # fmt: skip


@contextmanager
def another_process(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that holds the folder as long as the block lasts."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", HOLD, str(folder)], **pipes) as process:
        assert process.stdout is not None and process.stdout.readline() == "held\n"
        yield process
        if process.stdin is not None:
            process.stdin.close()


def test_writers_at_once_all_succeed(tmp_path: Path):
    path, texts = tmp_path / "a.json", [bytes([65 + i]) * 5000 for i in range(4)]

    def write(text: bytes) -> None:
        for _ in range(50):
            atomic_write(path, text)
            assert path.read_bytes() in texts

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, texts))
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_may_be_read_by_whom_the_umask_lets(tmp_path: Path):
    atomic_write(tmp_path / "a", b"1")
    (tmp_path / "b").write_bytes(b"1")
    assert (tmp_path / "a").stat().st_mode == (tmp_path / "b").stat().st_mode


def test_what_killed_writers_leave_is_removed_and_never_read(tmp_path: Path):
    run = write_run(tmp_path, cell(), updates=10)
    (run / "checkpoints").mkdir(exist_ok=True)
    left = [
        run / ".turns.parquet.0a1b.tmp",
        run / ".status.json.tmp",
        run / "checkpoints" / ".v00001.safetensors.1f.tmp",
    ]
    for path in left:
        path.write_bytes(b"half")
    runlog.validate(run)
    with runlog.writing(run):
        assert not any(path.exists() for path in left)


def test_one_process_at_a_time(tmp_path: Path):
    folder = tmp_path / "run"
    with another_process(folder) as other:
        holder = rf"run is in use by process {other.pid} on .*: wait"
        with pytest.raises(RunLogError, match=holder) as caught, only_writer(folder):
            pass
        assert "\n" not in str(caught.value)
    with only_writer(folder):
        with pytest.raises(RunLogError, match=f"process {os.getpid()}"), only_writer(folder):
            pass
        assert (folder / LOCK).exists()
    assert not folder.exists()  # no trace


def test_a_folder_of_which_nothing_came_goes_again(tmp_path: Path):
    with pytest.raises(ValueError), only_writer(tmp_path / "new"):
        raise ValueError("a check that fails before anything is written")
    assert not (tmp_path / "new").exists()
    with only_writer(tmp_path / "run"):
        (tmp_path / "run" / "log").touch()
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["log"]


def test_a_lock_ends_with_its_process(tmp_path: Path):
    with another_process(tmp_path) as other:
        other.send_signal(signal.SIGKILL)
        other.wait()
        assert (tmp_path / LOCK).exists()
        with only_writer(tmp_path):
            pass
    assert not (tmp_path / LOCK).exists()


def test_no_two_hold_it_while_others_let_go(tmp_path: Path):
    inside: list[int] = []

    def work(me: int) -> None:
        for _ in range(200):
            try:
                with only_writer(tmp_path):
                    inside.append(me)
                    assert inside == [me]
                    inside.remove(me)
            except RunLogError:
                pass

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))


def test_a_file_system_without_locks_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def refused(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refused)
    with pytest.warns(UserWarning, match="has no locks .*: start no second process"), only_writer(tmp_path):
        pass


@pytest.mark.slow
def test_a_second_command_on_a_run_stops_in_a_line(tmp_path: Path, tiny_cell: Callable[..., RunConfig]):
    config = tiny_cell(train={"updates": 2, "batch_rows": 8})
    folder = config.run_dir(tmp_path)
    (tmp_path / "cell.yaml").write_text(yaml.safe_dump(config.model_dump(mode="json")))
    command = ["train", "--config", str(tmp_path / "cell.yaml"), "--out", str(tmp_path)]

    def refused(*args: str) -> None:
        result = CliRunner().invoke(main, list(args))
        assert result.exit_code == 1 and f"{folder} is in use by process" in result.output
        assert result.output.count("\n") == 1

    with another_process(folder):
        refused(*command)
    assert train(config, folder, quiet) == "done"
    names = sorted(path.name for path in folder.iterdir())
    assert not any(name.startswith(".") for name in names)
    before = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    (tmp_path / "cell.yaml").write_text(yaml.safe_dump(config.model_dump(mode="json") | {"target": 0.5}))
    with another_process(folder):
        refused("evaluate", str(folder))
        refused(*command, "--replace")  # and what is there stays
    assert {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()} == before
    evaluate_run(folder, quiet)
    assert not (folder / LOCK).exists()
