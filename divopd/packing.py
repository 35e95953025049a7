"""From rows to what a forward pass holds: rows -> merged sequences -> micro-batches, and their division over ranks.

Turns of a rollout whose chat only grows are spans of one token sequence. They share its forward pass: a causal model
gives each token the same log-prob as in a row of its own, so that with weights 1 / (N * |V_t|) the gradient is that of
separate rows, to rounding (ours; the paper trains separate rows).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from divopd.candidates import gate
from divopd.losses import token_shares
from divopd.types import Turn


@dataclass(frozen=True, slots=True, eq=False)
class TrainSequence:
    """One forward pass's worth of tokens and its m training tokens, each predicted from the token before it."""

    tokens: np.ndarray  # int64 (length,), up to the last token that predicts
    predicts: np.ndarray  # int64 (m,), positions in `tokens` whose next token trains
    targets: np.ndarray  # int64 (m,), those next tokens
    teacher: np.ndarray  # float32 (m,), cached teacher log-probs
    student: np.ndarray  # float32 (m,), log-probs under the generating weights
    shares: np.ndarray  # float32 (m,), 1 / (N * |V_t|)
    weights: np.ndarray  # float32 (m,), of the loss: w_t / (N * |V_t|) but for another reduction
    turns: np.ndarray  # int64 (m,), which of the batch's rows each token is of


def merge_rows(turns: Sequence[Turn], weights: np.ndarray | None = None, balance: float = 1.0) -> list[TrainSequence]:
    """The batch's rows as sequences. Turns of a rollout merge when they share one `context` array, by identity.

    Dead rows, those that the gate would not pass, train no token but count in N. Row weights (N,), if a rule gave them,
    are scaled to a mean of 1 over the N rows (ours); all ones are no weights, to the bit. `balance`:
    losses.token_shares.
    """
    scaled = np.ones(len(turns)) if weights is None else weights * len(turns) / weights.sum()
    live = [i for i, turn in enumerate(turns) if gate(turn) is None]
    places = [turns[i].start + np.flatnonzero(turns[i].valid_mask()) for i in live]
    token_weights = token_shares([len(where) for where in places], len(turns), balance)
    shared: dict[tuple[Any, int], list[tuple[int, Turn, np.ndarray, float]]] = {}
    for i, where, share in zip(live, places, token_weights, strict=True):
        turn = turns[i]
        shared.setdefault((turn.rollout, id(turn.context)), []).append((i, turn, where, float(scaled[i] * share)))
    return [_sequence(rows, len(turns)) for rows in shared.values()]


def _sequence(rows: list[tuple[int, Turn, np.ndarray, float]], n: int) -> TrainSequence:
    """`rows`: each turn with its place in the batch, its training positions, and their weight."""
    context = np.asarray(rows[0][1].context, dtype=np.int64)
    where = np.concatenate([positions for _, _, positions, _ in rows])
    teacher, student, shares, weights = [], [], [], []
    for _, turn, positions, weight in rows:
        assert turn.teacher_logprobs is not None and turn.student_logprobs is not None  # the gate saw to it
        teacher.append(turn.teacher_logprobs[positions - turn.start])
        student.append(turn.student_logprobs[positions - turn.start])
        shares.append(np.full(len(positions), 1.0 / (n * len(positions))))
        weights.append(np.full(len(positions), weight))
    return TrainSequence(
        tokens=context[: where.max()],
        predicts=where - 1,
        targets=context[where],
        teacher=np.concatenate(teacher).astype(np.float32),
        student=np.concatenate(student).astype(np.float32),
        shares=np.concatenate(shares).astype(np.float32),
        weights=np.concatenate(weights).astype(np.float32),
        turns=np.concatenate([np.full(len(positions), i) for i, _, positions, _ in rows]),
    )


def micro_batches(lengths: Sequence[int], limit: int) -> list[list[int]]:
    """Indices of sequences by falling length, cut so that rows * longest <= limit. One longer than that goes alone.

    A row shorter than 3/4 of its batch's longest starts a new one: padding stays under a quarter of what is computed.
    """
    batches: list[list[int]] = []
    longest = 0
    for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        if batches and (len(batches[-1]) + 1) * longest <= limit and 4 * lengths[i] >= 3 * longest:
            batches[-1].append(i)
        else:
            batches.append([i])
            longest = lengths[i]
    return batches


def packed_batches(lengths: Sequence[int], limit: int) -> list[list[int]]:
    """Indices of sequences for rows of at most `limit` tokens, side by side without padding. One longer goes alone.

    First-fit decreasing: at most 11/9 of the fewest rows there could be, and two thirds of a row more.
    """
    rows: list[list[int]] = []
    left: list[int] = []
    for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        place = next((k for k, room in enumerate(left) if room >= lengths[i]), len(rows))
        if place == len(rows):
            rows.append([])
            left.append(limit)
        rows[place].append(i)
        left[place] -= lengths[i]
    return rows


def divide(lengths: Sequence[int], ranks: int) -> list[list[int]]:
    """Indices of sequences, a list a rank, by falling length to the rank with the fewest tokens so far.

    The fullest rank holds at most 4/3 of what it must. A pure function: all ranks agree without a word.
    """
    shares: list[list[int]] = [[] for _ in range(ranks)]
    tokens = [0] * ranks
    for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        rank = tokens.index(min(tokens))
        shares[rank].append(i)
        tokens[rank] += lengths[i]
    return shares


@dataclass(frozen=True, slots=True, eq=False)
class MicroBatch:
    """Sequences of one forward pass and their m training tokens, which (row, predicts) place in `tokens`."""

    tokens: np.ndarray  # int64 (b, t), padded on the right with 0; packed: (1, sum of lengths)
    lengths: tuple[int, ...] | None  # packed: of the sequences that follow each other in the one row
    rows: np.ndarray  # int64 (m,)
    predicts: np.ndarray  # int64 (m,)
    targets: np.ndarray  # int64 (m,)
    teacher: np.ndarray  # float32 (m,), as TrainSequence, like the next three
    student: np.ndarray
    shares: np.ndarray
    weights: np.ndarray

    @classmethod
    def of(cls, sequences: Sequence[TrainSequence], packed: bool = False) -> MicroBatch:
        """Lay out sequences; none gives one token that nothing trains: a rank's part of a round that it only joins."""
        lengths = [len(s.tokens) for s in sequences] or [1]
        tokens = np.zeros((1, sum(lengths)) if packed else (len(lengths), max(lengths)), dtype=np.int64)
        starts = np.cumsum([0, *lengths[:-1]]) if packed else np.zeros(len(lengths), dtype=np.int64)
        for row, (sequence, start) in enumerate(zip(sequences, starts, strict=False)):
            tokens[0 if packed else row, start : start + len(sequence.tokens)] = sequence.tokens
        numbers = np.zeros(len(sequences), np.int64) if packed else np.arange(len(sequences))

        def joined(name: str, kind: type = np.float32) -> np.ndarray:
            return np.concatenate([np.zeros(0, kind), *(getattr(s, name) for s in sequences)])

        return cls(
            tokens,
            tuple(lengths) if packed else None,
            rows=np.repeat(numbers, np.array([len(s.targets) for s in sequences], np.int64)),
            predicts=np.concatenate(
                [np.zeros(0, np.int64), *(s.predicts + start for s, start in zip(sequences, starts, strict=False))]
            ),
            targets=joined("targets", np.int64),
            **{name: joined(name) for name in ("teacher", "student", "shares", "weights")},
        )
