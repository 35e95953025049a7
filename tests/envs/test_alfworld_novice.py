"""The novice has the expert's distribution except where one of its habits has its moment."""

from __future__ import annotations

import pytest

from divopd.config import EnvConfig
from divopd.envs.alfworld.expert import Expert
from divopd.envs.alfworld.novice import Novice
from divopd.envs.registry import make_envs

ROOM = (
    "You are in the middle of a room. Looking quickly around you, you see a cabinet 2, a cabinet 1, and a sinkbasin 1."
)
AT_CLOSED = ("close cabinet 2", "go to cabinet 1", "go to sinkbasin 1", "open cabinet 2")


def novice(**habits: float) -> Novice:
    player = Novice(**({"walk_past": 0.0, "raw": 0.0, "wander": 0.0} | habits))
    player.reset("put a clean mug in cabinet.", ROOM)
    return player


def test_walks_past_a_closed_container():
    player = novice(walk_past=0.8)
    player.observe("go to cabinet 2", "You arrive at cabinet 2. The cabinet 2 is closed.")
    chances = player.distribution(AT_CLOSED)
    # the expert opens (0.97 and its share of 0.03 / 4); a fifth of that is left
    assert chances["open cabinet 2"] == pytest.approx(0.2 * (0.97 + 0.03 / 4))
    assert chances["go to cabinet 1"] == pytest.approx(0.8 + 0.2 * 0.03 / 4)
    assert sum(chances.values()) == pytest.approx(1)


def test_wanders_to_any_place():
    allowed = ("go to cabinet 1", "go to cabinet 2", "go to sinkbasin 1")
    chances = novice(wander=0.9).distribution(allowed)
    expert = Expert()
    expert.reset("put a clean mug in cabinet.", ROOM)
    for command, mass in expert.distribution(allowed).items():
        assert chances[command] == pytest.approx(0.1 * mass + 0.9 / 3)


def test_carries_the_raw_object_to_its_destination():
    player = novice(raw=0.7)
    player.observe("go to sinkbasin 1", "You arrive at sinkbasin 1. On the sinkbasin 1, you see a mug 1.")
    player.observe("take mug 1 from sinkbasin 1", "You pick up the mug 1 from the sinkbasin 1.")
    allowed = ("clean mug 1 with sinkbasin 1", "go to cabinet 1", "go to cabinet 2", "move mug 1 to sinkbasin 1")
    chances = player.distribution(allowed)
    assert max(chances, key=chances.__getitem__).startswith("go to cabinet")
    assert chances["clean mug 1 with sinkbasin 1"] == pytest.approx(0.3 * (0.97 + 0.03 / 4))
    player.observe("clean mug 1 with sinkbasin 1", "You clean the mug 1 using the sinkbasin 1.")
    assert player.distribution(allowed[1:]) == Expert.distribution(player, allowed[1:])


def test_without_habits_it_is_the_expert(game_cache):
    env = make_envs(EnvConfig(cache_dir=str(game_cache)), 1)[0]
    observation = env.reset("gen/train/3")
    expert, player = Expert(), Novice(0.0, 0.0, 0.0)
    for one in (expert, player):
        one.reset(observation.goal, observation.text)
    allowed = observation.allowed
    for _ in range(10):
        chances = expert.distribution(allowed)
        assert player.distribution(allowed) == pytest.approx(chances)
        action = max(chances, key=chances.__getitem__)
        step = env.step(action)
        for one in (expert, player):
            one.observe(action, step.text)
        allowed = step.allowed


def test_habits_are_shares():
    with pytest.raises(ValueError, match="shares between 0 and 1"):
        Novice(1.2, 0, 0)
