"""The compact style: few words, nothing lost that a short task needs, commands there and back."""

from __future__ import annotations

import json
import lzma
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from divopd.cloning.tokenizer import build_tokenizer
from divopd.envs.base import Observation, Step
from divopd.envs.scienceworld.compact import (
    CompactStyle,
    compact_action,
    compact_goal,
    compact_observation,
    full_action,
    temperature_word,
)
from divopd.envs.scienceworld.expert_beliefs import parse_goal
from divopd.envs.scienceworld.knowledge import BOXES, FULL, ROOMS, SHORT, THERMOMETER, things_in
from divopd.envs.scienceworld.plugin import words

RECORDS: list[dict[str, Any]] = json.loads(
    lzma.decompress((Path(__file__).parent / "golden" / "scienceworld_short.json.xz").read_bytes())
)
KITCHEN = """This room is called the kitchen. In it, you see: 
	the agent
	a substance called air
	a chair. On the chair is: nothing.
	a counter. On the counter is: a bowl (containing a red apple, a banana, an orange, a potato), a drawer.
	a glass jar (containing a substance called sodium chloride)
	a lighter
	a red box (containing a dove egg)
	a substance called soap
	a thermometer, currently reading a temperature of 10 degrees celsius
You also see:
	A door to the bathroom (that is open)
"""
MEASURE = (
    "Your task is to measure the temperature of unknown substance B, which is located around the living room. First,"
    " focus on the thermometer. Next, focus on the unknown substance B. If the unknown substance B temperature is"
    " above -50.0 degrees celsius, place it in the red box. If the unknown substance B temperature is below -50.0"
    " degrees celsius, place it in the green box. The boxes are located around the bathroom."
)
FIND = "Your task is to find a(n) non-living thing. First, focus on it. Then, move it to the red box in the kitchen."


@pytest.mark.parametrize(
    ("text", "short"),
    [
        (KITCHEN, "kitchen see bowl sodiumchloride lighter redbox dove soap thermometer"),
        (
            "This room is called the foundry. In it, you see: \n\ta blast furnace\nYou also see:\n",
            "foundry see nothing",
        ),
        ("You teleport to the art studio.", "ok"),
        ("You focus on the pea.", "ok"),
        ("In your inventory, you see:\n\tan orange", "hold nothing"),
        ("In your inventory, you see:\n\ta baby brown bear\n\tan orange", "hold brownbear"),
        ("the thermometer measures a temperature of -3 degrees celsius", "reads minustwofive"),
        ("Ambiguous request: Please enter the number for the action you intended", "which"),
        ("No known action matches that input.", "fail"),
        ("Unknown action.  Type 'help' for a list of actions", "fail"),
        ("", "fail"),
    ],
)
def test_observations(text: str, short: str) -> None:
    assert compact_observation(text) == short


def test_goals() -> None:
    assert compact_goal(MEASURE) == "task measure unknownsubstanceb livingroom minusfivezero redbox greenbox bathroom"
    assert compact_goal(FIND) == "task find lifeless redbox kitchen"
    longest = "find the animal with the longest life span.  Focus on the animal with the longest life span."
    assert compact_goal(longest) == "task longest"
    both = "find the animal with the longest life span, then the shortest life span."
    assert compact_goal(both) == "task longest shortest"
    assert compact_goal("Your task is to boil water.") == "task"


@pytest.mark.parametrize(
    ("command", "response"),
    [
        ("teleport to living room", "go livingroom"),
        ("look around", "look"),
        ("inventory", "inventory"),
        ("focus on giant tortoise", "focus gianttortoise"),
        ("pick up unknown substance B", "take unknownsubstanceb"),
        ("move brown bear to red box", "put brownbear redbox"),
        ("use thermometer on metal fork", "measure metalfork"),
        ("0", "first"),
        ("wait1", "wait"),
    ],
)
def test_commands_there_and_back(command: str, response: str) -> None:
    assert compact_action(command) == response
    assert full_action(response) == command
    assert CompactStyle().action(f" {response} ", ()) == command


@pytest.mark.parametrize(
    "response", ["", "go", "go redbox livingroom", "put dove", "focus nosuchthing", "dove", "take take"]
)
def test_what_is_no_command_is_passed_on_as_it_is(response: str) -> None:
    assert full_action(response) == response


@settings(deadline=None)  # a busy machine is no failure
@given(st.sampled_from(sorted(FULL)), st.sampled_from(sorted(FULL)))
def test_every_name_survives_in_every_place(thing: str, box: str) -> None:
    for command in (f"focus on {FULL[thing]}", f"pick up {FULL[thing]}", f"move {FULL[thing]} to {FULL[box]}"):
        assert full_action(compact_action(command)) == command


@settings(deadline=None)  # a busy machine is no failure
@given(st.integers(-500, 900), st.sampled_from([-50, 0, 50, 100, 200]))
def test_a_bucket_keeps_the_side_of_every_bound(degrees: int, bound: int) -> None:
    """A model can tell from the word whether a reading is above a goal's bound, but for the bound itself."""
    low = {temperature_word(value): value for value in range(-200, 401, 25)}
    word = temperature_word(degrees)
    assert word in low
    if degrees != bound:
        assert (low[word] >= bound) == (degrees > bound)


def test_names_are_one_word_each_and_distinct() -> None:
    assert len(set(SHORT.values())) == len(SHORT) == len(FULL)
    assert all(word.isalpha() for word in FULL)


def test_things_are_found_as_whole_names() -> None:
    assert things_in("a bee hive, a wood cup, an orange wire, a giant tortoise egg, the plants, a red box") == [
        "giant tortoise",
        "red box",
    ]
    assert things_in("a tadpole and the common toad, an apple tree, an apple") == ["tadpole", "frog egg", "apple tree"]


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record["task"])
def test_recorded_games_use_known_words_and_few(record: dict[str, Any]) -> None:
    tokenizer, style = build_tokenizer(*words()), CompactStyle()
    shown = [style.first(Observation(record["first"], record["goal"], ()))]
    for action, text, score in record["turns"]:
        if compact_action(action) != action:
            shown.append(compact_action(action))
        shown.append(style.follow(action, Step(text, 0.0, False, False, True, True, (), score)))
    tokens = tokenizer.encode(" ".join(shown), add_special_tokens=False)
    assert tokenizer.unk_token_id not in tokens
    assert len(tokens) <= 12 + 12 * len(record["turns"])
    assert len(tokenizer) <= 150


def test_a_recorded_goal_loses_nothing() -> None:
    for record in RECORDS:
        wanted, short = parse_goal(record["goal"]), compact_goal(record["goal"]).split()
        for name in (wanted.box, wanted.box_room, wanted.room, wanted.other_box):
            assert not name or SHORT[name.lower()] in short
    assert {THERMOMETER, *BOXES, *ROOMS} <= set(FULL.values())
