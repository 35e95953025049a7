"""Ctrl-C and SIGTERM during a command: what of its work is kept, in one line."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType

import click

AGAIN = "nothing was written, the same command starts over"
# what the same command does then; the others start over, in seconds or minutes
KEPT = {
    "train": "the same command goes on from the run's last resume point (one every pipeline.save_every updates)",
    "evaluate": "checkpoints that were evaluated are kept, the same command goes on with the next",
    "models": "stages that ended are kept, the same command goes on with the one that was under way",
    "prepare": "games that were compiled are kept, the same command goes on with the others",
    "report": "the same command makes its files again; no run is touched",
    "redraw": "the same command draws all suites again; no run is touched",
    "sweep": "the same command makes its files again; no run is touched",
    "play": "",
}


def interrupted(command: str | None, stop: BaseException) -> click.exceptions.Exit:
    """Say in one line what is kept; the end of the process, with exit code 128 + the signal's number."""
    kept = KEPT.get(command or "", AGAIN)
    with contextlib.suppress(OSError):  # the reader of a pipe may have been interrupted as well
        click.echo(f"interrupted: {kept}" if kept else "interrupted", err=True)
    return click.exceptions.Exit(128 + (signal.SIGTERM if isinstance(stop, Terminated) else signal.SIGINT))


class Terminated(KeyboardInterrupt):
    """SIGTERM, which ends a command as Ctrl-C does."""


@contextlib.contextmanager
def terminable() -> Iterator[None]:
    """SIGTERM raises Terminated meanwhile, in this process alone."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    here = os.getpid()

    def stop(number: int, frame: FrameType | None) -> None:
        if os.getpid() == here:
            raise Terminated
        signal.signal(number, signal.SIG_DFL)  # a forked worker
        os.kill(os.getpid(), number)

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
