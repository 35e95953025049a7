"""The novice has the expert's distribution except where one of its habits has its moment."""

from __future__ import annotations

import pytest

from divopd.envs.webshop.expert import BACK, BUY, NEXT, Expert
from divopd.envs.webshop.novice import Novice
from envs.webshop_pages import ALLOWED, DEAR, FULL, GOAL, GOOD, START, item, results

ON_ITEM = (BACK, BUY, "click[black]", "click[blue]", "click[regular]", "click[wide]")


def novice(*trail: tuple[str, str], **habits: float) -> Novice:
    player = Novice(**({"vague": 0.0, "hasty": 0.0, "wander": 0.0, "careless": 0.0} | habits))
    player.reset(GOAL, START)
    for action, page in trail:
        player.observe(action, page)
    return player


def expert(*trail: tuple[str, str]) -> Expert:
    player = Expert()
    player.reset(GOAL, START)
    for action, page in trail:
        player.observe(action, page)
    return player


def test_searches_for_the_bare_type():
    chances = novice(vague=0.7).distribution(("search[<query>]",))
    assert chances["search[boots]"] == pytest.approx(0.7 + 0.3 * (0.03 + 0.02 / 3))
    assert chances[FULL] == pytest.approx(0.3 * (0.82 + 0.02 / 3))
    assert sum(chances.values()) == pytest.approx(1)


def test_takes_the_first_result_not_looked_at():
    trail = [(FULL, results(DEAR, GOOD))]
    chances = novice(*trail, hasty=0.6).distribution(ALLOWED)
    base = expert(*trail).distribution(ALLOWED)
    assert chances["click[b006aaaa01]"] == pytest.approx(0.6 + 0.4 * base["click[b006aaaa01]"])
    trail += [("click[b006aaaa01]", item(DEAR[1], price="$110.01")), (BACK, results(DEAR, GOOD))]
    chances = novice(*trail, hasty=0.6).distribution(ALLOWED)
    assert chances["click[b006aaaa02]"] == pytest.approx(0.6 + 0.4 * base["click[b006aaaa02]"])


def test_turns_the_page_and_leaves_what_fits():
    trail = [(FULL, results(GOOD))]
    assert novice(*trail, wander=0.5).distribution(ALLOWED)[NEXT] == pytest.approx(0.5 + 0.5 * (0.03 + 0.02 / 6))
    trail += [("click[b006aaaa02]", item(GOOD[1]))]
    assert novice(*trail, wander=0.5).distribution(ON_ITEM)[BACK] == pytest.approx(0.5 + 0.5 * (0.03 + 0.02 / 6))


def test_buys_before_the_options_are_chosen_or_the_item_is_wrong():
    for page in (item(GOOD[1]), item(DEAR[1], price="$110.01")):
        trail = [(FULL, results(GOOD)), ("click[b006aaaa02]", page)]
        base = expert(*trail).distribution(ON_ITEM)[BUY]
        assert novice(*trail, careless=0.4).distribution(ON_ITEM)[BUY] == pytest.approx(0.4 + 0.6 * base)


def test_without_habits_it_is_the_expert():
    trail = [(FULL, results(DEAR, GOOD))]
    assert novice(*trail).distribution(ALLOWED) == expert(*trail).distribution(ALLOWED)
    assert novice().distribution(()) == expert().distribution(())


@pytest.mark.parametrize("habits", [{"vague": 1.2}, {"hasty": 0.6, "wander": 0.5}, {"careless": -0.1}])
def test_refuses_impossible_shares(habits):
    with pytest.raises(ValueError, match="shares"):
        novice(**habits)
