"""One run of a suite at a time in a working folder, and nothing in the way of the next when one was killed.

`divopd run` holds a `flock` on .snakemake/divopd/<suite>.lock, and so does the Snakemake that it starts: the system
drops it with the last of them, however they end. Snakemake's own lock is a file that a kill leaves behind; it is
removed where nobody who could have written it is alive.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil

MARK = "DIVOPD_RUN"  # environment of a run's processes: the working folder and the suite
FOLDER, LOCKS = Path(".snakemake/divopd"), Path(".snakemake/locks")
GRACE = 10.0  # seconds between asking processes to end and ending them


class BusyError(RuntimeError):
    """Another run is at work on these files; one line."""


class SuiteLock:
    """The working folder's lock for one suite. Raises BusyError where another run of it is alive."""

    def __init__(self, name: str) -> None:
        self.name, self.mark = name, f"{Path.cwd()}:{name}"
        FOLDER.mkdir(parents=True, exist_ok=True)
        self.path = FOLDER / f"{name}.lock"
        self.fd = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self.fd)
            raise BusyError(f"{name}: another run of this suite is at work here, {_holder(self.path)}") from error
        self.before = self.path.read_text().split()  # who held it last: processes, then their machine

    def held_by(self, *pids: int) -> None:
        """Note who holds it, for the message that another run gets."""
        os.ftruncate(self.fd, 0)
        os.pwrite(self.fd, " ".join([*map(str, pids), socket.gethostname()]).encode(), 0)

    def release(self) -> None:
        os.close(self.fd)

    def clear(self, say: Callable[[str], None]) -> None:
        """End the jobs of a run that was killed, and remove Snakemake's locks that nobody holds any more."""
        left = [process for process in _ours() if _environment(process).get(MARK) == self.mark]
        if left:
            end(left)
            say(f"{self.name}: ended {len(left)} processes that a killed run of this suite had left")
        stale = self._stale()
        for path in stale:
            path.unlink(missing_ok=True)
        if stale:
            say(f"{self.name}: removed the Snakemake lock of a run that was killed")

    def busy(self) -> str:
        """What is told where Snakemake finds its lock taken."""
        others = [str(process.pid) for process in snakemakes()]
        if others:
            return f"another snakemake (process {', '.join(others)}) is at work on these files: wait until it has ended"
        there = f" on {self.before[-1]}" if self.before and self.before[-1] != socket.gethostname() else ""
        return (
            f"these files are locked by another run{there}; once none is alive: "
            f"rm {LOCKS}/*.lock, then the same command again"
        )

    def _stale(self) -> list[Path]:
        locks = sorted(LOCKS.glob("*.lock"))
        elsewhere = bool(self.before) and self.before[-1] != socket.gethostname()
        if not locks or elsewhere or any(MARK not in _environment(process) for process in snakemakes()):
            return []
        if not any(_held(path) for path in FOLDER.glob("*.lock") if path != self.path):
            return locks
        # other suites are at work, each on files of its own
        own = (f"results/{self.name}/", f"figures/{self.name}/")
        return [path for path in locks if any(line.startswith(own) for line in path.read_text().splitlines())]


def snakemakes() -> list[psutil.Process]:
    """Snakemake's processes that work in this folder."""
    return [process for process in _ours() if _is_snakemake(process)]


def end(processes: list[psutil.Process]) -> None:
    """Ask processes to end as Ctrl-C does; those that have not after GRACE seconds are killed."""
    for sign in (signal.SIGINT, signal.SIGKILL):
        for process in processes:
            with contextlib.suppress(psutil.Error):
                process.send_signal(sign)
        _, processes = psutil.wait_procs(processes, timeout=GRACE)


def group(number: int) -> list[psutil.Process]:
    """What is alive of a process group."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(OSError, psutil.Error):
            if os.getpgid(process.pid) == number and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def _ours() -> Iterator[psutil.Process]:
    """Other processes whose working folder is this one."""
    here = os.getcwd()
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            alive = process.status() != psutil.STATUS_ZOMBIE
            if alive and process.pid != os.getpid() and process.cwd() == here:
                yield process


def _is_snakemake(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        words = process.cmdline()[:4]
        script = any(Path(word).name == "snakemake" for word in words[:2])
        return script or any(pair == ("-m", "snakemake") for pair in zip(words, words[1:], strict=False))
    return False


def _environment(process: psutil.Process) -> dict[str, str]:
    with contextlib.suppress(psutil.Error, OSError):
        return dict(process.environ())
    return {}


def _held(path: Path) -> bool:
    with path.open("rb") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return True
    return False


def _holder(path: Path) -> str:
    """Which process to wait for, and how it is stopped. It may have taken the lock just now and not be written yet."""
    words: list[str] = []
    for _ in range(10):
        if words := path.read_text().split():
            break
        time.sleep(0.1)
    *pids, host = words or ["?"]
    if host != socket.gethostname():
        return f"on {host}: wait until it has ended"
    alive = next((pid for pid in pids if psutil.pid_exists(int(pid))), "?")
    # without `divopd run` above it, Snakemake takes SIGTERM as: after the jobs that are under way
    stop = f"kill {alive}" if alive == pids[0] else f"kill -INT -{alive}"
    return f"process {alive}: wait until it has ended, or stop it with `{stop}`"
