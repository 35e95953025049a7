"""What an episode asks for: goals made from products or written by people, and which of them belong to which split."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from divopd.envs.base import EnvError
from divopd.envs.webshop.catalog import Product

PRICE_BOUNDS = tuple(10.0 * step for step in range(1, 100))
NO_BOUND = 1_000_000.0
ORDER_SEED = 233  # the original's, so that goal numbers mean the same goals


@dataclass(frozen=True, slots=True)
class Goal:
    """A product to buy, in words and as the reward sees it. `options`: (name, value) pairs; a person's goal names
    values only, and its names are empty."""

    asin: str
    category: str
    query: str
    title: str
    product_category: str
    instruction: str
    attributes: tuple[str, ...]
    price_upper: float
    options: tuple[tuple[str, str], ...]

    def record(self) -> dict[str, Any]:
        """As JSON, in the original's key names."""
        fields = asdict(self)
        named = all(name for name, _ in self.options)
        return {
            **{key: fields[key] for key in ("asin", "category", "query", "product_category", "price_upper")},
            "name": self.title,
            "instruction_text": self.instruction,
            "attributes": list(self.attributes),
            "goal_options": dict(self.options) if named else [value for _, value in self.options],
        }

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Goal:
        """From the original's goal dict. Raises `EnvError` for a missing key."""
        try:
            options = record["goal_options"]
            return cls(
                asin=record["asin"],
                category=record.get("category", ""),
                query=record["query"],
                title=record["name"],
                product_category=record["product_category"],
                instruction=record.get("instruction_text", ""),
                attributes=tuple(record["attributes"]),
                price_upper=float(record["price_upper"]),
                options=tuple(options.items()) if isinstance(options, Mapping) else tuple(("", v) for v in options),
            )
        except KeyError as error:
            raise EnvError(f"a goal lacks {error}: goals are JSON objects with the original's keys") from error


def make_goals(
    products: Iterable[Product], about: Mapping[str, Any], people: Mapping[str, Any] | None, rng: random.Random
) -> list[Goal]:
    """All goals in the original's order; `rng` draws the price bounds."""
    goals: list[Goal] = []
    for product in products:
        if people is not None:
            goals += _human(product, people.get(product.asin, ()), rng)
        else:
            goals += _synthetic(product, about.get(product.asin, {}), rng)
    random.Random(ORDER_SEED).shuffle(goals)
    return goals


def _bound(price: float, rng: random.Random) -> tuple[float, str]:
    """A price limit above the price, and its words: the larger of two of the next four limits."""
    near = [bound for bound in PRICE_BOUNDS if bound > price][:4]
    if len(near) < 2:
        return NO_BOUND, ""
    bound = max(rng.sample(near, 2))
    return bound, f", and price lower than {bound:.2f} dollars"


def _synthetic(product: Product, about: Mapping[str, Any], rng: random.Random) -> list[Goal]:
    """One goal for every combination of the product's options, if it has an instruction."""
    words = about.get("instruction")
    if words is None:
        return []
    bound, price = _bound(product.price, rng)
    attributes = tuple(about["instruction_attributes"])
    names = sorted(product.options)
    goals = []
    for values in itertools.product(*(product.options[name] for name in names)):
        options = tuple(zip(names, values, strict=True))
        wish = ", and ".join(f"{name}: {value}" for name, value in options)
        text = f"{words} with {wish}{price}" if wish else f"{words}{price}"
        goals.append(_goal(product, text, attributes, bound, options))
    return goals


def _human(product: Product, asked: Sequence[Mapping[str, Any]], rng: random.Random) -> list[Goal]:
    """One goal for each person's instruction that names an attribute."""
    goals = []
    for one in asked:
        attributes = tuple(one["instruction_attributes"])
        if attributes:
            bound, price = _bound(product.price, rng)
            options = tuple(("", value) for value in one["instruction_options"])
            goals.append(_goal(product, one["instruction"].strip(".") + price, attributes, bound, options))
    return goals


def _goal(
    product: Product, text: str, attributes: tuple[str, ...], bound: float, options: tuple[tuple[str, str], ...]
) -> Goal:
    return Goal(
        asin=product.asin,
        category=product.category,
        query=product.query,
        title=product.title,
        product_category=product.product_category,
        instruction=text,
        attributes=attributes,
        price_upper=bound,
        options=options,
    )
