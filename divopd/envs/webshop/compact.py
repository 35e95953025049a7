"""WebShop in few words, for small models on the generated catalogue: an episode is about 100 tokens instead of 2,500.

A result is "over" if its price is above the goal's limit, what its title has of the goal's words, its type, and its
rank: "over quiet foldable speaker third". The goal stands on every page, so a page is enough to say so. "pick third" is
the click on that result's ASIN. What a page has shown is not shown again.
"""

from __future__ import annotations

import functools
import itertools
import math
import re
from dataclasses import dataclass

from divopd.envs.base import Observation, Step
from divopd.envs.webshop.lexicon import CONTENT_WORDS, KIND_WORDS, OPTION_WORDS

SEPARATOR = " [SEP] "
OBSERVATION_WORDS = ["task", "page", "over", "view", "has", "start", "text", "ok", "fail", "nothing"]
ACTION_WORDS = ["search", "pick", "choose", "buy", "back", "next", "restart", "read"]
SUBPAGES = ["description", "features", "reviews", "attributes"]
NUMBERS = [str(n) for n in range(1, 7)]  # pages
RANKS = ["first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth"]
_FIXED = {"buy now": "buy", "< prev": "back", "next >": "next", "back to search": "restart"}
_PAGE = re.compile(r"Page (\d+) \(Total results: \d+\)")
_DOLLARS = re.compile(r"\$(\d+(?:\.\d+)?)")
_LIMIT = re.compile(r"price lower than (\d+)")
_VALUES = frozenset(OPTION_WORDS)
_ASIN = re.compile(r"click\[(b[0-9][a-z0-9]{8})\]")


@dataclass(frozen=True, slots=True)
class Product:
    """What a page tells of a product: content words of its title, and its price (the end of a range; 0: none)."""

    asin: str
    words: tuple[str, ...]
    dollars: float


@dataclass(frozen=True, slots=True)
class Page:
    """A page as its text shows it. `kind`: search, results, item, text (a sub-page of an item) or other.

    `goal` stands on every page but the last. `groups`: option group to the values offered, of an item page, whose text
    does not tell its ASIN ("").
    """

    kind: str
    goal: str = ""
    number: int = 0
    results: tuple[Product, ...] = ()
    product: Product | None = None
    groups: tuple[tuple[str, tuple[str, ...]], ...] = ()


def content_words(text: str) -> tuple[str, ...]:
    """The words of the closed vocabulary, in order."""
    return tuple(word for word in re.findall(r"[a-z]+", text.lower()) if word in CONTENT_WORDS)


def price_limit(goal: str) -> float:
    """The goal's limit in dollars, infinity where it names none."""
    found = _LIMIT.search(goal)
    return float(found.group(1)) if found else math.inf


@functools.lru_cache(maxsize=256)  # style, expert and actor read the same page
def read_page(text: str) -> Page:
    """Understand a page of the text mode."""
    parts = text.split(SEPARATOR)
    goal = next((told for label, told in itertools.pairwise(parts) if label.strip() == "Instruction:"), "")
    numbered = next((found for part in parts if (found := _PAGE.fullmatch(part))), None)
    if numbered:
        rows = [i for i, part in enumerate(parts[:-2]) if len(part) == 10 and "$" in parts[i + 2]]
        return Page(
            "results", goal, int(numbered.group(1)), tuple(_product(parts[i], parts[i + 1], parts[i + 2]) for i in rows)
        )
    if "Buy Now" in parts:
        at = next(i for i, part in enumerate(parts) if part.startswith("Price: "))
        offered = parts[parts.index("< Prev") + 1 : at - 1]
        return Page("item", goal, product=_product("", parts[at - 1], parts[at]), groups=_groups(offered))
    if "< Prev" in parts:
        return Page("text", goal)
    return Page("search" if parts[-1] == "Search" else "other", goal)


def compact_page(page: Page) -> str:
    """One page in few words."""
    if page.kind == "results":
        lines = [f"{_described(product, page.goal)} {rank}" for product, rank in zip(page.results, RANKS, strict=False)]
        return " ".join([f"page, {page.number}", *lines] if lines else ["nothing"])
    if page.kind == "item" and page.product is not None:
        values = [value for _, offered in page.groups for value in offered]
        return f"view {_described(page.product, page.goal)} has {' '.join(values)}"
    return {"search": "start", "text": "text"}.get(page.kind, "")


def product_of(command: str) -> str | None:
    """The ASIN in lower case that a command clicks on, if it does."""
    found = _ASIN.fullmatch(command)
    return found.group(1) if found else None


def compact_action(command: str, allowed: tuple[str, ...]) -> str:
    """A command in few words: "search quiet speaker", "pick third", "choose red", "buy", "back", ..."""
    name, _, rest = command.partition("[")
    argument = rest.removesuffix("]")
    if name == "search":
        return f"search {argument}"
    if product_of(command):
        listed = [other for other in allowed if product_of(other)]
        return f"pick {RANKS[listed.index(command)]}" if command in listed else command
    if argument in SUBPAGES:
        return f"read {argument}"
    return _FIXED.get(argument, f"choose {argument}")


class CompactStyle:
    """See the module: goal, then one short line a turn."""

    def first(self, observation: Observation) -> str:
        return f"task {' '.join(content_words(observation.goal))}"

    def follow(self, action: str, step: Step) -> str:
        """A page of results that one returns to is named by its number, and the answer to a choice is "ok"."""
        if not step.valid:
            return "fail"
        page = read_page(step.text)
        if page.results and action == "click[< prev]":
            return f"page, {page.number}"
        if page.kind == "item" and not product_of(action):
            return "ok"
        return compact_page(page)

    def action(self, response: str, allowed: tuple[str, ...]) -> str:
        """The allowed command with this short form, or the search; else the response, which the engine will refuse."""
        text = " ".join(response.split())
        if text.startswith("search "):
            return f"search[{text.removeprefix('search ')}]"
        return next((command for command in allowed if compact_action(command, allowed) == text), text)

    def response(self, action: str, allowed: tuple[str, ...]) -> str:
        return compact_action(action, allowed)


@functools.lru_cache(maxsize=1 << 14)
def _product(asin: str, title: str, price: str) -> Product:
    return Product(asin.lower(), content_words(title), max(map(float, _DOLLARS.findall(price)), default=0.0))


def _described(product: Product, goal: str) -> str:
    """Is it too dear, what has it of the goal's words, and its type."""
    wanted = content_words(goal)
    over = ["over"] if product.dollars > price_limit(goal) else []
    kinds = [word for word in product.words if word in KIND_WORDS]
    return " ".join([*over, *(word for word in product.words if word in wanted and word not in kinds), *kinds])


def _groups(parts: list[str]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    groups: list[tuple[str, list[str]]] = []
    for part in parts:
        if part.lower() in _VALUES:
            groups[-1][1].append(part.lower())
        else:
            groups.append((part.lower(), []))
    return tuple((name, tuple(values)) for name, values in groups)
