"""The expert wins short tasks from observations alone, from any state, with a calibrated distribution."""

from __future__ import annotations

import numpy as np
import pytest

from divopd.envs.base import EnvError
from divopd.envs.scienceworld.expert import Expert
from divopd.envs.scienceworld.expert_beliefs import HELD, Beliefs, Wanted, parse_goal
from divopd.envs.scienceworld.novice import Novice
from divopd.envs.scienceworld.sketch import SketchEnv, World
from divopd.seeds import rng

HALLWAY = "This room is called the hallway. In it, you see: \n\ta picture\nYou also see:\n"
FIND = "Your task is to find a(n) animal. First, focus on the thing. Then, move it to the red box in the kitchen."
OUTSIDE = (
    "This outside location is called the outside. Here you see: \n\tan axe\n\ta {} egg\n\ta baby wolf\nYou also see:\n"
)


def play(env: SketchEnv, task: str, player: Expert, turns: int = 30) -> tuple[bool, int]:
    """(won, turns) of one episode of sampled commands."""
    first, draws = env.reset(task), rng("test", task)
    player.reset(first.goal, first.text)
    for turn in range(turns):
        wish = player.distribution(first.allowed)
        action = str(draws.choice(list(wish), p=np.array(list(wish.values())) / sum(wish.values())))
        step = env.step(action)
        player.observe(action, step.text)
        if step.done:
            return step.success, turn + 1
    return False, turns


def told(expert: Expert, *turns: tuple[str, str]) -> tuple[str, list[str]]:
    """What the expert prefers after these actions and answers."""
    for action, text in turns:
        expert.observe(action, text)
    return expert.choices()


def test_wins_nearly_all_tasks_in_few_turns() -> None:
    env = SketchEnv()
    results = [play(env, f"test/{i}", Expert()) for i in range(300)]
    assert sum(won for won, _ in results) >= 297
    assert np.mean([turns for _, turns in results]) < 8


@pytest.mark.parametrize("clumsy", [3, 8])
def test_wins_from_where_a_clumsy_player_left_off(clumsy: int) -> None:
    """Wandering, forgotten things and wrong boxes are mended; a wrong focus, which ends the episode, is not there."""
    env, won, alive = SketchEnv(), 0, 0
    for i in range(150):
        first, draws = env.reset(f"mend/{i}"), rng("mend", i)
        expert, player = Expert(), Novice(0.5, 0.6, 0.2, 0.0)
        for follower in (expert, player):
            follower.reset(first.goal, first.text)
        over = success = False
        for turn in range(clumsy + 20):
            wish = (player if turn < clumsy else expert).distribution(())
            action = str(draws.choice(list(wish), p=np.array(list(wish.values())) / sum(wish.values())))
            step = env.step(action)
            expert.observe(action, step.text)
            player.observe(action, step.text)
            over, success = step.done, step.success
            if over:
                break
        alive += success or not over
        won += success
    assert alive >= 135
    assert won >= 0.97 * alive


def test_distribution_sums_to_one_and_prefers_one() -> None:
    expert = Expert()
    expert.reset(FIND, HALLWAY)
    wish = expert.distribution(())
    assert sum(wish.values()) == pytest.approx(1)
    assert max(wish, key=wish.__getitem__) == "teleport to outside"
    # 0.8 is preferred, and 0.03 of noise lies on ten rooms and two ways to look
    assert wish["teleport to outside"] == pytest.approx(0.8 + 0.03 / 12)
    assert wish["teleport to hallway"] == pytest.approx(0.03 / 12)
    assert wish["teleport to foundry"] == pytest.approx(0.17 / 8 + 0.03 / 12)  # but here, the hallway, and outside


def test_listed_commands_alone_where_there_is_a_list() -> None:
    expert = Expert()
    expert.reset(FIND, HALLWAY)
    wish = expert.distribution(("look around", "teleport to outside", "eat picture"))
    assert set(wish) == {"look around", "teleport to outside"}
    assert sum(wish.values()) == pytest.approx(1)


def test_a_find_task_step_by_step() -> None:
    expert = Expert()
    expert.reset(FIND, HALLWAY)
    assert told(expert, ("teleport to outside", "You teleport to the outside."))[0] == "look around"
    assert told(expert, ("look around", OUTSIDE.format("dove"))) == ("focus on dove", ["focus on wolf"])
    assert told(expert, ("focus on dove", "You focus on the dove egg."))[0] == "pick up dove"
    assert told(expert, ("pick up dove", "You move the dove to the inventory."))[0] == "teleport to kitchen"
    assert told(expert, ("teleport to kitchen", "You teleport to the kitchen."))[0] == "move dove to red box"


