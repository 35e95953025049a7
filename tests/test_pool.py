"""Arrivals, staleness, pending turns and the life of each turn, against a literal reading of Algorithm 1."""

from __future__ import annotations

import pickle
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from divopd.pool import Pool
from divopd.selection import Candidates, Rule, checked_select, load_rule
from divopd.types import Actor, DropReason, Turn

GATED, UNGATED, FIFO = load_rule("divopd"), load_rule("vanilla_256"), load_rule("vanilla")


def make_turn(rollout: int = 0, index: int = 0, version: int = 0, dead: bool = False, **change: Any) -> Turn:
    scores = np.array([-1.0], np.float32)
    fields: dict[str, Any] = dict(context=np.arange(4), start=2, end=3, action_mask=np.ones(1, bool))
    fields |= dict(student_logprobs=scores, teacher_logprobs=scores, prompt_truncated=dead)
    return Turn((0, rollout, 0), index, version, **(fields | change))


def turns(n: int, version: int = 0, dead: bool = False, rollout: int = 0) -> list[Turn]:
    return [make_turn(rollout, i, version, dead) for i in range(n)]


def step(pool: Pool, update: int, rule: Rule, take: int | None = None) -> tuple[list[Turn], list[Turn]]:
    """One update: what was offered, and the batch."""
    offered = pool.draw(update, rule)
    budget = pool.batch_rows if take is None else take
    chosen = checked_select(rule, Candidates.from_turns(offered, update), budget, 0)
    return offered, pool.settle(offered, chosen, update)


# --- worked examples --------------------------------------------------------------------------------------------------


def test_the_read_stops_at_c_times_b_and_consumes_the_batch() -> None:
    pool = Pool(2, 3, 2, 8)
    first, second = turns(4, rollout=0), turns(4, rollout=1)
    pool.put(first, 1.0)
    pool.put(second, 2.5)
    offered, batch = step(pool, 0, GATED)
    assert offered == first + second[:2]
    assert [t.first_seen for t in first + second] == [0] * 6 + [-1, -1]
    assert (len(batch), pool.pending, pool.queued) == (2, 4, 2)
    assert [t.arrival for t in pool.all_turns] == list(range(8)) and second[0].arrival_time == 2.5
    offered, batch = step(pool, 1, GATED)
    assert len(offered) == 6 and pool.queued == 0  # 4 pending, 2 fresh
    assert [t.selected_at for t in batch] == [1, 1] and second[3].first_seen == 1


def test_the_gate_discards_for_good_and_what_it_discards_counts_as_read() -> None:
    pool = Pool(2, 2, 2, 8)
    dead, live = turns(2, dead=True), turns(4, rollout=1)
    pool.put(dead + live, 0.0)
    offered, _ = step(pool, 0, GATED)
    assert offered == live[:2] and pool.queued == 2
    assert {(t.dropped, t.dropped_at, t.first_seen) for t in dead} == {(DropReason.PROMPT_TRUNCATED, 0, -1)}
    assert pool.discards == {DropReason.PROMPT_TRUNCATED: 2}


def test_the_read_goes_on_while_fewer_than_b_are_usable() -> None:
    pool = Pool(2, 2, 2, 8)
    pool.put(turns(9, dead=True), 0.0)
    assert not pool.ready(0, GATED) and pool.ready(0, UNGATED)
    pool.put(turns(4, rollout=1), 0.0)
    assert pool.ready(0, GATED)
    assert len(pool.draw(0, GATED)) == 2 and pool.queued == 2


def test_without_a_gate_dead_rows_take_slots() -> None:
    pool = Pool(2, 2, 2, 8)
    pool.put(turns(3, dead=True) + turns(3, rollout=1), 0.0)
    offered, batch = step(pool, 0, FIFO)
    assert offered == batch and all(t.prompt_truncated for t in batch) and pool.pending == 0
    offered, batch = step(pool, 1, UNGATED)
    assert len(offered) == 4 and batch[0].prompt_truncated and not pool.discards


def test_stale_turns_are_dropped_pending_or_as_they_are_read() -> None:
    pool = Pool(1, 2, 2, 8)
    old, new = turns(4, version=0), turns(2, version=3, rollout=1)
    pool.put(old + new, 0.0)
    step(pool, 2, GATED)  # reads two of the old ones, trains one
    assert pool.pending == 1
    assert pool.ready(3, GATED)
    offered, _ = step(pool, 3, GATED)
    assert offered == new
    assert [t.dropped for t in old] == [None] + [DropReason.STALE] * 3 and {t.dropped_at for t in old[1:]} == {3}
    assert [t.first_seen for t in old] == [2, 2, -1, -1]


def test_pending_turns_expire_after_w_updates() -> None:
    pool = Pool(1, 4, 99, 2)
    waiting = turns(4)
    pool.put(waiting, 0.0)
    for update in range(3):
        step(pool, update, GATED, take=0)
        assert pool.pending == 4  # q - first-seen = 0, 1, 2
    step(pool, 3, GATED, take=0)
    assert pool.pending == 0 and {(t.dropped, t.dropped_at) for t in waiting} == {(DropReason.EXPIRED, 3)}


def test_only_fresh_student_turns_enter() -> None:
    pool = Pool(1, 1, 0, 0)
    with pytest.raises(ValueError, match="turn 0 of rollout .* acted by the teacher"):
        pool.put([make_turn(actor=Actor.TEACHER)], 0.0)
    once = turns(1)
    pool.put(once, 0.0)
    with pytest.raises(ValueError, match="has arrived before"):
        pool.put(once, 0.0)


