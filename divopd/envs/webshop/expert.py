"""A WebShop expert that acts on pages alone, as a calibrated distribution over commands.

It sees the goal's sentence, the pages, and the actions that anyone executed, so it can label states that a weaker
player reached: a poor search, a wrong item, a wrong option. It searches with the goal's own words, takes the first
result that has the goal's type and attributes within its price limit, goes back from an item that lacks a wanted
option, chooses the options, and buys.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from divopd.envs.base import EnvError
from divopd.envs.webshop.compact import Page, Product, content_words, price_limit, read_page
from divopd.envs.webshop.generate import name_of
from divopd.envs.webshop.lexicon import ATTRIBUTE_WORDS, KIND_WORDS, OPTION_WORDS

RESTART, NEXT, BACK, BUY = "click[back to search]", "click[next >]", "click[< prev]", "click[buy now]"
_LAST_PAGE = 3  # of a good search: what is not on its first pages is not there
_FULL = 10  # results on a page that is not the last


@dataclass(frozen=True, slots=True)
class Wish:
    """What the goal's sentence asks for; `limit` in dollars, None without one."""

    kind: str
    attributes: tuple[str, ...]
    options: tuple[str, ...]
    limit: int | None

    @classmethod
    def parse(cls, goal: str) -> Wish:
        """Raises `EnvError` for a goal that names no product type of the generated catalogue."""
        words = content_words(goal)
        kinds = [word for word in words if word in KIND_WORDS]
        if not kinds:
            raise EnvError(f"the expert knows the generated catalogue alone; it finds no product type in {goal!r}")
        return cls(
            kinds[0],
            tuple(word for word in words if word in ATTRIBUTE_WORDS),
            tuple(word for word in words if word in OPTION_WORDS),
            price_limit(goal),
        )

    def fits(self, product: Product) -> bool:
        """Type, attributes and price; options are not in a title."""
        within = self.limit is None or product.dollars <= self.limit
        return within and {self.kind, *self.attributes} <= set(product.words)

    def queries(self) -> tuple[str, ...]:
        """Searches worth trying, best first: all words, without the options, the type first."""
        words = (*self.attributes, self.kind)
        return tuple(
            f"search[{' '.join(query)}]"
            for query in ((*words, *self.options), words, (self.kind, *self.attributes, *self.options))
        )


@dataclass(slots=True)
class Trail:
    """What the episode has shown so far."""

    page: Page = Page("search")
    results: Page = Page("search")  # the listing last seen
    query: frozenset[str] = frozenset()
    tried: list[str] = field(default_factory=list)
    rejected: set[str] = field(default_factory=set)  # products that lack a wanted option
    chosen: dict[str, str] = field(default_factory=dict)
    item: str = ""  # of the item page

    def update(self, action: str, page: Page) -> None:
        """An action that did nothing leaves everything as it is."""
        name, _, rest = action.partition("[")
        argument = rest.removesuffix("]")
        if name == "search" and page.kind == "results":
            self.query = frozenset(argument.split())
            self.tried.append(action)
        elif page.kind == "item" and self.page.kind == "item":
            self.chosen.update({group: argument for group, values in page.groups if argument in values})
        elif page.kind == "item" and name_of(argument):
            self.item, self.chosen = argument, {}
        if page.kind == "results":
            self.results = page
        self.page = page


class Expert:
    """Label any state of an episode: `reset`, then `observe` each executed action, and ask for a distribution.

    The preferred command gets what is left after `spread`, shared by the other sensible commands (if there are any),
    and `noise`, shared by all allowed commands.
    """

    def __init__(self, spread: float = 0.17, noise: float = 0.03) -> None:
        if spread < 0 or noise < 0 or spread + noise >= 0.5:
            raise ValueError(f"spread and noise must be >= 0 and add up to less than 0.5, got {spread} and {noise}")
        self.spread, self.noise = spread, noise
        self._wish: Wish | None = None
        self._trail = Trail()

    def reset(self, goal: str, observation: str) -> None:
        """Start an episode. Raises `EnvError` if the goal cannot be understood."""
        self._wish, self._trail = Wish.parse(goal), Trail(read_page(observation))

    def observe(self, action: str, observation: str) -> None:
        """Take in an executed action, whoever chose it, and the page that followed."""
        self._trail.update(action, read_page(observation))
        wish, page = self._state()
        if page.kind == "item" and not set(wish.options) <= {v for _, values in page.groups for v in values}:
            self._trail.rejected.add(self._trail.item)

    def distribution(self, allowed: tuple[str, ...]) -> dict[str, float]:
        """Probability of each allowed command and of the searches that the expert would make."""
        preferred, others = self.choices(allowed)
        commands = list(dict.fromkeys([*(c for c in allowed if c.startswith("click[")), preferred, *others]))
        probability = dict.fromkeys(commands, self.noise / len(commands))
        for command in others:
            probability[command] += self.spread / len(others)
        probability[preferred] += 1 - self.noise - (self.spread if others else 0)
        return probability

    def choices(self, allowed: tuple[str, ...]) -> tuple[str, list[str]]:
        """The preferred command and the other sensible ones."""
        _, page = self._state()
        if page.kind == "search":
            return self._search()
        if page.kind == "results":
            return self._results(page, allowed)
        if page.kind == "item":
            return self._item(page)
        commands = [command for command in (BACK, RESTART) if command in allowed] or list(allowed)
        return commands[0], commands[1:]

    def _state(self) -> tuple[Wish, Page]:
        if self._wish is None:
            raise RuntimeError("the expert has no episode: call reset first")
        return self._wish, self._trail.page

    def _search(self) -> tuple[str, list[str]]:
        wish, _ = self._state()
        queries = sorted(wish.queries(), key=self._trail.tried.count)
        queries = list(dict.fromkeys(queries))
        return queries[0], queries[1:]

    def _results(self, page: Page, allowed: tuple[str, ...]) -> tuple[str, list[str]]:
        """A fitting product; else the next page of a good search, or another search."""
        wish, _ = self._state()
        fitting = [f"click[{p.asin}]" for p in page.results if wish.fits(p) and p.asin not in self._trail.rejected]
        if fitting:
            return fitting[0], fitting[1:]
        good = {wish.kind, *wish.attributes} <= self._trail.query
        if good and page.number < _LAST_PAGE and len(page.results) == _FULL and NEXT in allowed:
            return NEXT, [RESTART]
        return RESTART, [command for command in (NEXT,) if command in allowed and page.results]

    def _item(self, page: Page) -> tuple[str, list[str]]:
        """Back from a wrong item; else the wanted options not chosen yet, then the purchase."""
        wish, _ = self._state()
        offered = {value: group for group, values in page.groups for value in values}
        if page.product is None or not wish.fits(page.product) or not set(wish.options) <= offered.keys():
            return BACK, [RESTART]
        missing = [f"click[{v}]" for v in wish.options if self._trail.chosen.get(offered[v]) != v]
        return (missing[0], missing[1:]) if missing else (BUY, [])
