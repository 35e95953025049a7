"""One episode in the shop: which page is shown, what is chosen, and what an action does."""

from __future__ import annotations

import functools
import json
import random
import re
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import Literal

from divopd.envs.webshop import pages
from divopd.envs.webshop.catalog import Catalog, Product
from divopd.envs.webshop.fixes import Fixes
from divopd.envs.webshop.goals import Goal
from divopd.envs.webshop.pages import Mode, Piece
from divopd.envs.webshop.reward import Reward, purchase_reward
from divopd.envs.webshop.search import RESULTS
from divopd.seeds import seed

_ACTION = re.compile(r"(.+)\[(.+)\]")
_BACKDOORS = ("<r>", "<a>", "<c>", "<q>")


def parse_action(action: str) -> tuple[str, str] | None:
    """(name, lower-cased argument) of `name[argument]`, or None. Greedy and case-sensitive, as the original."""
    match = _ACTION.match(action)
    return None if match is None else (match[1], match[2].lower())


def button(action: str, names: Collection[str], on_item: bool, by_name: bool) -> str | None:
    """Which of a page's buttons an action clicks. `on_item`: an item's page; `by_name`: Fixes.clicks_by_name."""
    name, argument = parse_action(action) or ("", "")
    if name == "click" and argument in names and argument != pages.SEARCH:
        return argument
    if not by_name or not (action.startswith("click[") and action.endswith("]")):
        return None
    argument = action[len("click[") : -1].lower()
    if not argument or (argument == pages.SEARCH and not on_item):
        return None
    return argument if argument in names else next((one for one in names if one and _spelt(one) == argument), None)


@functools.lru_cache(maxsize=4096)
def offers(names: tuple[str, ...], on_item: bool, by_name: bool) -> tuple[str, ...]:
    """The clicks on a page's buttons that do something, each once and, `by_name`, in one line."""
    known = dict.fromkeys(names)
    clicks = dict.fromkeys(f"click[{_spelt(name) if by_name else name}]" for name in known)
    return tuple(click for click in clicks if button(click, known, on_item, by_name))


def _spelt(name: str) -> str:
    return " ".join(name.split())


class Shop:
    """A catalogue's pages, shared by all episodes on it; the latest few thousand stay rendered."""

    def __init__(self, catalog: Catalog, mode: Mode, show_attributes: bool) -> None:
        self.catalog = catalog
        self.mode: Mode = mode
        keep = functools.lru_cache(maxsize=4096)
        self.item = keep(lambda asin: tuple(pages.item_page(catalog.by_asin[asin], show_attributes)))
        self.sub = keep(lambda asin, name: tuple(pages.sub_page(catalog.by_asin[asin], name)))
        self.buttons = keep(lambda asin: pages.item_buttons(catalog.by_asin[asin], show_attributes))


@dataclass(frozen=True, slots=True)
class Place:
    """Where an episode stands. `options`: chosen (name, value) pairs, in the order in which names were first chosen."""

    kind: Literal["search", "results", "item", "sub", "done"] = "search"
    query: str = ""
    page: int = 0
    asin: str = ""
    options: tuple[tuple[str, str], ...] = ()
    sub: str = ""


