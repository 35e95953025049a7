"""Snakemake's events as lines for a person: what starts and ends, how long is left, what went wrong and where."""

from __future__ import annotations

import contextlib
import re
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from divopd.console.estimate import TimeLeft
from divopd.progress import clock

# rules that only name what is wanted
TARGETS = frozenset({"all", "audits", "replay_streams"})
QUICK = frozenset({"collect", "tables", "figures", "page", "html", "sweep"})
WORDS = {
    "games": "compile games",
    "train": "train {setting} {method} seed {seed}",
    "evaluate": "evaluate {setting} {method} seed {seed}",
    "audit": "audit {setting} {method} seed {seed} update {at}",
    "collect": "collect the logs",
    "page": "report.md",
    "html": "report.html",
}
SILENCE = 120.0  # seconds after which a log gets a line all the same
COUNTED = re.compile(r": (\w+ \d+/\d+)")  # of divopd/progress.py
OURS = re.compile(r"/divopd/\S+: UserWarning: (.+)|^WARNING divopd: (.+)")


@dataclass
class Job:
    """One job of Snakemake's."""

    rule: str
    words: str
    log: Path | None
    began: float  # by the console's clock
    since: float = field(default_factory=time.time)


def job_words(rule: str, wildcards: Mapping[str, str]) -> str:
    """What a job does, for a person."""
    try:
        return WORDS[rule].format(**wildcards)
    except KeyError:
        return " ".join([rule, *wildcards.values()])


def log_lines(path: Path | None, last: int = 0, since: float = 0.0) -> list[str]:
    """Lines of a job's log, of its last bytes alone where `last` is given; none where it cannot be read, or was written
    before `since`, by the same job of an earlier run.
    """
    try:
        if path is None or path.stat().st_mtime < since:
            return []
        with path.open("rb") as handle:
            handle.seek(max(path.stat().st_size - last, 0) if last else 0)
            return [line.rstrip() for line in handle.read().decode(errors="replace").splitlines() if line.strip()]
    except OSError:
        return []


def failure(lines: list[str]) -> str:
    """The one line of a failed job's log that says what went wrong."""
    said = next((line for line in reversed(lines) if line.startswith("Error: ")), lines[-1] if lines else "no log")
    return said.removeprefix("Error: ")[:400]


