"""A WebShop catalogue from a seed, in the official JSON format: products, attributes, and instructions in sentences.

Forty product types with a few dozen products each, which differ in attributes, options and price. A wish names a type,
one or two attributes, one or two options and (added when goals are loaded) a price limit; a handful of products
satisfy its attributes, few of them all of it, so that the first hit of a vague search is usually wrong.

Which products serve training, evaluation and cloning is decided here too (`split_of`).
"""

from __future__ import annotations

import random
import string
from dataclasses import dataclass
from typing import Any

from divopd.envs.base import EnvError
from divopd.envs.webshop.lexicon import DEPARTMENTS, GROUPS, INSTRUCTIONS, MAKERS, TITLES, Department, Kind
from divopd.seeds import seed as named_seed

SPLITS = {"eval": (0, 160), "train": (160, 860), "clone": (860, None)}
"""Positions in the catalogue: products of the panel, of the suites' training tasks, and of the demonstrations."""
MIN_PER_KIND = 25
_RANGE_SHARE = 0.06  # products whose price is a range
_ONE_ATTRIBUTE = 0.2  # wishes that name one attribute instead of two
_ONE_OPTION = 0.3


@dataclass(frozen=True, slots=True)
class Catalogue:
    """What the official files hold: `products` (items_shuffle), `attributes` (items_ins), `instructions` of people.

    `title_nouns` maps a title to the nouns that the reward compares, sorted and in lower case: the type and the maker
    (a place only says what for; types of one place would pass for each other).
    """

    products: list[dict[str, Any]]
    attributes: dict[str, dict[str, Any]]
    instructions: dict[str, list[dict[str, Any]]]
    title_nouns: dict[str, list[str]]


def generate_catalogue(seed: int = 0, per_kind: int = 40, wishes: int = 4) -> Catalogue:
    """`per_kind` products of each of the 40 types in random order, `wishes` instructions a product.

    Raises `EnvError` unless per_kind >= 25 and wishes >= 1: fewer products leave wishes without rivals.
    """
    if per_kind < MIN_PER_KIND:
        raise EnvError(f"products a type must be at least {MIN_PER_KIND}, got {per_kind}")
    if wishes < 1:
        raise EnvError(f"a product needs at least one instruction, got {wishes}")
    rng = random.Random(named_seed("webshop-catalogue-1", seed, per_kind, wishes))
    catalogue = Catalogue([], {}, {}, {})
    for department in DEPARTMENTS:
        for kind in department.kinds:
            for number in range(1, per_kind + 1):
                _add_product(rng, catalogue, department, kind, number, wishes)
    rng.shuffle(catalogue.products)
    return catalogue


def split_of(position: int) -> str:
    """The split of the product at a position of the catalogue."""
    return next(name for name, (low, high) in SPLITS.items() if low <= position and (high is None or position < high))


def _new_asin(rng: random.Random, catalogue: Catalogue) -> str:
    """B0 and eight letters or digits, not used before."""
    while True:
        asin = "B0" + "".join(rng.choices(string.ascii_uppercase + string.digits, k=8))
        if asin not in catalogue.instructions:
            return asin


def _add_product(
    rng: random.Random, catalogue: Catalogue, department: Department, kind: Kind, number: int, wishes: int
) -> None:
    asin = _new_asin(rng, catalogue)
    attributes = rng.sample(_pool(department, kind), 3)
    options = _offer(rng, kind)
    maker, place = rng.choice(MAKERS), rng.choice(department.places)
    first, second, third = (word.capitalize() for word in attributes)
    title = rng.choice(TITLES).format(
        maker=maker, kind=kind.word.capitalize(), first=first, second=second, third=third, place=place
    )
    catalogue.title_nouns[title] = sorted((maker.lower(), kind.word))
    catalogue.products.append(
        {
            "name": title,
            "full_description": f"{maker} makes this for the {place.lower()}. It is {_joined(attributes)}.",
            "images": [],
            "product_category": f"{department.name} › {kind.query.capitalize()}",
            "average_rating": "",
            "small_description": [f"{word}: we checked that it stays so." for word in (first, second, third)],
            "customization_options": {
                GROUPS[key].name: [
                    {"is_selected": False, "is_available": True, "value": value.capitalize()} for value in values
                ]
                for key, values in options.items()
            },
            "asin": asin,
            "category": department.category,
            "query": kind.query,
            "page": 1 + number // 10,
            "pricing": _price(rng, kind),
        }
    )
    told = [_wish(rng, asin, kind, attributes, options) for _ in range(wishes)]
    catalogue.instructions[asin] = told
    catalogue.attributes[asin] = {
        "attributes": attributes,
        "instruction": f"Find me {', '.join(told[0]['instruction_attributes'])} {kind.query}",
        "instruction_attributes": told[0]["instruction_attributes"],
    }


def _pool(department: Department, kind: Kind) -> tuple[str, ...]:
    """The six of the department's eight attributes that a type can have; neighbouring types share five."""
    first = department.kinds.index(kind)
    return (department.attributes * 2)[first : first + 6]


def _offer(rng: random.Random, kind: Kind) -> dict[str, list[str]]:
    """Two or more values a group, of which a large group has up to six; in the group's order."""
    offer = {}
    for key in kind.groups:
        values = GROUPS[key].values
        kept = rng.sample(range(len(values)), min(len(values), rng.randint(2, max(3, len(values) * 3 // 5))))
        offer[key] = [values[i] for i in sorted(kept)]
    return offer


def _price(rng: random.Random, kind: Kind) -> str:
    """A price in dollars; a range stays between two multiples of ten, so that its end decides nothing by luck."""
    dollars = rng.randint(*kind.prices)
    low = dollars + rng.choice((0.25, 0.49, 0.95, 0.99))
    if rng.random() < _RANGE_SHARE and dollars % 10 < 7:
        return f"${low:.2f} - ${dollars - dollars % 10 + 9.5:.2f}"
    return f"${low:.2f}"


def _wish(
    rng: random.Random, asin: str, kind: Kind, attributes: list[str], options: dict[str, list[str]]
) -> dict[str, Any]:
    """One instruction, in the form of the official human ones."""
    wanted = rng.sample(attributes, 1 if rng.random() < _ONE_ATTRIBUTE else 2)
    groups = rng.sample(sorted(options), 1 if rng.random() < _ONE_OPTION else 2)
    chosen = {key: rng.choice(options[key]) for key in groups}
    return {
        "asin": asin,
        "instruction": _sentence(rng, kind, wanted, chosen),
        "attributes": list(attributes),
        "options": [f"{GROUPS[key].name.lower()}: {value}" for key, values in options.items() for value in values],
        "instruction_attributes": wanted,
        "instruction_options": list(chosen.values()),
    }


def _sentence(rng: random.Random, kind: Kind, wanted: list[str], chosen: dict[str, str]) -> str:
    plural = kind.article != "a"
    plain = " ".join(wanted)
    article = "an" if kind.article == "a" and plain[0] in "aeiou" else kind.article
    return rng.choice(INSTRUCTIONS).format(
        item=f"{kind.article} {kind.word}",
        article=article,
        word=kind.word,
        plainwish=plain,
        wish=" and ".join(wanted),
        verb="are" if plural else "is",
        pronoun="they" if plural else "it",
        pronoun_object="them" if plural else "it",
        options=" and ".join(GROUPS[key].phrase.format(value) for key, value in chosen.items()),
    )


def _joined(words: list[str]) -> str:
    return f"{', '.join(words[:-1])} and {words[-1]}"
