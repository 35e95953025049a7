"""Pages in few words, by hand; and every command of real episodes comes back from its short form."""

from __future__ import annotations

import math
import random

import pytest

from divopd.cloning.tokenizer import UNKNOWN, build_tokenizer
from divopd.config import EnvConfig
from divopd.envs.base import Observation, Step
from divopd.envs.registry import make_envs
from divopd.envs.webshop import plugin
from divopd.envs.webshop.compact import CompactStyle, compact_action, content_words, price_limit, read_page

GOAL = "i need an arched vegan boots in black and with wide width, and price lower than 110.00 dollars"
HEAD = f"Instruction: [SEP] {GOAL} [SEP] Back to Search [SEP] "
RESULTS = HEAD + (
    "Page 2 (Total results: 12) [SEP] < Prev [SEP] Next > [SEP] B006QRST34 [SEP] Norvane Arched Vegan Boots for Trail, "
    "Laced [SEP] $70.01 [SEP] B007ABCD05 [SEP] Sandals by Wexmoor, Leather, Laced and Vegan, for Beach [SEP] "
    "$32.25 to $39.5"
)
ITEM = HEAD + (
    "< Prev [SEP] color [SEP] black [SEP] blue [SEP] size [SEP] nine [SEP] width [SEP] regular [SEP] wide [SEP] "
    "Norvane Arched Vegan Boots for Trail, Laced [SEP] Price: $70.0 [SEP] Rating: N.A. [SEP] Description [SEP] "
    "Features [SEP] Reviews [SEP] Buy Now"
)
STYLE = CompactStyle()


def step(text: str, valid: bool = True) -> Step:
    return Step(text, 0.0, False, False, valid, True, ())


def test_goal_keeps_content_words():
    assert STYLE.first(Observation("", GOAL, ())) == "task arched vegan boots black wide"
    assert content_words("Boots, NOT bootstraps") == ("boots",)
    assert price_limit(GOAL) == 110 and price_limit("cheap") == math.inf


def test_results_show_type_wanted_words_excess_and_rank():
    shown = "page, 2 arched vegan boots first vegan sandals second"
    assert STYLE.follow("click[next >]", step(RESULTS)) == shown
    assert STYLE.follow("search[boots]", step(RESULTS)) == shown
    assert STYLE.follow("click[< prev]", step(RESULTS)) == "page, 2"
    empty = HEAD + "Page 1 (Total results: 0) [SEP] Next >"
    assert STYLE.follow("search[zzz]", step(empty)) == "nothing"
    assert STYLE.follow("click[< prev]", step(empty)) == "nothing"


@pytest.mark.parametrize(
    ("tag", "over"),
    [("$110.0", False), ("$110.01", True), ("$9.99", False), ("$102.25 to $109.5", False), ("$102.25 to $119.5", True)],
)
def test_a_price_above_the_limit_shows(tag, over):
    line = "over arched vegan boots first" if over else "arched vegan boots first"
    assert STYLE.follow("click[next >]", step(RESULTS.replace("$70.01", tag))).startswith(f"page, 2 {line} vegan")


def test_item_shows_what_it_offers():
    shown = "view arched vegan boots has black blue nine regular wide"
    assert STYLE.follow("click[b006qrst34]", step(ITEM)) == shown
    assert STYLE.follow("click[black]", step(ITEM)) == "ok"
    assert STYLE.follow("click[< prev]", step(ITEM)) == "ok"  # from a sub-page
    page = read_page(ITEM)
    assert page.groups == (("color", ("black", "blue")), ("size", ("nine",)), ("width", ("regular", "wide")))
    assert page.goal == GOAL


def test_other_pages():
    assert (
        STYLE.follow("click[back to search]", step(f"WebShop [SEP] Instruction:  [SEP] {GOAL} [SEP] Search")) == "start"
    )
    assert STYLE.follow("click[reviews]", step(HEAD + "< Prev")) == "text"
    assert STYLE.follow("click[buy now]", step("Thank you for shopping with us! [SEP] Your code: ")) == ""
    assert STYLE.follow("click[red]", step(ITEM, valid=False)) == "fail"


def test_short_commands():
    allowed = ("click[back to search]", "click[< prev]", "click[next >]", "click[b006qrst34]", "click[b007abcd34]")
    shorts = ["restart", "back", "next", "pick first", "pick second"]
    assert [compact_action(command, allowed) for command in allowed] == shorts
    assert [STYLE.action(text, allowed) for text in shorts] == list(allowed)
    assert STYLE.action("search  vegan boots", ()) == "search[vegan boots]"
    assert STYLE.action("pick third", allowed) == "pick third"  # not on this page: the engine refuses it
    on_item = ("click[buy now]", "click[features]", "click[black]")
    assert [compact_action(command, on_item) for command in on_item] == ["buy", "read features", "choose black"]
    assert STYLE.action("", allowed) == ""


def test_real_episodes_use_known_words_and_every_command_comes_back():
    env = make_envs(EnvConfig(name="webshop"), 1)[0]
    tokenizer = build_tokenizer(*plugin.words())
    draws, style, seen = random.Random(0), plugin.style(), set()
    for number in range(12):
        observation = env.reset(f"gen/train/{number}")
        player = plugin.players((0.5, 0.3, 0.3, 0.1))["novice"]()
        player.reset(observation.goal, observation.text)
        texts, allowed = [style.first(observation)], observation.allowed
        for _ in range(15):
            clicks = [command for command in allowed if command.startswith("click[")]
            for command in clicks:
                assert style.action(plugin.short(command, allowed), allowed) == command
                seen.add(plugin.short(command, allowed).split()[0])
            chances = player.distribution(allowed)
            wild = clicks and draws.random() < 0.3
            action = draws.choice(clicks) if wild else draws.choices(list(chances), list(chances.values()))[0]
            done = env.step(action)
            player.observe(action, done.text)
            texts += [plugin.short(action, allowed), style.follow(action, done)]
            allowed = done.allowed
            if done.done:
                break
        assert UNKNOWN not in tokenizer.tokenize(" ".join(texts)), texts
    assert seen == {"pick", "choose", "buy", "back", "next", "restart", "read"}
