"""The novice is the expert with habits of a stated strength, most of whose failures are long."""

from __future__ import annotations

import numpy as np
import pytest

from divopd.envs.scienceworld.expert import Expert
from divopd.envs.scienceworld.novice import Novice
from divopd.envs.scienceworld.sketch import SketchEnv
from divopd.seeds import rng

HALLWAY = "This room is called the hallway. In it, you see: \n\ta picture\nYou also see:\n"
OUTSIDE = "This outside location is called the outside. Here you see: \n\tan axe\n\ta baby wolf\nYou also see:\n"
FIND = "Your task is to find a(n) animal. First, focus on the thing. Then, move it to the red box in the kitchen."


def test_without_habits_it_is_the_expert() -> None:
    novice, expert = Novice(0, 0, 0, 0), Expert()
    for player in (novice, expert):
        player.reset(FIND, HALLWAY)
    assert novice.distribution(()) == pytest.approx(expert.distribution(()))


def test_wander_and_stall_take_their_shares() -> None:
    novice, expert = Novice(0.6, 0, 0.2, 0), Expert()
    for player in (novice, expert):
        player.reset(FIND, HALLWAY)
    wish, best = novice.distribution(()), expert.distribution(())
    assert sum(wish.values()) == pytest.approx(1)
    # first a fifth to looking, then three fifths of all to the nine other rooms
    assert wish["teleport to outside"] == pytest.approx(0.4 * 0.8 * best["teleport to outside"] + 0.6 / 9)
    assert wish["inventory"] == pytest.approx(0.4 * (0.8 * best["inventory"] + 0.1))


def test_forget_and_guess_take_their_shares() -> None:
    novice = Novice(0, 0.5, 0, 0.3)
    novice.reset(FIND, OUTSIDE)
    assert novice.distribution(())["focus on axe"] == pytest.approx(0.3)
    novice.observe("focus on wolf", "You focus on the baby wolf.")
    wish = novice.distribution(())
    assert wish["teleport to kitchen"] == pytest.approx(0.5 + 0.5 * 0.03 / 12)
    assert wish["pick up wolf"] == pytest.approx(0.5 * 0.97)


def test_fails_more_often_than_not_at_length() -> None:
    env, lost, turns_lost, won = SketchEnv(), 0, [], 0
    for i in range(120):
        first, draws, novice = env.reset(f"novice/{i}"), rng("novice", i), Novice(0.8, 0.6, 0.25, 0.08)
        novice.reset(first.goal, first.text)
        turns = 0
        for _ in range(30):
            wish = novice.distribution(())
            action = str(draws.choice(list(wish), p=np.array(list(wish.values())) / sum(wish.values())))
            step = env.step(action)
            novice.observe(action, step.text)
            turns += 1
            if step.done:
                break
        won += step.success
        if not step.success:
            lost += step.done
            turns_lost.append(turns)
    assert 0.15 < won / 120 < 0.6
    assert lost / 120 < 0.2  # ended by a wrong focus or box
    assert np.mean(turns_lost) > 24


@pytest.mark.parametrize("habits", [(1.1, 0, 0, 0), (0, 0, 0, -0.1)])
def test_habits_are_shares(habits: tuple[float, float, float, float]) -> None:
    with pytest.raises(ValueError, match="shares between 0 and 1"):
        Novice(*habits)
