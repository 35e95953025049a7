"""Worker processes that end when their command is interrupted."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor
from types import TracebackType
from typing import Any, TypeVar

T = TypeVar("T")


class WorkerPool(ProcessPoolExecutor):
    """Processes that leave Ctrl-C to this one, which ends them where its `with` block is left by any exception."""

    def __init__(self, workers: int, start: str) -> None:
        super().__init__(workers, mp_context=multiprocessing.get_context(start))

    def submit(self, function: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        # processes are started here and inherit the mask
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            return super().submit(function, *args, **kwargs)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            for child in multiprocessing.active_children():
                child.terminate()
        self.shutdown(cancel_futures=kind is not None)