@dataclass(slots=True)
class Session:
    """An episode: `act` moves it, `place` is where it is, `reward` what the last purchase gave (None before one)."""

    shop: Shop
    goal: Goal
    fixes: Fixes
    place: Place = field(default_factory=Place)
    reward: Reward | None = None
    _seen: frozenset[str] = frozenset()
    _searches: int = 0
    _hits: tuple[Product, ...] = ()

    def act(self, action: str) -> bool:
        """Do what the action says; False where it says nothing that can be done here, and nothing changes."""
        if self.fixes.end_is_final and self.place.kind == "done":
            return False
        name, argument = parse_action(action) or ("", "")
        if name == "search":
            return self._search(argument, 1)
        clicked = button(action, self.clickables(), self.place.kind == "item", self.fixes.clicks_by_name)
        return clicked is not None and self._click(clicked)

    def offered(self) -> tuple[str, ...]:
        """The clicks that do something here, each once, in the page's order."""
        return offers(self.clickables(), self.place.kind == "item", self.fixes.clicks_by_name)

    def clickables(self) -> tuple[str, ...]:
        """Everything on the page that can be clicked, in the original's order."""
        place = self.place
        if place.kind == "search":
            return (pages.SEARCH,)
        if place.kind == "results":
            turns = (pages.PREV, pages.NEXT) if place.page > 1 else (pages.NEXT,)
            return (pages.BACK, *turns, *(product.asin.lower() for product in self._shown()))
        if place.kind == "item":
            return tuple(self.shop.buttons(place.asin))
        return (pages.BACK, pages.PREV) if place.kind == "sub" else ()

    def text(self) -> str:
        """The observation."""
        place, mode = self.place, self.shop.mode
        if place.kind == "search":
            return pages.render(pages.search_page(self.goal.instruction), mode)
        if place.kind == "done":
            total = 0.0 if self.reward is None else self.reward.total
            return pages.render(pages.done_page(place.asin, dict(place.options), total), mode)
        if place.kind == "results":
            body = tuple(pages.results_page(place.page, len(self._hits), self._shown()))
        else:
            body = self.shop.item(place.asin) if place.kind == "item" else self.shop.sub(place.asin, place.sub)
        clicked = self._clicked(body) if mode == "text_rich" else ()
        return pages.render((*pages.head(self.goal.instruction), *body), mode, clicked)

    def _shown(self) -> tuple[Product, ...]:
        end = self.place.page * pages.PER_PAGE
        return self._hits[end - pages.PER_PAGE : end]

    def _search(self, query: str, page: int) -> bool:
        """Show a page of results; they forget the product and the options looked at."""
        hits = self._find(query)
        if hits is None:
            return False
        self.place, self._hits = Place("results", query, page), hits
        self._searches += 1
        return True

    def _find(self, query: str) -> tuple[Product, ...] | None:
        """What a query finds; None where the original crashes or a back door is shut."""
        catalog = self.shop.catalog
        words = query.split(" ")
        if words[0] not in _BACKDOORS:
            return catalog.search(query)
        if self.fixes.block_backdoors:
            return None
        rest = " ".join(words[1:]).strip()
        if words[0] == "<r>" and len(catalog.products) >= RESULTS:
            draw = random.Random(seed("webshop", "<r>", self.goal.instruction, self._searches))
            return tuple(draw.sample(catalog.products, RESULTS))
        if words[0] == "<c>" and len(words) > 1:
            return tuple(product for product in catalog.products if product.category == words[1].strip())
        if words[0] == "<q>":
            return tuple(product for product in catalog.products if product.query == rest)
        return None

    def _click(self, name: str) -> bool:
        place = self.place
        if name == pages.BUY:
            self._buy()
        elif name == pages.BACK:
            self.place, self._seen, self._hits = Place(), frozenset(), ()
        elif name in (pages.NEXT, pages.PREV) and self._route() == "results":
            return self._search(place.query, place.page + (1 if name == pages.NEXT else -1))
        elif name == pages.PREV and self._route() == "sub":
            self.place = replace(place, kind="item", sub="")
        elif name == pages.PREV and self._route() == "item":
            return self._search(place.query, place.page)
        elif name in pages.SUB_PAGES:
            self.place = replace(place, kind="sub", sub=name)
        elif place.kind == "results":
            asin = next(product.asin for product in self._shown() if product.asin.lower() == name)
            self.place = replace(place, kind="item", asin=asin)
            self._seen |= {asin}
        else:
            group = self.shop.buttons(place.asin)[name]
            options = dict(place.options) | ({group: name} if group is not None else {})
            self.place = replace(place, kind="item", options=tuple(options.items()))
        return True

    def _buy(self) -> None:
        place, catalog = self.place, self.shop.catalog
        product = catalog.by_asin[place.asin]
        self.reward = purchase_reward(product, self.goal, dict(place.options), catalog.title_nouns)
        self.place = replace(place, kind="done")

    def _route(self) -> str:
        """Which kind of page `< prev` and `next >` take this one for: the original looks for names in the address."""
        if self.fixes.route_by_page:
            return self.place.kind
        address = self._address()
        names = {"search_results": "results", "item_page": "item", "item_sub_page": "sub", "done": "done"}
        return next((kind for name, kind in names.items() if name in address), "search")

    def _address(self) -> str:
        """The part of the original's address after the session's name."""
        place = self.place
        query = place.query.replace(" ", "+")
        if place.kind == "results":
            return f"/search_results/{query}/{place.page}"
        if place.kind == "item":
            return f"/item_page/{place.asin}/{query}/{place.page}/{json.dumps(dict(place.options))}"
        return f"/item_sub_page/{place.asin}/{query}/{place.page}/{place.sub.capitalize()}/{dict(place.options)}"

    def _clicked(self, body: tuple[Piece, ...]) -> frozenset[Piece]:
        """Which links and labels rich text marks as clicked."""
        if self.place.kind == "results":
            return frozenset(piece for piece in body if piece.kind == "link" and piece.text in self._seen)
        labels = [piece for piece in body if piece.kind == "option"]
        if self.fixes.marks_by_state:
            chosen = dict(self.place.options)
            return frozenset(piece for piece in labels if chosen.get(piece.group) == piece.text)
        address = self._address()
        return frozenset(piece for piece in labels if f'"{piece.text}"' in address)
