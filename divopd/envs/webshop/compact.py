"""WebShop in few words, for small models on the generated catalogue: an episode is about 120 tokens instead of 2,500.

A result is its title's content words, its price and its number within its type ("quiet foldable speaker backlit, 30
item 7"), prices are rounded up to tens, which is exact because limits are tens; "pick speaker item 7" stands for the
click on its ASIN. The words of a page come from the page alone, and what a page has shown is not shown again.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass

from divopd.envs.base import Observation, Step
from divopd.envs.webshop.generate import name_of
from divopd.envs.webshop.lexicon import CONTENT_WORDS, OPTION_WORDS

SEPARATOR = " [SEP] "
OBSERVATION_WORDS = ["task", "page", "view", "has", "start", "text", "ok", "fail", "nothing"]
ACTION_WORDS = ["search", "pick", "choose", "buy", "back", "next", "restart", "read"]
SUBPAGES = ["description", "features", "reviews", "attributes"]
NUMBERS = [str(n) for n in (*range(1, 10), *range(10, 221, 10))]  # pages, and dollars
_FIXED = {"buy now": "buy", "< prev": "back", "next >": "next", "back to search": "restart"}
_PAGE = re.compile(r"Page (\d+) \(Total results: \d+\)")
_DOLLARS = re.compile(r"\$(\d+(?:\.\d+)?)")
_LIMIT = re.compile(r"price lower than (\d+)")
_VALUES = frozenset(OPTION_WORDS)


@dataclass(frozen=True, slots=True)
class Product:
    """What a page tells of a product: content words of its title, and dollars rounded up to tens (0: no price)."""

    asin: str
    words: tuple[str, ...]
    dollars: int


@dataclass(frozen=True, slots=True)
class Page:
    """A page as its text shows it. `kind`: search, results, item, text (a sub-page of an item) or other.

    `groups`: option group to the values offered, of an item page. The text does not tell an item page's ASIN ("").
    """

    kind: str
    number: int = 0
    results: tuple[Product, ...] = ()
    product: Product | None = None
    groups: tuple[tuple[str, tuple[str, ...]], ...] = ()


def content_words(text: str) -> tuple[str, ...]:
    """The words of the closed vocabulary, in order."""
    return tuple(word for word in re.findall(r"[a-z]+", text.lower()) if word in CONTENT_WORDS)


def price_limit(goal: str) -> int | None:
    """The goal's limit in dollars, None where it names none."""
    found = _LIMIT.search(goal)
    return int(found.group(1)) if found else None


@functools.lru_cache(maxsize=256)  # style, expert and actor read the same page
def read_page(text: str) -> Page:
    """Understand a page of the text mode."""
    parts = text.split(SEPARATOR)
    numbered = next((found for part in parts if (found := _PAGE.fullmatch(part))), None)
    if numbered:
        rows = [i for i, part in enumerate(parts[:-2]) if name_of(part) and "$" in parts[i + 2]]
        return Page(
            "results", int(numbered.group(1)), tuple(_product(parts[i], parts[i + 1], parts[i + 2]) for i in rows)
        )
    if "Buy Now" in parts:
        at = next(i for i, part in enumerate(parts) if part.startswith("Price: "))
        offered = parts[parts.index("< Prev") + 1 : at - 1]
        return Page("item", product=_product("", parts[at - 1], parts[at]), groups=_groups(offered))
    if "< Prev" in parts:
        return Page("text")
    return Page("search" if parts[-1] == "Search" else "other")


def compact_page(page: Page) -> str:
    """One page in few words."""
    if page.kind == "results":
        return " ".join([f"page, {page.number}", *map(_line, page.results)] if page.results else ["nothing"])
    if page.kind == "item" and page.product is not None:
        values = [value for _, offered in page.groups for value in offered]
        return f"view {_described(page.product)} has {' '.join(values)}"
    return {"search": "start", "text": "text"}.get(page.kind, "")


def compact_action(command: str) -> str:
    """A command in few words: "search quiet speaker", "pick speaker item 7", "choose red", "buy", "back", ..."""
    name, _, rest = command.partition("[")
    argument = rest.removesuffix("]")
    if name == "search":
        return f"search {argument}"
    if named := name_of(argument):
        return f"pick {named[0]} item {named[1]}"
    if argument in SUBPAGES:
        return f"read {argument}"
    return _FIXED.get(argument, f"choose {argument}")


class CompactStyle:
    """See the module: goal, then one short line a turn."""

    def first(self, observation: Observation) -> str:
        limit = price_limit(observation.goal)
        return f"task {' '.join(content_words(observation.goal))}" + ("" if limit is None else f", {limit}")

    def follow(self, action: str, step: Step) -> str:
        """A page of results that one returns to is named by its number, and the answer to a choice is "ok"."""
        if not step.valid:
            return "fail"
        page = read_page(step.text)
        if page.kind == "results" and action == "click[< prev]":
            return f"page, {page.number}"
        if page.kind == "item" and not compact_action(action).startswith("pick "):
            return "ok"
        return compact_page(page)

    def action(self, response: str, allowed: tuple[str, ...]) -> str:
        """The allowed command with this short form, or the search; else the response, which the engine will refuse."""
        text = " ".join(response.split())
        if text.startswith("search "):
            return f"search[{text.removeprefix('search ')}]"
        return next((command for command in allowed if compact_action(command) == text), text)


@functools.lru_cache(maxsize=1 << 14)
def _product(asin: str, title: str, price: str) -> Product:
    dollars = max(map(float, _DOLLARS.findall(price)), default=0.0)
    return Product(asin.lower(), content_words(title), int(-(-dollars // 10) * 10))


def _described(product: Product) -> str:
    return f"{' '.join(product.words)}, {product.dollars}"


def _line(product: Product) -> str:
    named = name_of(product.asin)
    return f"{_described(product)} item {named[1] if named else 0}"


def _groups(parts: list[str]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    groups: list[tuple[str, list[str]]] = []
    for part in parts:
        if part.lower() in _VALUES:
            groups[-1][1].append(part.lower())
        else:
            groups.append((part.lower(), []))
    return tuple((name, tuple(values)) for name, values in groups)