def test_a_forgotten_thing_is_fetched_and_a_refusal_understood() -> None:
    expert, refused = Expert(), "No known action matches that input."
    expert.reset(FIND, HALLWAY)
    told(expert, ("teleport to outside", "You teleport to the outside."), ("look around", OUTSIDE.format("dove")))
    told(
        expert, ("focus on dove", "You focus on the dove egg."), ("teleport to kitchen", "You teleport to the kitchen.")
    )
    assert expert.choices()[0] == "teleport to outside"
    assert told(expert, ("move dove to red box", refused))[0] == "teleport to outside"
    told(expert, ("teleport to outside", "You teleport to the outside."))
    assert told(expert, ("pick up dove", refused))[0] == "inventory"  # it is not where it was: perhaps in hand
    assert told(expert, ("inventory", "In your inventory, you see:\n\ta dove egg"))[0] == "teleport to kitchen"
    # the box is in the kitchen: that it is not in the bedroom says nothing of the dove
    told(expert, ("teleport to bedroom", "You teleport to the bedroom."))
    assert told(expert, ("move dove to red box", refused))[0] == "teleport to kitchen"


def test_a_tadpole_is_the_frog_egg_that_was_focused_on() -> None:
    expert = Expert()
    expert.reset(FIND, HALLWAY)
    told(expert, ("teleport to outside", "You teleport to the outside."), ("look around", OUTSIDE.format("frog")))
    assert told(expert, ("focus on frog egg", "You focus on the frog egg."))[0] == "pick up frog egg"
    grown = OUTSIDE.replace("{} egg", "tadpole")
    assert told(expert, ("look around", grown))[0] == "pick up tadpole"


def test_life_spans() -> None:
    expert = Expert()
    for goal, first, second in (
        ("find the animal with the longest life span.", "focus on wolf", ""),
        ("find the animal with the shortest life span.", "focus on dragonfly", ""),
        (
            "find the animal with the longest life span, then the shortest life span.",
            "focus on wolf",
            "focus on dragonfly",
        ),
    ):
        expert.reset(goal, OUTSIDE.format("dragonfly"))
        assert expert.choices() == (first, [])
        if second:
            assert told(expert, (first, "You focus on the baby wolf."))[0] == second


def test_the_game_s_question_is_answered() -> None:
    expert = Expert()
    expert.reset(FIND, HALLWAY)
    assert told(expert, ("focus on dove", "Ambiguous request: Please enter the number"))[0] == "0"
    assert told(expert, ("0", "You focus on the dove egg."))[0] != "0"


def test_beliefs_follow_what_is_seen() -> None:
    beliefs = Beliefs.start(parse_goal(FIND), HALLWAY)
    beliefs.update("teleport to kitchen", "You teleport to the kitchen.")
    kitchen = "This room is called the kitchen. In it, you see: \n\ta red box (containing a dove egg)\nYou also see:\n"
    beliefs.update("look around", kitchen)
    assert (beliefs.at["dove"], beliefs.place("dove"), beliefs.at["picture"]) == ("red box", "kitchen", "hallway")
    beliefs.update("pick up dove", "You move the dove to the inventory.")
    assert beliefs.place("dove") == HELD
    beliefs.update("look around", kitchen.replace("a dove egg", "nothing"))
    assert beliefs.place("dove") == HELD  # not in sight, but in hand
    beliefs.update("inventory", "In your inventory, you see:\n\tan orange")
    assert beliefs.place("dove") == ""


def test_goals_are_understood_or_refused() -> None:
    assert parse_goal(FIND) == Wanted("find", what="animal", box="red box", box_room="kitchen")
    with pytest.raises(EnvError, match="not this goal"):
        parse_goal("Your task is to boil water.")
    with pytest.raises(EnvError, match="look around a room"):
        Expert().reset(FIND, "You are dead.")
    with pytest.raises(RuntimeError, match="call reset first"):
        Expert().choices()
    with pytest.raises(ValueError, match="less than 0.5"):
        Expert(0.4, 0.2)


def test_what_is_measured_goes_into_the_box_of_its_side() -> None:
    rooms = {room: [] for room in ("hallway", "bedroom")} | {
        "kitchen": ["thermometer"],
        "living room": ["unknown substance B"],
        "bathroom": ["red box", "green box"],
    }
    goal = (
        "measure the temperature of unknown substance B, which is located around the living room. First, focus on it."
        " If it is above 50.0 degrees celsius, place it in the red box. If not, place it in the green box. The boxes"
        " are located around the bathroom."
    )
    for degrees, box in ((51, "red box"), (49, "green box")):
        env, expert, done = SketchEnv(), Expert(), []
        first = env.play(World(goal, "hallway", {room: list(things) for room, things in rooms.items()}, degrees))
        expert.reset(first.goal, first.text)
        for _ in range(9):
            done.append(expert.choices()[0])
            step = env.step(done[-1])
            expert.observe(done[-1], step.text)
        assert step.success and done[-1] == f"move unknown substance B to {box}"
        assert done[:4] == [
            "teleport to kitchen",
            "pick up thermometer",
            "focus on thermometer",
            "teleport to living room",
        ]
