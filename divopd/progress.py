"""Progress: a bar with rate and time left on a terminal, a plain line every so often in a log."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Any, Literal, Self, TextIO

Style = Literal["auto", "bar", "lines", "none"]


class Progress:
    """Call it with (units done, units in all, a few words). Use as a context manager, or call `close`.

    `style`: "auto" is "bar" on a terminal and "lines" elsewhere. `every`: least number of seconds between two lines.
    The rate counts from the first call: neither work done before (a resumed run) nor time spent on imports is in it.
    """

    def __init__(
        self, label: str, unit: str = "step", style: Style = "auto", stream: TextIO | None = None, every: float = 15.0
    ) -> None:
        self.label, self.unit, self.every = label, unit, every
        self.stream = stream or sys.stderr
        self.style = ("bar" if self.stream.isatty() else "lines") if style == "auto" else style
        self._last = time.monotonic()
        self._first: tuple[int, float] | None = None
        self._line, self._shown = "", True
        self._bar: Any = None

    def __call__(self, done: int, total: int, words: str = "") -> None:
        now = time.monotonic()
        if self._first is None:
            self._first = (done, now)
        if self.style == "bar":
            self._draw(done, total, words)
        elif self.style == "lines":
            self._line, self._shown = self._text(done, total, words, now), False
            if now - self._last >= self.every or done >= total:
                self._print(now)

    def close(self) -> None:
        """Draw the last state, whatever the time since the one before."""
        if self._bar is not None:
            self._bar.close()
        elif not self._shown:
            self._print(time.monotonic())

    def _draw(self, done: int, total: int, words: str) -> None:
        if self._bar is None:
            from tqdm import tqdm

            self._bar = tqdm(
                total=total,
                initial=done,
                desc=self.label,
                unit=f" {self.unit}",
                file=self.stream,
                dynamic_ncols=True,
            )
        self._bar.set_postfix_str(words, refresh=False)
        self._bar.update(done - self._bar.n)

    def _text(self, done: int, total: int, words: str, now: float) -> str:
        first, began = self._first or (done, now)
        rate = (done - first) / max(now - began, 1e-9)
        speed = f", {rate:.2f} {self.unit}s/s" if rate >= 0.1 else f", {60 * rate:.2f} {self.unit}s/min" if rate else ""
        left = f", {clock((total - done) / rate)} left" if done < total and rate > 0 else ""
        return f"{self.label}: {self.unit} {done}/{total}{speed}{left}{'; ' + words if words else ''}"

    def _print(self, now: float) -> None:
        print(self._line, file=self.stream, flush=True)
        self._last, self._shown = now, True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def clock(seconds: float) -> str:
    """m:ss, or h:mm:ss."""
    minutes, rest = divmod(int(seconds + 0.5), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
