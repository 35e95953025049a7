"""Options with odd texts: what is offered can be clicked, in one line and once, whatever the product's file holds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from divopd.envs.webshop import STRICT, Fixes, WebshopEnv, load_catalog

FIXTURE = Path(__file__).resolve().parent / "webshop_fixture"
ASIN = "B000000001"


def read(name: str) -> Any:
    return json.loads((FIXTURE / f"{name}.json").read_text())


def shelf(options: dict[str, list[str]], fixes: Fixes) -> WebshopEnv:
    """A shop of one product."""
    item = read("items")[0] | {"customization_options": {k: [{"value": v} for v in vs] for k, vs in options.items()}}
    goal = read_goal() | {"goal_options": []}
    catalog = load_catalog([item], read("attributes"), nouns=read("nouns"), goals=[goal])
    return WebshopEnv(catalog, {"it/0": catalog.goals[0]}, fixes=fixes)


def read_goal() -> dict[str, Any]:
    catalog = load_catalog(read("items")[:1], read("attributes"), nouns=read("nouns"))
    return catalog.goals[0].record()


def opened(env: WebshopEnv) -> tuple[str, ...]:
    env.reset("it/0")
    env.step("search[oak desk]")
    return env.step(f"click[{ASIN}]").allowed


PIECES = ["[", "]", "\n", "\t", " ", "  ", "\r\n", "\u00a0", "\u2028", "/", "a", "B", "7", "\u0130", "\u1e9e", "\x1c",
          "click[", "search", "buy now", "< prev", "features", "<query>", "."]  # fmt: skip
VALUES = st.lists(st.sampled_from(PIECES), max_size=5).map("".join)


@settings(max_examples=150, deadline=None)
@given(st.lists(VALUES, min_size=1, max_size=4), st.lists(VALUES, max_size=3), st.booleans())
def test_what_is_offered_can_be_clicked(first: list[str], second: list[str], mended: bool) -> None:
    env = shelf({"Color": first, "Size": second}, Fixes() if mended else STRICT)
    offered = opened(env)
    assert len(set(offered)) == len(offered)
    for action in offered:
        assert opened(env) == offered
        step = env.step(action)
        assert step.valid, action
    if mended:
        assert all(len(action.splitlines()) == 1 for action in offered)


@pytest.mark.parametrize(
    ("value", "action"),
    [
        ("size [EU]", "click[size [eu]]"),
        ("[", "click[[]"),
        ("a]b", "click[a]b]"),
        ("two\nlines", "click[two lines]"),
        (" wide \t  blank ", "click[wide blank]"),
        ("Search", "click[search]"),
        ("no\u00a0break", "click[no break]"),
    ],
)
def test_odd_values_are_chosen_by_their_words(value: str, action: str) -> None:
    env = shelf({"Kind": ["plain", value]}, Fixes())
    assert action in opened(env) and env.step(action).valid
    assert env._session is not None
    [(group, chosen)] = env._session.place.options
    assert (group, chosen) == ("kind", value.strip().lower())
    assert env.step("click[buy now]").done


def test_the_original_does_not_offer_what_it_cannot_click() -> None:
    offered = opened(shelf({"Kind": ["plain", "size [EU]", "two\nlines", ""]}, STRICT))
    assert [name for name in offered if "plain" in name or "size" in name or "two" in name] == ["click[plain]"]
    assert "click[]" not in offered


def test_values_that_read_alike_are_offered_once() -> None:
    env = shelf({"Kind": ["two  words", "two words", "Two Words", "two/ words"]}, Fixes())
    assert [name for name in opened(env) if "two" in name] == ["click[two words]", "click[two | words]"]
    env.step("click[two words]")
    assert env._session is not None and env._session.place.options == (("kind", "two words"),)
