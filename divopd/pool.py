"""The queue between explorer and learner: arrivals, staleness, pending turns, and the life of each turn.

The pool alone knows arrival and age, and alone writes a turn's lifecycle fields; it ranks nothing. Source: Algorithm 1
of DivOPD (arXiv 2609.34838, section 3): its staleness, read, gate and retention.

The paper leaves open how long a read waits. Ours: an update waits until B usable turns are at hand (`ready`), then the
read takes what is queued, without waiting, up to c * B turns; it goes past c * B only while fewer than B of them are
usable. Turns are usable when they are not stale and, for gated rules, pass the gate. Where the queue is full of valid
turns this is the paper's read.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

from divopd.selection import Rule, gate
from divopd.types import Actor, DropReason, Turn


class Pool:
    """FIFO queue of arrived turns, and the turns that earlier reads kept. Picklable, also between draw and settle.

    `batch_rows` B, `pool_factor` c, `max_staleness` delta (versions), `retention` W (updates).
    """

    def __init__(self, batch_rows: int, pool_factor: int, max_staleness: int, retention: int) -> None:
        self.batch_rows = batch_rows
        self.pool_factor = pool_factor
        self.max_staleness = max_staleness
        self.retention = retention
        self.discards: Counter[DropReason] = Counter()
        self._queue: deque[tuple[Turn, DropReason | None]] = deque()  # with the gate's verdict, reached on arrival
        self._pending: list[tuple[Turn, DropReason | None]] = []
        self._drawn: list[tuple[Turn, DropReason | None]] | None = None  # out with a rule, between draw and settle
        self._turns: list[Turn] = []
        self._arrived = 0

    @property
    def all_turns(self) -> list[Turn]:
        """Every turn that arrived and was not handed out by `take_closed`, in arrival order, with its lifecycle."""
        return list(self._turns)

    @property
    def arrived(self) -> int:
        """Turns that ever arrived."""
        return self._arrived

    @property
    def queued(self) -> int:
        return len(self._queue)

    @property
    def pending(self) -> int:
        return len(self._pending)

    def put(self, turns: Iterable[Turn], time: float) -> None:
        """Student turns arrive, in this order, at `time` (virtual seconds). Raises ValueError for any other turn."""
        for turn in turns:
            if turn.actor is not Actor.STUDENT or turn.arrival >= 0:
                what = "has arrived before" if turn.arrival >= 0 else f"was acted by the {turn.actor}"
                raise ValueError(f"turn {turn.index} of rollout {turn.rollout} {what}: it cannot enter the pool")
            turn.arrival, turn.arrival_time = self._arrived, time
            self._arrived += 1
            self._turns.append(turn)
            self._queue.append((turn, gate(turn)))

    def ready(self, update: int, rule: Rule | type[Rule]) -> bool:
        """Whether a draw now would offer at least B usable turns."""
        return any(count >= self.batch_rows for count, _ in enumerate(self._usable(update, rule), start=1))

    def usable(self, update: int, rule: Rule | type[Rule]) -> int:
        """Turns that a draw now could offer, if it read all."""
        return sum(1 for _ in self._usable(update, rule))

    def draw(self, update: int, rule: Rule | type[Rule]) -> list[Turn]:
        """Steps 1-3 at update q: the turns the rule may choose from, in arrival order. `settle` must follow.

        Stale turns are dropped, pending or as they are read; a gated rule's read discards invalid turns for good. Fewer
        than B turns come back where `ready` is False.
        """
        if self._drawn is not None:
            raise RuntimeError("draw() before the last draw was settled")
        oldest = self._oldest_version(update)
        limit = self.batch_rows * (1 if rule.reads == "batch" else self.pool_factor)
        kept = []
        for entry in self._pending:
            if entry[0].version < oldest:
                self._drop(entry[0], DropReason.STALE, update)
            else:
                kept.append(entry)
        read = len(kept)  # what the gate discards counts as read
        while self._queue and (read < limit or len(kept) < self.batch_rows):
            turn, verdict = self._queue.popleft()
            if turn.version < oldest:
                self._drop(turn, DropReason.STALE, update)
                continue
            read += 1
            if verdict is not None and rule.gated:
                self._drop(turn, verdict, update)
                continue
            turn.first_seen = update
            kept.append((turn, verdict))
        self._pending, self._drawn = [], kept
        return [turn for turn, _ in kept]

    def settle(self, turns: Sequence[Turn], selected: Iterable[int], update: int) -> list[Turn]:
        """Step 8: consume `turns[i]` for i in `selected`, keep or expire the rest. Returns the batch, in rule order.

        `turns` is what `draw` gave out. The others stay pending while q - first-seen <= W.
        """
        if self._drawn is None or len(turns) != len(self._drawn):
            raise RuntimeError("settle() needs the turns of the last draw")
        batch = [self._drawn[int(i)][0] for i in selected]
        for turn in batch:
            turn.selected_at = update
        for entry in self._drawn:
            turn = entry[0]
            if turn.selected_at >= 0:
                continue
            if update - turn.first_seen <= self.retention:
                self._pending.append(entry)
            else:
                self._drop(turn, DropReason.EXPIRED, update)
        self._drawn = None
        return batch

    def finish(self, update: int) -> None:
        """The run is over: whatever waits was never read, or never chosen."""
        for turn, _ in chain(self._pending, self._queue):
            self._drop(turn, DropReason.UNREAD, update)
        self._pending.clear()
        self._queue.clear()

    def take_closed(self) -> list[Turn]:
        """The turns whose life has ended, once and in arrival order: a long run can log them and free their memory."""
        closed = [turn for turn in self._turns if turn.selected_at >= 0 or turn.dropped is not None]
        self._turns = [turn for turn in self._turns if turn.selected_at < 0 and turn.dropped is None]
        return closed

    def _usable(self, update: int, rule: Rule | type[Rule]) -> Iterator[Turn]:
        oldest = self._oldest_version(update)
        for turn, verdict in chain(self._pending, self._queue):
            if turn.version >= oldest and (verdict is None or not rule.gated):
                yield turn

    def _oldest_version(self, update: int) -> int:
        return max(update - self.max_staleness, 0)

    def _drop(self, turn: Turn, reason: DropReason, update: int) -> None:
        turn.dropped, turn.dropped_at = reason, update
        self.discards[reason] += 1
