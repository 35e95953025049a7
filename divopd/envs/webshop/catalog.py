"""Products of a shop, read from the official JSON files, with every draw frozen."""

from __future__ import annotations

import functools
import hashlib
import json
import math
import random
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import TYPE_CHECKING, Any

from divopd.envs.base import EnvError
from divopd.envs.fields import array, entry, mapping, need, odd, text, texts, warn_of
from divopd.envs.webshop.nouns import NounSource
from divopd.envs.webshop.search import Index
from divopd.seeds import seed

if TYPE_CHECKING:
    from divopd.envs.webshop.goals import Goal

Items = Iterable[Mapping[str, Any]]
DEFAULT_PRICE = 100.0
KEPT_QUERIES = 4096
NO_ATTRIBUTES = ("DUMMY_ATTR",)
_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class Product:
    """One product. `options`: the values of each option in page order; `price`: what `buy now` charges, drawn once from
    the range that `price_tag` shows."""

    asin: str
    title: str
    description: str
    bullets: tuple[str, ...]
    category: str
    query: str
    product_category: str
    price_tag: str
    price: float
    options: Mapping[str, tuple[str, ...]]
    attributes: tuple[str, ...]

    def indexed_text(self) -> str:
        """What search looks at: title, description, first bullet, options."""
        options = ", and ".join(f"{name}: {', '.join(values)}" for name, values in self.options.items())
        return " ".join((self.title, self.description, next(iter(self.bullets), ""), options)).lower()

    @property
    def document(self) -> str:
        """Where the reward looks for attributes and options, lower case; parts cannot match across their borders."""
        return "\0".join((self.title, " ".join(self.bullets), self.description)).lower()


class Catalog:
    """Products, their goals in frozen order, the search index (built at first use) and the titles' nouns."""

    def __init__(self, products: Sequence[Product], goals: Sequence[Goal], nouns: NounSource | None = None) -> None:
        """`nouns`: see `divopd.envs.webshop.nouns`; None where no reward is asked for."""
        self.products = tuple(products)
        self.by_asin = {product.asin: product for product in self.products}
        self.goals = tuple(goals)
        self.nouns = nouns

    @property
    def title_nouns(self) -> NounSource:
        """The nouns of titles. Raises `EnvError` where the catalogue was loaded without."""
        if self.nouns is None:
            raise EnvError("the catalogue has no nouns of its titles, which the reward compares: load it with nouns=")
        return self.nouns

    @functools.cached_property
    def index(self) -> Index:
        """Built once, at about a millisecond a product."""
        return Index([product.asin for product in self.products], (p.indexed_text() for p in self.products))

    def search(self, query: str) -> tuple[Product, ...]:
        """The products that the results pages of a query show, best first: 50 at most. The latest queries are kept."""
        return self._found(query)

    @functools.cached_property
    def _found(self) -> Callable[[str], tuple[Product, ...]]:
        def find(query: str) -> tuple[Product, ...]:
            return tuple(self.products[number] for number, _ in self.index.search(query))

        return functools.lru_cache(maxsize=KEPT_QUERIES)(find)

    @functools.cached_property
    def digest(self) -> str:
        """SHA-256 of every price and goal in order."""
        digest = hashlib.sha256()
        for product in self.products:
            digest.update(json.dumps([product.asin, product.price]).encode())
        for goal in self.goals:
            digest.update(json.dumps(goal.record(), sort_keys=True).encode())
        return digest.hexdigest()


def load_catalog(
    items: Items | Path,
    attributes: Mapping[str, Any] | Path,
    human: Mapping[str, Any] | Path | None = None,
    *,
    nouns: NounSource | Mapping[str, Sequence[str]] | Callable[[str], Sequence[str]] | Path | None = None,
    limit: int | None = None,
    draws: str = "webshop",
    prices: Mapping[str, float] | None = None,
    goals: Iterable[Mapping[str, Any]] | None = None,
) -> Catalog:
    """Build a catalogue from the official JSON (parsed, or by path; items are then streamed).

    `items`: list of products (`items_shuffle*.json`). `attributes`: asin -> {attributes, instruction,
    instruction_attributes} (`items_ins_v2*.json`). `human`: asin -> instructions of people (`items_human_ins.json`); if
    given, they are the goals, else every combination of options of each product with an `instruction` is one.
    `limit`: read this many items. `draws` names the seed of prices and price bounds; `prices` (asin -> price) and
    `goals` (records as in `Goal.record`) replace what would be drawn. Raises `EnvError`, naming file, entry and field,
    for another format; what the original leaves out is left out here, with a warning that counts it.
    """
    from divopd.envs.webshop.goals import make_goals, read_goals

    names = [str(source) if isinstance(source, Path) else kind for source, kind in
             ((items, "items"), (attributes, "attributes"), (human, "people's goals"))]  # fmt: skip
    left_out: Counter[str] = Counter()
    source = stream_items(items) if isinstance(items, Path) else items
    about = _read(attributes)
    people = None if human is None else _read(human)
    products = list(_products(source, about, limit, random.Random(seed(draws, "prices")), prices, names, left_out))
    if not products:
        raise EnvError(f"{names[0]} holds no product")
    if goals is not None:
        made = read_goals(goals)
    else:
        made = make_goals(products, about, people, random.Random(seed(draws, "bounds")), names[1:], left_out)
    warn_of(left_out)
    return Catalog(products, made, None if nouns is None else NounSource.of(nouns))


