"""Tokens of an episode: appended turn by turn, they are what the chat template gives for the whole conversation."""

from __future__ import annotations

import numpy as np
import pytest

from divopd.config import EnvConfig
from divopd.envs.alfworld.compact import CompactStyle, compact_action, compact_observation
from divopd.envs.base import Observation, Step
from divopd.envs.registry import make_envs
from divopd.prompts import ChatStyle, Renderer


def step(text, allowed=()):
    return Step(text, 0.0, False, False, True, True, tuple(allowed))


@pytest.mark.parametrize(
    ("text", "short"),
    [
        ("Nothing happens.", "fail"),
        ("You arrive at drawer 2. The drawer 2 is closed.", "closed"),
        ("You arrive at shelf 1. On the shelf 1, you see a mug 1, and a pen 2.", "see mug 1 pen 2"),
        ("You arrive at shelf 1. On the shelf 1, you see nothing.", "see nothing"),
        ("You open the safe 1. The safe 1 is open. In it, you see a cd 3.", "open cd 3"),
        ("You pick up the mug 1 from the shelf 1.", "ok"),
        ("You are carrying: a mug 1.", "carrying mug 1"),
        (
            "You are in the middle of a room. Looking quickly around you, you see a bed 1, and a desk 2.",
            "room bed 1 desk 2",
        ),
        ("This is a hot mug 1.", "hot mug 1"),
    ],
)
def test_observations_in_few_words(text, short):
    assert compact_observation(text) == short


def test_short_actions_name_one_allowed_command(game_cache):
    """Through several games: every allowed command comes back from its short form."""
    env = make_envs(EnvConfig(cache_dir=str(game_cache)), 1)[0]
    style = CompactStyle()
    seen = 0
    for i in range(3):
        observation = env.reset(f"gen/train/{i}")
        allowed = observation.allowed
        for turn in range(12):
            assert [style.action(compact_action(command), allowed) for command in allowed] == list(allowed)
            seen += len(allowed)
            allowed = env.step(allowed[(7 * turn) % len(allowed)]).allowed
    assert seen > 300


def test_unknown_response_is_passed_on():
    assert CompactStyle().action(" dance mug 1 ", ("take mug 1 from shelf 1",)) == "dance mug 1"


def test_appended_tokens_equal_the_whole_conversation(tokenizer):
    renderer = Renderer(tokenizer, CompactStyle())
    first = Observation(
        "You are in the middle of a room. Looking quickly around you, you see a bed 1, and a desk 2.",
        "put a mug in desk.",
        (),
    )
    answers = ["You arrive at desk 2. On the desk 2, you see a mug 1.", "Nothing happens."]
    responses = ["go desk 2", "take pen 1"]
    tokens = renderer.first(first).tolist()
    messages = [{"role": "user", "content": renderer.style.first(first)}]
    for response, answer in zip(responses, answers, strict=True):
        tokens += tokenizer.encode(response) + [renderer.eos] + renderer.follow(response, step(answer), False).tolist()
        messages += [
            {"role": "assistant", "content": response},
            {"role": "user", "content": renderer.style.follow(response, step(answer))},
        ]
    whole = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert tokens == tokenizer.encode(whole)
    assert tokenizer.unk_token_id not in tokens


def test_truncated_response_gets_its_end_marker(tokenizer):
    renderer = Renderer(tokenizer, CompactStyle())
    plain = renderer.follow("look", step("Nothing happens."), False)
    closed = renderer.follow("look", step("Nothing happens."), True)
    assert closed.tolist() == [renderer.eos, *plain.tolist()]


def test_response_text_drops_the_end_marker(tokenizer):
    renderer = Renderer(tokenizer, CompactStyle())
    ids = np.array(tokenizer.encode("go desk 2<end>"))
    assert renderer.action(ids, ("go to desk 2", "go to desk 3")) == "go to desk 2"


def test_chat_style_takes_the_last_action_tag():
    style = ChatStyle()
    assert style.action("I might <action>look</action> or <action> go to desk 1 </action>", ()) == "go to desk 1"
    assert style.action("hm\ngo to desk 1", ()) == "go to desk 1"
    assert style.action("", ()) == ""
    text = style.first(Observation("You see a desk.", "put a mug in desk.", ("look", "go to desk 1")))
    assert all(part in text for part in ("put a mug in desk.", "You see a desk.", "- go to desk 1\n"))
