"""What an episode asks for: goals made from products or written by people, and which of them belong to which split."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from divopd.envs.fields import FieldError, array, entry, need, odd, text, texts
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
        """From the original's goal dict. Raises FieldError (fields.py) for a missing or odd field."""
        price = need(record, "price_upper")
        if not isinstance(price, int | float):
            raise odd(price, "price_upper", "a number")
        return cls(
            asin=text(need(record, "asin"), "asin"),
            category=text(record.get("category", ""), "category"),
            query=text(need(record, "query"), "query"),
            title=text(need(record, "name"), "name"),
            product_category=text(need(record, "product_category"), "product_category"),
            instruction=text(record.get("instruction_text", ""), "instruction_text"),
            attributes=_some(need(record, "attributes"), "attributes"),
            price_upper=float(price),
            options=_wishes(need(record, "goal_options"), "goal_options"),
        )


def read_goals(records: Iterable[Mapping[str, Any]]) -> list[Goal]:
    """Goals as `Goal.record` writes them. Raises `EnvError` for one that is none."""
    goals = []
    for number, record in enumerate(records):
        with entry(f"goal {number}"):
            goals.append(Goal.from_record(record))
    return goals


def _some(value: Any, name: str) -> tuple[str, ...]:
    """At least one attribute: the reward divides by their number."""
    attributes = texts(value, name)
    if not attributes:
        raise FieldError(f"{name} is empty where at least one attribute is due")
    return attributes


def _wishes(value: Any, name: str) -> tuple[tuple[str, str], ...]:
    """Wanted options: an object name -> value, or a list of values, whose names stay empty."""
    if isinstance(value, Mapping):
        return tuple((key, text(wanted, f"{name}.{key}")) for key, wanted in value.items())
    return tuple(("", wanted) for wanted in texts(value, name))


def make_goals(
    products: Iterable[Product], about: Mapping[str, Any], people: Mapping[str, Any] | None, rng: random.Random,
    names: Sequence[str] = ("attributes", "people's goals"), left_out: Counter[str] | None = None,
) -> list[Goal]:  # fmt: skip
    """All goals in the original's order; `rng` draws the price bounds. `names`: of the two sources, for messages."""
    goals: list[Goal] = []
    left_out = Counter() if left_out is None else left_out
    for product in products:
        if people is not None:
            goals += _human(product, people.get(product.asin, ()), rng, names[1], left_out)
        else:
            with entry(f"{names[0]}: {product.asin}"):
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
    if about.get("instruction") is None:
        return []
    words = text(about["instruction"], "instruction")
    attributes = _some(need(about, "instruction_attributes"), "instruction_attributes")
    bound, price = _bound(product.price, rng)
    names = sorted(product.options)
    goals = []
    for values in itertools.product(*(product.options[name] for name in names)):
        options = tuple(zip(names, values, strict=True))
        wish = ", and ".join(f"{name}: {value}" for name, value in options)
        instruction = f"{words} with {wish}{price}" if wish else f"{words}{price}"
        goals.append(_goal(product, instruction, attributes, bound, options))
    return goals


def _human(product: Product, asked: Any, rng: random.Random, source: str, left_out: Counter[str]) -> list[Goal]:
    """One goal for each person's instruction that names an attribute."""
    goals = []
    with entry(f"{source}: {product.asin}"):
        asked = array(asked, "its entry")
    for number, one in enumerate(asked):
        with entry(f"{source}: {product.asin}[{number}]"):
            attributes = texts(need(one, "instruction_attributes"), "instruction_attributes")
            if not attributes:
                left_out[f"{source}: instructions with no attribute"] += 1
                continue
            words = text(need(one, "instruction"), "instruction").strip(".")
            options = _wishes(need(one, "instruction_options"), "instruction_options")
        bound, price = _bound(product.price, rng)
        goals.append(_goal(product, words + price, attributes, bound, options))
    return goals


def _goal(
    product: Product, instruction: str, attributes: tuple[str, ...], bound: float, options: tuple[tuple[str, str], ...]
) -> Goal:
    return Goal(
        asin=product.asin,
        category=product.category,
        query=product.query,
        title=product.title,
        product_category=product.product_category,
        instruction=instruction,
        attributes=attributes,
        price_upper=bound,
        options=options,
    )