def stream_items(path: Path) -> Iterator[dict[str, Any]]:
    """The objects of a JSON array, one at a time: the full file is larger than memory."""
    decoder = json.JSONDecoder()
    try:
        with path.open(encoding="utf-8-sig") as file:
            buffer, start, more = file.read(_CHUNK).lstrip(), 1, True
            if not buffer.startswith("["):
                raise EnvError(f"{path} is no JSON array of products: give the items_shuffle file")
            while True:
                start = _skip(buffer, start)
                if buffer.startswith("]", start):
                    return
                try:
                    item, start = decoder.raw_decode(buffer, start)
                    yield item
                except json.JSONDecodeError as error:
                    if not more:
                        raise EnvError(f"{path} ends within a product: fetch it again") from error
                    chunk = file.read(max(_CHUNK, len(buffer)))
                    buffer, start, more = buffer[start:] + chunk, 0, bool(chunk)
    except (OSError, UnicodeDecodeError) as error:
        raise EnvError(f"cannot read {path}: {getattr(error, 'strerror', error)}") from error


def _skip(buffer: str, start: int) -> int:
    while start < len(buffer) and buffer[start] in " \t\r\n,":
        start += 1
    return start


def _read(source: Mapping[str, Any] | Path) -> Mapping[str, Any]:
    if not isinstance(source, Path):
        return source
    try:
        content = json.loads(source.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError) as error:
        raise EnvError(f"cannot read {source}: {error}") from error
    if not isinstance(content, dict):
        raise EnvError(f"{source} is no JSON object keyed by product: give the items_ins or items_human_ins file")
    return content


def _products(
    items: Items, about: Mapping[str, Any], limit: int | None, rng: random.Random, prices: Mapping[str, float] | None,
    names: Sequence[str], left_out: Counter[str],
) -> Iterator[Product]:  # fmt: skip
    """Products in file order; ids that are 'nan', longer than 10 characters, or seen before are left out.

    `names`: of the two files, for messages.
    """
    seen = set()
    for number, item in enumerate(items):
        if limit is not None and number >= limit:
            return
        with entry(f"{names[0]}: product {number}"):
            asin = text(need(item, "asin"), "asin")
        if asin == "nan" or len(asin) > 10 or asin in seen:
            left_out[f"{names[0]}: products whose asin is nan, too long or repeated"] += 1
            continue
        seen.add(asin)
        with entry(f"{names[1]}: {asin}"):
            known = mapping(about.get(asin, {}))
            attributes = texts(known["attributes"], "attributes") if "attributes" in known else NO_ATTRIBUTES
        with entry(f"{names[0]}: product {number} ({asin})"):
            product = _product(item, attributes, rng, prices)
        yield product


def _product(
    item: Mapping[str, Any], attributes: Sequence[str], rng: random.Random, frozen: Mapping[str, float] | None
) -> Product:
    bullets = need(item, "small_description")
    prices = _prices(item.get("pricing"))
    drawn = prices[0] if len(prices) == 1 else rng.uniform(prices[0], prices[1])
    if frozen is not None and item["asin"] not in frozen:
        raise EnvError(f"no price for product {item['asin']} among the frozen ones: give every product's, or none")
    return Product(
        asin=item["asin"],
        title=text(need(item, "name"), "name"),
        description=text(need(item, "full_description"), "full_description"),
        bullets=texts(bullets if isinstance(bullets, list) else [bullets], "small_description"),
        category=sys.intern(text(need(item, "category"), "category")),
        query=sys.intern(text(need(item, "query"), "query").lower().strip()),
        product_category=sys.intern(text(need(item, "product_category"), "product_category")),
        price_tag=" to ".join(f"${price}" for price in prices),
        price=drawn if frozen is None else frozen[item["asin"]],
        options=_options(need(item, "customization_options")),
        attributes=tuple(map(sys.intern, attributes)),
    )


def _prices(given: Any) -> list[float]:
    """The one price, or the two ends of the range, that a price text names."""
    if not given:
        return [DEFAULT_PRICE]
    try:
        prices = [float(Decimal(re.sub(r"[^\d.]", "", part))) for part in text(given, "pricing").split("$")[1:]]
    except InvalidOperation:
        prices = []
    if not prices or not all(map(math.isfinite, prices)):
        raise odd(given, "pricing", "an amount after $")
    return prices[:2]


def _options(groups: Any) -> dict[str, tuple[str, ...]]:
    options: dict[str, tuple[str, ...]] = {}
    for name, values in mapping(groups or {}, "customization_options").items():
        place = f"customization_options.{name}"
        if values is not None:
            found = [
                text(need(value, "value"), f"{place}[{i}].value").strip().replace("/", " | ").lower()
                for i, value in enumerate(array(values, place))
            ]
            options[sys.intern(name.lower())] = tuple(map(sys.intern, found))
    return options
