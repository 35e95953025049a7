"""What the three environments call progress, and when the intervention's trigger fires on it."""

from __future__ import annotations

import pytest

from divopd.config import EnvConfig
from divopd.envs.registry import make_envs
from divopd.rollouts import load_policy

# what the environments call progress ---------------------------------------------------------------------------------
from test_recovery import NOW, turns_of


def flags(env, task, actions):
    """[(valid, progress)] of the actions."""
    env.reset(task)
    return [(s.valid, s.progress) for s in (env.step(action) for action in actions)]


def fires_after(found, patience=4):
    """The turn after which recovery takes over; None where it never does."""
    policy, text = load_policy("recovery", {"patience": patience, "max_turns": 6}), ""
    for _, progress in found:
        text += "p" if progress else "n"
        if policy.teacher_acts(turns_of(text), NOW, None):
            return len(text)
    return None


@pytest.fixture(scope="module")
def kitchen(game_cache):
    """A generated game and two of its places, the second one closed: (environment, task, open place, closed place)."""
    [env] = make_envs(EnvConfig(cache_dir=str(game_cache)), 1)
    for i in range(40):
        task = f"gen/train/{i}"
        first = env.reset(task)
        places = [a.removeprefix("go to ") for a in first.allowed if a.startswith("go to ")]
        closed = [p for p in places if "closed" in env_text(env, task, f"go to {p}")]
        open_ones = [p for p in places if p not in closed]
        if closed and open_ones:
            return env, task, open_ones[0], closed[0]
    raise AssertionError("no generated game with an open and a closed place")


def env_text(env, task, action):
    env.reset(task)
    return env.step(action).text


def test_alfworld_two_places_are_progress_each_time(kitchen):
    """Walking to and fro is the trigger's blind spot: every turn is another action than the one before."""
    env, task, here, there = kitchen
    found = flags(env, task, [f"go to {here}", f"go to {there}"] * 5)
    assert found == [(True, True)] * 10 and fires_after(found) is None


def test_alfworld_invalid_actions_are_none(kitchen):
    env, task, here, _ = kitchen
    found = flags(env, task, [f"go to {here}", "xyzzy", "", "take the moon", "go to nowhere 9"])
    assert found == [(True, True)] + [(False, False)] * 4 and fires_after(found) == 5


def test_alfworld_a_closed_container(kitchen):
    """Taking what is not to be seen, and opening what is open, is answered "Nothing happens."; opening it is not."""
    env, task, _, there = kitchen
    found = flags(env, task, [f"go to {there}", f"take apple 9 from {there}", f"open {there}", f"open {there}"])
    assert found == [(True, True), (False, False), (True, True), (False, False)]


def test_alfworld_a_repeat_is_none_where_nothing_changed(kitchen):
    env, task, here, _ = kitchen
    assert flags(env, task, [f"go to {here}", f"go to {here}"])[1] == (False, False)
    assert flags(env, task, ["look", "look", "inventory", "look"]) == [
        (True, True), (True, False), (True, True), (True, True),
    ]  # fmt: skip


def shop():
    pytest.importorskip("rapidfuzz")
    registry = pytest.importorskip("divopd.envs.registry")
    config = EnvConfig.model_validate({"name": "webshop", "max_turns": 15})
    [env] = make_envs(config, 1)
    return env, registry.plugin("webshop").tasks(config, "gen/train")[0]


def test_webshop_a_page_that_does_not_change():
    """Clicking what the page does not show, searching for the same again, and choosing what is chosen."""
    env, task = shop()
    goal = env.reset(task).goal
    search = f"search[{' '.join(goal.split()[:4])}]"
    found = flags(env, task, [search, "click[no such button]", search, "hello", "click[back to search]"])
    assert found[0] == (True, True) and found[-1] == (True, True)
    assert [progress for _, progress in found] == [True, False, False, False, True]
    assert [valid for valid, _ in found][1::2] == [False, False]
    assert fires_after(found, patience=3) == 4


def test_webshop_to_and_fro_is_progress_each_time():
    env, task = shop()
    search = f"search[{env.reset(task).goal.split()[-1]}]"
    found = flags(env, task, [search, "click[back to search]"] * 3)
    assert found == [(True, True)] * 6


def test_scienceworld_the_same_answer_again():
    pytest.importorskip("scienceworld")
    from divopd.envs.base import EnvError

    config = EnvConfig.model_validate({"name": "scienceworld"})
    try:
        [env] = make_envs(config, 1)
        found = flags(env, "find-animal/0", ["look around", "look around", "xyzzy", "inventory", "inventory"])
    except EnvError as error:  # no Java
        pytest.skip(str(error))
    env.close()
    assert found == [(True, True), (True, False), (False, False), (True, True), (True, False)]
