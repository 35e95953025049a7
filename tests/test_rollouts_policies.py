"""Rollout policies as functions of a moment, a state and the turns so far, worked out by hand."""

from __future__ import annotations

import pickle
from dataclasses import replace

import numpy as np
import pytest

from divopd.rollouts import Direction, Moment, RolloutError, load_policy, policy_class, policy_names
from divopd.rollouts.turnopd import depth_of_share, depth_signal, turn_gaps
from divopd.types import Actor, Rollout, Turn

NOW = Moment(step=3, version=0, updates=40, max_turns=6, seed=1, environment="alfworld")


def rollout_of(gaps, success=False, position=0, teacher=()):
    """A rollout whose turns have these student - teacher gaps on each of two tokens; NaN: a dead row."""
    rollout = Rollout((0, position, 0), "t", success=success)
    for i, gap in enumerate(gaps):
        scores = np.zeros(2, dtype=np.float32)
        turn = Turn(rollout.id, i, 0, np.zeros(20), 2 * i, 2 * i + 2, scores, scores - gap, np.ones(2, dtype=bool))
        turn.prompt_truncated = bool(np.isnan(gap))
        turn.actor = Actor.TEACHER if i in teacher else Actor.STUDENT
        rollout.turns.append(turn)
    return rollout


def test_every_policy_is_a_file_and_can_be_had():
    assert policy_names() == ["guided_opd", "recovery", "student", "tcod_b2f", "tcod_f2b", "turnopd"]
    for name in policy_names():
        needs = {"patience": 2, "max_turns": 3} if name == "recovery" else {}
        policy = load_policy(name, needs)
        assert type(policy) is policy_class(name) and policy_class(name).__doc__
        assert pickle.loads(pickle.dumps(policy)) == policy
        pickle.dumps(policy.initial_state())
        assert 1 <= policy.depth(NOW, policy.initial_state()) <= NOW.max_turns


def test_misfits_are_one_line():
    with pytest.raises(RolloutError, match="unknown rollout policy 'recovry'; nearest: recovery"):
        load_policy("recovry")
    with pytest.raises(RolloutError, match="tcod_f2b: unknown parameter 'etta'; it has: counter, eta"):
        load_policy("tcod_f2b", {"etta": 3})
    with pytest.raises(RolloutError, match="recovery: parameter 'patience' is due; it has: .*max_turns"):
        load_policy("recovery")
    with pytest.raises(RolloutError, match="guided_opd: parameter 'start' = 2: .*less than or equal to 1"):
        load_policy("guided_opd", {"start": 2})


def test_the_student_plays_to_the_limit():
    direction = Direction(load_policy("student"), NOW, None)
    assert direction.limit((0, 0, 0)) == 6 and not direction.teacher_acts(rollout_of([0.1]))


def at(environment, step, max_turns=30):
    return replace(NOW, step=step, version=7, max_turns=max_turns, environment=environment)


def test_tcod_f2b_grows_by_a_turn_every_eta_explorer_steps():
    """A turn more at steps 6, 12, ...; WebShop at 4, 8, ...; the version does not matter."""
    policy = load_policy("tcod_f2b")
    for name in ("alfworld", "scienceworld"):
        assert [policy.depth(at(name, n), None) for n in (0, 5, 6, 11, 12, 173, 174, 500)] == [
            1,
            1,
            2,
            2,
            3,
            29,
            30,
            30,
        ]
    assert [policy.depth(at("webshop", n, 15), None) for n in (0, 3, 4, 7, 8, 55, 56, 99)] == [
        1,
        1,
        2,
        2,
        3,
        14,
        15,
        15,
    ]
    assert load_policy("tcod_f2b", {"eta": 2}).depth(at("webshop", 7), None) == 4
    with pytest.raises(
        RolloutError, match="tcod_f2b: set 'eta' for chess; known: alfworld 6, scienceworld 6, webshop 4"
    ):
        policy.check("chess")
    load_policy("tcod_f2b", {"eta": 2}).check("chess")


def test_tcod_b2f_starts_an_action_earlier_every_eta_explorer_steps():
    """Of 4 actions: after 3 at steps 0 to 4, after 2 at 5 to 9, ..., at the beginning from step 15 on."""
    policy = load_policy("tcod_b2f")
    for name in ("alfworld", "scienceworld"):
        assert [policy.prefix(4, at(name, n)) for n in (0, 4, 5, 9, 10, 14, 15, 99)] == [3, 3, 2, 2, 1, 1, 0, 0]
    assert [policy.prefix(4, at("webshop", n)) for n in (0, 3, 4, 8, 11, 12, 99)] == [3, 3, 2, 1, 1, 0, 0]
    assert [policy.prefix(n, at("webshop", 4)) for n in (1, 2, 3)] == [0, 0, 1]
    # the student has a turn within the environment's limit; its rollouts are not cut; the log shows what is left to it
    assert policy.prefix(30, at("alfworld", 0, 6)) == 5 and policy.limit((0, 0, 0), at("alfworld", 0, 6), None) == 6
    assert [policy.depth(at("alfworld", n, 6), None) for n in (0, 4, 5, 25, 90)] == [1, 1, 2, 6, 6]
    assert load_policy("tcod_b2f", {"eta": 1}).prefix(4, at("alfworld", 2)) == 1
    with pytest.raises(
        RolloutError, match="tcod_b2f: set 'eta' for chess; known: alfworld 5, scienceworld 5, webshop 4"
    ):
        policy.check("chess")