def reason(message: str) -> str:
    """One line of what Snakemake says of a suite that cannot run."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    if lines and lines[0].startswith("Traceback"):
        return lines[-1][:400]
    told = [line for line in lines if not re.match(r"\w+ in (file|rule) |File \"", line)]
    return " ".join(told or lines)[:400]


class Console:
    """Call `event` with each of Snakemake's and `tick` about once a second."""

    def __init__(self, stream: TextIO, name: str, cores: int, now: Callable[[], float] = time.monotonic) -> None:
        self.stream, self.name, self.cores, self.now = stream, name, cores, now
        self.live = stream.isatty()
        self.running: dict[int, Job] = {}
        self.failed: dict[int, str] = {}  # job -> what it was and what went wrong
        self.errors: list[str] = []  # of Snakemake itself
        self.locked = self.dryrun = self.stopping = False
        self.started = self.done = self.total = 0
        self.times = TimeLeft({}, cores)
        self._warned: set[str] = set()
        self._drawn, self._said = False, now()

    def say(self, line: str) -> None:
        """A line that stays, above the status line."""
        self._write(f"{line}\n")
        self._said = self.now()

    def event(self, said: Mapping[str, Any]) -> None:
        handler = getattr(self, f"_{said.get('event')}", None)
        if handler is not None:
            handler(said)

    def tick(self) -> None:
        """Show what runs: always on a terminal, after a silence elsewhere."""
        if self.stopping or not self.running:
            return
        if self.live:
            self._write(self._status()[: shutil.get_terminal_size().columns - 1])
            self._drawn = True
        elif self.now() - self._said >= SILENCE:
            self.say(self._status())

    def close(self) -> None:
        """Take the status line away."""
        self._write("")

    # events ----------------------------------------------------------------------------------------------------------

    def _run_info(self, said: Mapping[str, Any]) -> None:
        counts = {rule: n for rule, n in said["stats"].items() if rule not in TARGETS | {"total"}}
        if said["dryrun"] and self.dryrun:
            return  # it comes twice
        self.dryrun, self.total = said["dryrun"], sum(counts.values())
        self.times = TimeLeft(counts, self.cores)
        parts = [f"{n} {rule}" for rule, n in counts.items() if n > 1]
        if parts and (once := sum(n == 1 for n in counts.values())):
            parts.append(f"{once} more")
        if self.total:
            jobs = f"{self.total} jobs" + (f" ({', '.join(parts)})" if parts else "")
            self.say(f"{self.name}: {jobs} " + ("to run" if self.dryrun else f"on {self.cores} cores"))

    def _job_info(self, said: Mapping[str, Any]) -> None:
        if said["rule_name"] in TARGETS or said["dryrun"]:
            return
        log = Path(said["log"][0]) if said["log"] else None
        job = Job(said["rule_name"], job_words(said["rule_name"], said["wildcards"]), log, self.now())
        self.running[said["jobid"]] = job
        if self.failed.pop(said["jobid"], None):  # tried again
            self.times.failed[job.rule] -= 1
        self.started += 1
        if self.live or job.rule not in QUICK:  # of those the end is enough
            self.say(f"{self._count()} start {job.words}")

    def _job_finished(self, said: Mapping[str, Any]) -> None:
        job = self.running.pop(said["job_id"], None)
        if job is None:
            return
        self.done += 1
        seconds = self.now() - job.began
        self.times.finished(job.rule, seconds)
        lines = log_lines(job.log)
        self._warn(lines, job)
        diverged = job.rule == "train" and bool(lines) and lines[-1].endswith(": diverged")
        left = self._left()
        self.say(
            f"{self._count()} done  {job.words} ({clock(seconds)})"
            + (f": its weights diverged, {job.log}" if diverged else "")
            + (f"; {left}" if left else "")
        )

    def _job_error(self, said: Mapping[str, Any]) -> None:
        job = self.running.pop(said["jobid"], None)
        if job is None or self.stopping:
            return
        self.times.failed[job.rule] += 1
        lines = log_lines(job.log)
        self._warn(lines, job)
        self.failed[said["jobid"]] = f"{job.words}: {failure(lines)} ({job.log})"
        self.say(f"{self._count()} FAILED {self.failed[said['jobid']]}")

    def _error(self, said: Mapping[str, Any]) -> None:
        if said["exception"] == "LockException":
            self.locked = True
        elif not self.stopping and not self.failed:  # else it only says that jobs failed
            self.errors.append(reason(said["message"]))

    def _warn(self, lines: list[str], job: Job) -> None:
        for line in lines:
            if (found := OURS.search(line)) and (text := found[1] or found[2]) not in self._warned:
                self._warned.add(text)
                self.say(f"warning: {text} ({job.words})")

    # lines -----------------------------------------------------------------------------------------------------------

    def _count(self) -> str:
        return f"[{self.done:>{len(str(self.total))}}/{self.total}]"

    def _left(self) -> str:
        seconds = self.times.left((job.rule, self.now() - job.began) for job in self.running.values())
        return f"about {clock(seconds)} left" if seconds and self.done < self.total else ""

    def _status(self) -> str:
        parts = []
        for job in self.running.values():
            lines = log_lines(job.log, 2000, job.since)
            counted = [found[1] for line in lines if (found := COUNTED.search(line))]
            at = f"{counted[-1]}, " if counted else ""
            parts.append(f"{job.words} ({at}{clock(self.now() - job.began)})")
        left = self._left()
        return f"{self._count()} " + "; ".join([*([left] if left else []), *parts])

    def _write(self, text: str) -> None:
        """In place of the status line. A terminal that was closed does not end the run."""
        with contextlib.suppress(OSError):
            self.stream.write(("\r\x1b[K" if self._drawn else "") + text)
            self.stream.flush()
        self._drawn = False
