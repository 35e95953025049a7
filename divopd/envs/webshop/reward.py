"""The original's reward of a purchase: does it match the goal's kind of product, attributes, options and price?"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from rapidfuzz import fuzz

from divopd.envs.webshop.catalog import Product
from divopd.envs.webshop.goals import Goal
from divopd.envs.webshop.nouns import NounSource

_COLORS = """
alabaster apricot aqua ash asphalt azure banana beige black blue blush bordeaux bronze brown burgundy camel camo
caramel champagne charcoal cheetah chestnut chocolate christmas coffee cognac copper coral cranberry cream crystal
dark denim eggplant elephant espresso fuchsia gold granite grape graphite grass gray green grey heather indigo ivory
ivy khaki lavender lemon leopard light lilac lime magenta maroon mauve merlot midnight mint mocha multicolor
mushroom mustard natural navy nude olive orange peach pewter pink plum purple rainbow red rose royal rust sand
sapphire seashell silver skull slate steel stone stonewash sunflower tan taupe teal tiger turquoise violet walnut
wheat white wine yellow"""
COLORS = tuple(_COLORS.split())
_LATIN1 = {code: None for code in range(128, 256)}


@dataclass(frozen=True, slots=True)
class Reward:
    """A purchase's reward and its parts: `kind` (0, 0.1, 0.5, 1) times the share of attributes, options and price met.

    `title_score`: the share of the goal title's nouns that the bought title has; `options`: None where none is asked.
    """

    total: float
    kind: float
    query_match: bool
    category_match: bool
    title_score: float
    attributes: float
    options: float | None
    price: bool


def purchase_reward(product: Product, goal: Goal, options: Mapping[str, str], nouns: NounSource) -> Reward:
    """What buying `product` with the chosen `options` (name -> value) earns; all its parts lie in 0..1."""
    kind, query_match, category_match, title_score = _kind(product, goal, nouns)
    attributes = sum(has_attribute(product, wish) for wish in goal.attributes)
    chosen = met_options(goal, options.values())
    price = product.price <= goal.price_upper
    wishes = len(goal.attributes) + len(goal.options) + 1
    return Reward(
        total=(attributes + chosen + price) / wishes * kind,
        kind=kind,
        query_match=query_match,
        category_match=category_match,
        title_score=title_score,
        attributes=attributes / len(goal.attributes),
        options=chosen / len(goal.options) if goal.options else None,
        price=price,
    )


def _kind(product: Product, goal: Goal, nouns: NounSource) -> tuple[float, bool, bool, float]:
    """Is it the same kind of product? By query, by two shared category steps, or by the nouns of the titles."""
    query_match = product.query == goal.query
    category_match = len(_steps(product.product_category) & _steps(goal.product_category)) >= 2
    bought, wanted = nouns(product.title), nouns(goal.title)
    title_score = len(set(bought) & set(wanted)) / len(wanted) if wanted else 0.2
    kind = 1.0 if query_match or category_match or title_score > 0.2 else 0.5
    if title_score < 0.1:
        kind = 0.0 if title_score == 0.0 else 0.1
    return kind, query_match, category_match, title_score


@functools.lru_cache(maxsize=1 << 14)
def _steps(category: str) -> frozenset[str]:
    return frozenset(step.strip() for step in category.split("›"))


def has_attribute(product: Product, wish: str) -> bool:
    """Is the attribute near one of the product's, or does it stand in its title, bullets or description?"""
    return any(near(own, wish) for own in product.attributes) or wish in product.document


def met_options(goal: Goal, chosen: Iterable[str]) -> int:
    """How many of the goal's options some chosen value meets."""
    values = list(chosen)
    return sum(any(meets(value, wish) for value in values) for wish in goal.options)


@functools.lru_cache(maxsize=1 << 16)
def meets(value: str, wish: tuple[str, str]) -> bool:
    """Is the chosen value near to the wanted (name, value)? A colour word in it stands for all of it.

    A wish with a name is compared as the text of the pair, with its colour as it is: so the original does, and a chosen
    value of which only a colour word is left may miss the wish it is equal to.
    """
    name, wanted = wish
    return near(plain_color(value), str(wish) if name else plain_color(wanted))


@functools.lru_cache(maxsize=1 << 14)
def plain_color(text: str) -> str:
    """The first word of `COLORS` that stands in the text, or the text itself."""
    return next((color for color in COLORS if color in text), text)


def near(first: str, second: str) -> bool:
    """Is thefuzz's token_set_ratio above 85? It rounds to whole numbers."""
    return round(fuzz.token_set_ratio(_plain(first), _plain(second))) > 85


@functools.lru_cache(maxsize=1 << 15)
def _plain(text: str) -> str:
    """As thefuzz prepares texts: Latin-1's upper half out, then other signs to spaces, lower case."""
    return re.sub(r"\W", " ", text.translate(_LATIN1)).lower().strip()