def test_draw_and_settle_alternate() -> None:
    pool = Pool(1, 1, 0, 0)
    with pytest.raises(RuntimeError, match="settle"):
        pool.settle([], [], 0)
    pool.put(turns(2), 0.0)
    pool.draw(0, GATED)
    with pytest.raises(RuntimeError, match="draw"):
        pool.draw(0, GATED)


def test_closed_turns_are_handed_out_once() -> None:
    pool = Pool(1, 2, 0, 8)
    pool.put(turns(4), 0.0)
    _, batch = step(pool, 0, GATED)
    assert pool.take_closed() == batch and pool.take_closed() == []
    pool.finish(1)
    assert [t.dropped for t in pool.take_closed()] == [DropReason.UNREAD] * 3 and pool.all_turns == []


# --- a slow reference -------------------------------------------------------------------------------------------------


@dataclass
class Literal:
    """Algorithm 1's steps 1 to 3 and 8 on lists, written without looking at the pool."""

    b: int
    c: int
    delta: int
    w: int
    queue: list[Turn] = field(default_factory=list)
    kept: list[tuple[Turn, int]] = field(default_factory=list)
    fates: dict[int, tuple[str, int]] = field(default_factory=dict)  # by id of turn

    def offer(self, q: int, rule: Rule) -> list[tuple[Turn, int]]:
        v_min = max(q - self.delta, 0)
        for turn, _ in [k for k in self.kept if k[0].version < v_min]:
            self.fates[id(turn)] = ("stale", q)
        offered = [k for k in self.kept if k[0].version >= v_min]
        total = len(offered)
        size = self.b if rule.reads == "batch" else self.b * self.c
        while self.queue and (total < size or len(offered) < self.b):
            turn = self.queue.pop(0)
            if turn.version < v_min:
                self.fates[id(turn)] = ("stale", q)
            elif rule.gated and turn.prompt_truncated:
                self.fates[id(turn)] = ("prompt_truncated", q)
                total += 1
            else:
                offered.append((turn, q))
                total += 1
        return offered

    def settle(self, offered: list[tuple[Turn, int]], chosen: list[int], q: int) -> None:
        self.kept = []
        for i, (turn, seen) in enumerate(offered):
            if i in chosen:
                self.fates[id(turn)] = ("trained", q)
            elif q - seen <= self.w:
                self.kept.append((turn, seen))
            else:
                self.fates[id(turn)] = ("expired", q)


arrivals = st.lists(st.tuples(st.integers(0, 3), st.booleans()), max_size=8)  # versions back, dead


@settings(deadline=None, max_examples=120)
@given(
    st.lists(arrivals, min_size=1, max_size=12),
    st.tuples(st.integers(1, 4), st.integers(1, 3), st.integers(0, 4), st.integers(0, 3)),
    st.sampled_from([GATED, UNGATED, FIFO]),
)
def test_lifecycle_is_algorithm_1(updates: list[Any], sizes: tuple[int, int, int, int], rule: Rule) -> None:
    pool, literal = Pool(*sizes), Literal(*sizes)
    for q, arriving in enumerate(updates):
        fresh = [make_turn(q, i, max(q - back, 0), dead) for i, (back, dead) in enumerate(arriving)]
        pool.put(fresh, float(q))
        literal.queue += fresh
        ready = pool.ready(q, rule)
        expected, offered = literal.offer(q, rule), pool.draw(q, rule)
        assert [id(t) for t in offered] == [id(t) for t, _ in expected]
        assert [t.first_seen for t in offered] == [seen for _, seen in expected]
        assert ready == (len(offered) >= pool.batch_rows)
        if q % 2:  # a resume between draw and settle changes nothing
            assert len(pickle.loads(pickle.dumps(pool)).settle(offered, [], q)) == 0
        chosen = checked_select(rule, Candidates.from_turns(offered, q), pool.batch_rows, 0).tolist()
        assert [id(t) for t in pool.settle(offered, chosen, q)] == [id(offered[i]) for i in chosen]
        literal.settle(expected, chosen, q)
    pool.finish(len(updates))
    for turn in pool.all_turns:
        fate = literal.fates.get(id(turn), ("unread", len(updates)))
        assert fate == (("trained", turn.selected_at) if turn.dropped is None else (turn.dropped, turn.dropped_at))
    assert pool.discards == Counter(t.dropped for t in pool.all_turns if t.dropped is not None)
    assert sum(pool.discards.values()) + sum(t.selected_at >= 0 for t in pool.all_turns) == pool.arrived


@settings(deadline=None, max_examples=30)
@given(st.lists(arrivals, min_size=10, max_size=25))
def test_retention_never_binds_under_the_papers_staleness(updates: list[Any]) -> None:
    pool = Pool(2, 4, max_staleness=2, retention=8)
    for q, arriving in enumerate(updates):
        pool.put([make_turn(q, i, max(q - back, 0), dead) for i, (back, dead) in enumerate(arriving)], 0.0)
        offered, _ = step(pool, q, GATED, take=1)
        assert all(q - t.version <= 2 for t in offered)
    assert DropReason.EXPIRED not in pool.discards


def test_a_pickled_pool_goes_on_the_same() -> None:
    pool = Pool(2, 2, 2, 8)
    pool.put(turns(5) + turns(5, rollout=1), 0.0)
    step(pool, 0, GATED)
    twin = pickle.loads(pickle.dumps(pool))
    results = [[(t.rollout, t.index) for t in step(p, 1, GATED)[1]] for p in (pool, twin)]
    assert results[0] == results[1]
    assert twin.all_turns[0].context is not None and pool.discards == twin.discards
