"""Start Snakemake on a suite, show what it does, pass signals on, and say how it ended."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from divopd.console import lock
from divopd.console.ending import ending
from divopd.console.view import Console, log_lines

PLUGINS = Path("workflow/plugins")
STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
PATIENCE = 30.0  # seconds that jobs get to end after Ctrl-C


class Run:
    """One run of a suite's workflow. `further`: arguments for Snakemake. Raises BusyError where one is alive."""

    def __init__(self, suite: Path, name: str, cores: int, verbose: bool, further: Sequence[str]) -> None:
        self.name, self.cores, self.verbose = name, cores, verbose
        # with "=", as these options would take a target that follows for one more value
        self.command = [sys.executable, "-m", "snakemake", f"--configfile={suite}", "--logger=divopd"]
        if not any(word.startswith("--profile") for word in further):  # which says how many jobs at a time
            self.command.append(f"--cores={cores}")
        self.command += further
        self.said = lock.FOLDER / f"{name}.txt"  # what Snakemake and its jobs print, which is not shown
        self.console = Console(sys.stdout, name, cores)
        self.stopped: signal.Signals | None = None
        self._since = 0.0
        self._child: subprocess.Popen[bytes] | None = None

    def __call__(self) -> int:
        """Run it to its end: Snakemake's exit code, or 128 + the signal that stopped it."""
        held = lock.SuiteLock(self.name)
        mine = dict.fromkeys(STOPS, self._stop) | {signal.SIGTSTP: self._pause}
        # what is ignored, as `nohup` has it, stays so
        before = {sign: old for sign in mine if (old := signal.getsignal(sign)) != signal.SIG_IGN}
        for sign in before:
            signal.signal(sign, mine[sign])
        try:
            held.clear(self.console.say)
            return self._end(self._run(held), held)
        finally:
            for sign, handler in before.items():
                signal.signal(sign, handler)
            held.release()

    def _run(self, held: lock.SuiteLock) -> int:
        events, theirs = os.pipe()
        paths = [str(PLUGINS.resolve()), *filter(None, [os.environ.get("PYTHONPATH")])]
        env = os.environ | {"DIVOPD_EVENTS": str(theirs), lock.MARK: held.mark, "PYTHONPATH": os.pathsep.join(paths)}
        env |= {"DIVOPD_VERBOSE": "1"} if self.verbose else {}
        with self.said.open("wb") as said:
            # a process group of its own: every stop reaches all of its jobs, and once, whoever sent it
            self._child = subprocess.Popen(
                self.command,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=None if self.verbose else said,
                stderr=None if self.verbose else subprocess.STDOUT,
                pass_fds=[theirs, held.fd],
                process_group=0,
                preexec_fn=_hear_interrupts,
            )
        os.close(theirs)
        held.held_by(os.getpid(), self._child.pid)
        if self.stopped:  # while it was being started
            self._tell(signal.SIGINT)
        try:
            self._watch(events)
            return self._child.wait()
        finally:
            self.console.close()
            lock.end(lock.group(self._child.pid))  # it was killed, they were not

    def _watch(self, events: int) -> None:
        """Show events until Snakemake ends."""
        rest, told = b"", False
        assert self._child is not None
        while True:
            ready, _, _ = select.select([events], [], [], 1.0)
            if self.stopped and not told:
                told = True
                self.console.say(f"{self.name}: interrupted, the jobs under way end now (once more: at once)")
            if ready:
                got = os.read(events, 65536)
                *lines, rest = (rest + got).split(b"\n")
                for line in lines:
                    self.console.event(json.loads(line))
                if not got:
                    break
            elif self._child.poll() is not None:
                break
            if self.stopped and time.monotonic() - self._since > PATIENCE:
                self._tell(signal.SIGKILL)
            if not self.verbose:
                self.console.tick()
        os.close(events)

    # signals ---------------------------------------------------------------------------------------------------------

    def _stop(self, number: int, frame: FrameType | None) -> None:
        again, self.stopped = self.stopped is not None, signal.Signals(number)
        if not again:
            self._since, self.console.stopping = time.monotonic(), True  # said later: it may be in the midst of a line
        self._tell(signal.SIGKILL if again else signal.SIGINT)

    def _pause(self, number: int, frame: FrameType | None) -> None:
        """Ctrl-Z: the jobs pause with this process, and go on with it."""
        self._tell(signal.SIGSTOP)
        os.kill(os.getpid(), signal.SIGSTOP)
        self._tell(signal.SIGCONT)

    def _tell(self, sign: signal.Signals) -> None:
        """Snakemake and its jobs."""
        if self._child is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._child.pid, sign)

    # the end ---------------------------------------------------------------------------------------------------------

    def _end(self, code: int, held: lock.SuiteLock) -> int:
        console = self.console
        if self.stopped:
            console.say(
                f"{self.name}: stopped at {console.done} of {console.total} jobs; the same command goes on "
                "(a training from its last resume point)"
            )
            return 128 + self.stopped
        if code < 0:
            console.say(f"{self.name}: Snakemake was ended by signal {-code}; the same command goes on")
            return 128 - code
        if console.locked:
            console.say(f"{self.name}: {held.busy()}")
        elif code:
            self._failed()
        elif not console.dryrun:
            if not console.started and not self.verbose:  # it was asked for something else, or had nothing to do
                console.say("\n".join(self._said()) or f"{self.name}: everything is there and up to date")
            for line in ending(self.name):
                console.say(line)
        return code

    def _failed(self) -> None:
        console = self.console
        if console.failed:
            waiting = console.total - console.done - len(console.failed)
            also = f", {waiting} that need them could not start" if waiting else ""
            console.say(f"{self.name}: {len(console.failed)} of {console.total} jobs failed{also}")
            for what in console.failed.values():
                console.say(f"  {what}")
            console.say(
                "The same command tries these again and keeps the others; "
                f"a report on those that finished: divopd report results/{self.name}"
            )
        elif console.errors:
            console.say("\n".join(f"Error: {error}" for error in console.errors))
        elif not self.verbose:
            console.say("\n".join(self._said()[-5:]) or "Error: Snakemake ended without a word")

    def _said(self) -> list[str]:
        """What Snakemake and its jobs printed."""
        return [line for line in log_lines(self.said) if not line.startswith("Using workflow specific profile")]


def _hear_interrupts() -> None:
    """In Snakemake before it starts: shells start what ends in `&` with SIGINT ignored, and jobs are ended by it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
