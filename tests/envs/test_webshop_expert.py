"""The expert decides by pages alone: what it does in states made by hand, and how often it wins real episodes."""

from __future__ import annotations

import random

import pytest

from divopd.config import EnvConfig
from divopd.envs.base import EnvError
from divopd.envs.registry import make_envs
from divopd.envs.webshop.expert import BACK, BUY, NEXT, RESTART, Expert, Wish
from envs.webshop_pages import ALLOWED, ALSO, DEAR, FULL, GOAL, GOOD, HEAD, OTHER, PLAIN, START, item, results


def expert(*trail: tuple[str, str]) -> Expert:
    player = Expert()
    player.reset(GOAL, START)
    for action, page in trail:
        player.observe(action, page)
    return player


def test_reads_the_goal():
    words = ("boots", "black", "wide", "arched", "vegan")
    assert Wish.parse(GOAL) == Wish(words, "boots", ("arched", "vegan"), ("black", "wide"), 110.0)
    with pytest.raises(EnvError, match="no product type"):
        Wish.parse("i am looking for happiness")


def test_searches_with_the_goals_words_and_otherwise_only_if_that_led_nowhere():
    assert expert().choices(()) == (FULL, [PLAIN])
    left = expert((FULL, results(OTHER, GOOD)), (RESTART, START))
    assert left.choices(()) == (FULL, [PLAIN])
    empty = expert((FULL, results(OTHER)), (RESTART, START))
    assert empty.choices(()) == (PLAIN, [FULL])
    chances = expert().distribution(("search[<query>]",))
    assert chances[FULL] == pytest.approx(0.82 + 0.02 / 3) and chances[PLAIN] == pytest.approx(0.13 + 0.02 / 3)
    assert chances["search[boots]"] == pytest.approx(0.03 + 0.02 / 3) and sum(chances.values()) == pytest.approx(1)


def test_takes_what_fits_in_type_attributes_and_price():
    player = expert((FULL, results(DEAR, OTHER, GOOD, ALSO)))
    assert player.choices(ALLOWED) == ("click[b006aaaa02]", ["click[b006aaaa03]"])
    chances = player.distribution(ALLOWED)
    assert chances["click[b006aaaa02]"] == pytest.approx(0.82 + 0.02 / 6)
    assert chances["click[b006aaaa03]"] == pytest.approx(0.13 + 0.02 / 6)
    assert chances[NEXT] == pytest.approx(0.03 + 0.02 / 6) and chances[RESTART] == pytest.approx(0.02 / 6)


def test_turns_the_page_of_a_good_search_and_repeats_a_bad_one():
    full_page = results(*[DEAR] * 10)
    assert expert((FULL, full_page)).choices(ALLOWED) == (NEXT, [RESTART])
    assert expert((FULL, results(DEAR))).choices(ALLOWED) == (RESTART, [NEXT])  # the last page
    assert expert((FULL, results(*[DEAR] * 10, page=3))).choices(ALLOWED) == (RESTART, [NEXT])
    assert expert(("search[boots]", full_page)).choices(ALLOWED) == (RESTART, [NEXT])
    nothing = HEAD + "Page 1 (Total results: 0) [SEP] Next >"
    assert expert(("search[zzz]", nothing)).choices((RESTART, NEXT)) == (RESTART, [])


def test_turns_back_to_a_page_with_something_that_fits():
    second = results(*[DEAR] * 10, page=2)
    allowed = (RESTART, BACK, NEXT)
    assert expert((FULL, results(*[GOOD] * 10)), (NEXT, second)).choices(allowed) == (BACK, [RESTART])
    # not for what another search has shown
    assert expert((FULL, results(GOOD)), (PLAIN, results(DEAR)), (NEXT, second)).choices(allowed) == (NEXT, [RESTART])


def test_chooses_each_wanted_option_then_buys():
    page = item(GOOD[1])
    at_item = [(FULL, results(GOOD)), ("click[b006aaaa02]", page)]
    assert expert(*at_item).choices(()) == ("click[black]", ["click[wide]"])
    assert expert(*at_item, ("click[wide]", page)).choices(()) == ("click[black]", [])
    chosen = [*at_item, ("click[wide]", page), ("click[black]", page)]
    assert expert(*chosen).choices(()) == (BUY, [])
    assert expert(*chosen, ("click[blue]", page)).choices(()) == ("click[black]", [])  # a wrong choice is mended
    subpage = HEAD + "< Prev [SEP] text"
    assert expert(*chosen, ("click[description]", subpage)).choices((RESTART, BACK)) == (BACK, [RESTART])
    assert expert(*chosen, ("click[description]", subpage), (BACK, page)).choices(()) == (BUY, [])
    # another visit starts without choices
    assert expert(*chosen, (BACK, results(GOOD)), ("click[b006aaaa02]", page)).choices(())[0] == "click[black]"


@pytest.mark.parametrize("page", [item(OTHER[1]), item(DEAR[1], price="$110.01"), item(GOOD[1], colors="blue")])
def test_leaves_a_wrong_item(page):
    assert expert((FULL, results(GOOD)), ("click[b006aaaa02]", page)).choices(()) == (BACK, [RESTART])


def test_does_not_return_to_an_item_that_lacks_an_option():
    listing = results(GOOD, ALSO)
    player = expert((FULL, listing), ("click[b006aaaa02]", item(GOOD[1], colors="blue")), (BACK, listing))
    assert player.choices(ALLOWED) == ("click[b006aaaa03]", [])


def test_an_action_without_effect_changes_nothing():
    page = item(GOOD[1])
    player = expert((FULL, results(GOOD)), ("click[b006aaaa02]", page), ("click[purple]", page), ("dance", page))
    assert player.choices(())[0] == "click[black]"


def test_refuses_shares_that_leave_no_preference():
    with pytest.raises(ValueError, match="less than 0.5"):
        Expert(spread=0.4, noise=0.1)
    with pytest.raises(RuntimeError, match="reset"):
        Expert().choices(())


def test_wins_real_episodes_in_few_turns():
    env = make_envs(EnvConfig(name="webshop"), 1)[0]
    draws, won, turns = random.Random(0), 0, 0
    for number in range(100):
        observation, player = env.reset(f"gen/eval/{number}"), Expert()
        player.reset(observation.goal, observation.text)
        allowed = observation.allowed
        for _ in range(15):
            chances = player.distribution(allowed)
            action = draws.choices(list(chances), list(chances.values()))[0]
            step = env.step(action)
            player.observe(action, step.text)
            allowed, turns = step.allowed, turns + 1
            if step.done:
                won += step.success
                break
    assert won >= 95 and turns / 100 <= 7
