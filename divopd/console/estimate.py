"""How long what is left of a suite will take, from the jobs that have finished."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

ONCE = 10.0  # seconds of a rule that runs once and has not run yet: a table, a page


class TimeLeft:
    """`counts`: jobs by rule, those that run once (tables, pages) too. `cores`: jobs at a time."""

    def __init__(self, counts: Mapping[str, int], cores: int) -> None:
        self.counts, self.cores = dict(counts), cores
        self.seconds: dict[str, list[float]] = defaultdict(list)
        self.failed: dict[str, int] = defaultdict(int)

    def finished(self, rule: str, seconds: float) -> None:
        self.seconds[rule].append(seconds)

    def left(self, running: Iterable[tuple[str, float]]) -> float | None:
        """Seconds; `running`: rule and seconds so far. None until a job of the rules that run often has finished.

        A job costs the mean of its rule, and where none has finished the mean of those that run often.
        """
        known = [s for rule, seconds in self.seconds.items() if self.counts.get(rule, 0) > 1 for s in seconds]
        if not known:
            return None
        often = sum(known) / len(known)

        def mean(rule: str) -> float:
            seconds = self.seconds.get(rule)
            if seconds:
                return sum(seconds) / len(seconds)
            return often if self.counts.get(rule, 0) > 1 else ONCE

        total, longest = 0.0, 0.0
        waiting = {rule: n - len(self.seconds[rule]) - self.failed[rule] for rule, n in self.counts.items()}
        for rule, elapsed in running:
            waiting[rule] = waiting.get(rule, 1) - 1
            rest = max(mean(rule) - elapsed, 0.0)
            total, longest = total + rest, max(longest, rest)
        total += sum(max(n, 0) * mean(rule) for rule, n in waiting.items())
        return max(total / self.cores, longest)
