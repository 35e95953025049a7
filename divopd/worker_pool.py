"""Worker processes that end when their command is interrupted."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from types import TracebackType
from typing import Any, TypeVar

T = TypeVar("T")


@contextlib.contextmanager
def deferred() -> Iterator[None]:
    """SIGINT and SIGTERM take effect afterwards. Processes that are started meanwhile never see a SIGINT.

    The mask is for those processes. It does not keep Python from running a handler here, between a process's start and
    its registration, where another thread takes the signal; so the handlers wait too.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    handlers = {
        number: signal.signal(number, lambda number, _: came.append(number))
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for late in came:
            os.kill(os.getpid(), late)


class WorkerPool(ProcessPoolExecutor):
    """Processes that leave Ctrl-C to this one, which ends them where its `with` block is left by any exception."""

    def __init__(self, workers: int, start: str) -> None:
        # a forked process has the handler of the moment, which only takes note
        ends = (signal.SIGTERM, signal.SIG_DFL)
        super().__init__(workers, multiprocessing.get_context(start), initializer=signal.signal, initargs=ends)

    def submit(self, function: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        with deferred():  # processes are started here
            return super().submit(function, *args, **kwargs)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            for child in multiprocessing.active_children():
                child.terminate()
        self.shutdown(cancel_futures=kind is not None)