def test_tcod_f2b_may_count_updates():
    policy = load_policy("tcod_f2b", {"counter": "version", "eta": 3})
    assert [policy.depth(replace(NOW, version=q), None) for q in (0, 2, 3, 5, 6, 14, 15, 39)] == [
        1,
        1,
        2,
        2,
        3,
        5,
        6,
        6,
    ]
    # without eta: 40 updates, 5 turns to gain in the first half, 4 updates each
    own = load_policy("tcod_f2b", {"counter": "version"})
    assert [own.depth(replace(NOW, version=q), None) for q in (0, 3, 4, 19, 20, 39)] == [1, 1, 2, 5, 6, 6]
    assert own.depth(replace(NOW, version=9, max_turns=22), None) == 10  # at least every update
    assert own.depth(replace(NOW, max_turns=1), None) == 1


def test_guided_probability_falls_on_a_cosine():
    policy = load_policy("guided_opd", {"start": 0.8, "until": 0.5})
    found = [policy.probability(replace(NOW, version=q)) for q in (0, 10, 20, 39)]
    assert found == pytest.approx([0.8, 0.4, 0.0, 0.0])
    assert load_policy("guided_opd", {"until": 0}).probability(NOW) == 0.0
    assert load_policy("guided_opd", {"start": 1.0}).teacher_acts(rollout_of([]), NOW, None)


def test_guided_draws_are_the_turns_own():
    policy = load_policy("guided_opd", {"start": 0.5})
    draws = {
        (position, turn): policy.teacher_acts(rollout_of([0.0] * turn, position=position), NOW, None)
        for position in range(60) for turn in range(20)
    }  # fmt: skip
    share = np.mean(list(draws.values()))
    assert abs(share - 0.5) < 4 * 0.5 / np.sqrt(1200)
    assert draws[7, 3] == policy.teacher_acts(rollout_of([0.5] * 3, position=7), NOW, None)
    other = [policy.teacher_acts(rollout_of([0.0] * turn), replace(NOW, seed=2), None) for turn in range(20)]
    assert other != [draws[0, turn] for turn in range(20)]


def test_gaps_are_the_students_scored_turns():
    gaps = turn_gaps(rollout_of([0.5, np.nan, 0.25, 1.0], teacher=(2,)))
    assert gaps[0] == 0.5 and np.isnan(gaps[1]) and np.isnan(gaps[2]) and gaps[3] == 1.0


def test_depth_signal_by_hand():
    """Four probes. Depth 0: gaps 1, 1, 1, 1 -> 1. Depth 1: 2, 0 -> mean 1, error 1 -> 0. Depth 2: 3, 5 -> mean 4,
    standard deviation sqrt 2, error 1, half of the probes -> 1.5. Depth 3: one probe alone -> 0."""
    probes = [((1.0, 2.0, 3.0), False), ((1.0, 0.0, 5.0, 9.0), True), ((1.0,), True), ((1.0, float("nan")), False)]
    assert depth_signal(probes).tolist() == pytest.approx([1.0, 0.0, 1.5, 0.0])
    assert depth_signal([]).tolist() == []


def test_depth_of_share():
    values = np.array([1.0, 0.0, 1.5, 0.0])
    assert [depth_of_share(values, share) for share in (0.0, 0.4, 0.41, 1.0)] == [1, 1, 3, 3]
    assert depth_of_share(np.zeros(4), 0.9) == depth_of_share(np.zeros(0), 0.9) == 0


def test_turnopd_depth_follows_divergence_and_success():
    policy = load_policy("turnopd", {"share": 0.9, "probes": 2})
    state = policy.initial_state()
    assert policy.depth(NOW, state) == 6  # nothing known: to the limit
    shallow = [rollout_of([1.0, 1.0, 0.0, 0.0, 0.0, 0.0], position=i) for i in range(4)]
    state = policy.observe(shallow, replace(NOW, step=0), state)
    assert len(state[0]) == 4  # all of the first step are probes
    assert policy.depth(NOW, state) == 2
    assert [policy.limit((4, i, 0), NOW, state) for i in range(3)] == [6, 6, 2]  # probes are played out
    # a success after five turns: no winning rollout is cut
    won = [rollout_of([1.0, 1.0, 0.0, 0.0, 0.0], success=True, position=i) for i in range(4)]
    state = policy.observe(won, replace(NOW, step=1), state)
    assert len(state[1]) == 2 and policy.depth(NOW, state) == 5
    assert policy.depth(replace(NOW, max_turns=3), state) == 3
    assert policy.depth(NOW, policy.observe(shallow, NOW, ())) == 2


def test_turnopd_forgets_after_its_window():
    policy = load_policy("turnopd", {"window": 2, "probes": 2, "min_turns": 3})
    state = policy.initial_state()
    deep, flat = ([rollout_of(gaps, position=i) for i in range(2)] for gaps in ([1.0] * 6, [1.0, 0.0]))
    depths = []
    for step, rollouts in enumerate([deep, flat, flat]):
        state = policy.observe(rollouts, replace(NOW, step=step), state)
        depths.append(policy.depth(NOW, state))
    assert depths == [6, 6, 3]  # min_turns at last
