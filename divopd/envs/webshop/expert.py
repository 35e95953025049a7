"""A WebShop expert that acts on pages alone, as a calibrated distribution over commands.

It sees the goal's sentence, the pages, and the actions that anyone executed, so it can label states that a weaker
player reached: a poor search, a wrong item, a wrong option. It searches with the goal's own words, takes the first
result that has the goal's type and attributes within its price limit, goes back from an item that lacks a wanted
option, chooses the options, and buys.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from divopd.envs.base import EnvError
from divopd.envs.webshop.compact import Page, Product, content_words, price_limit, product_of, read_page
from divopd.envs.webshop.lexicon import ATTRIBUTE_WORDS, KIND_WORDS, OPTION_WORDS

RESTART, NEXT, BACK, BUY = "click[back to search]", "click[next >]", "click[< prev]", "click[buy now]"
_LAST_PAGE = 3  # of a good search: what is not on its first pages is not there
_FULL = 10  # results on a page that is not the last


@dataclass(frozen=True, slots=True)
class Wish:
    """What the goal's sentence asks for; `words` in its order, `limit` in dollars."""

    words: tuple[str, ...]
    kind: str
    attributes: tuple[str, ...]
    options: tuple[str, ...]
    limit: float

    @classmethod
    def parse(cls, goal: str) -> Wish:
        """Raises `EnvError` for a goal that names no product type of the generated catalogue."""
        words = content_words(goal)
        kinds = [word for word in words if word in KIND_WORDS]
        if not kinds:
            raise EnvError(f"the expert knows the generated catalogue alone; it finds no product type in {goal!r}")
        return cls(
            words,
            kinds[0],
            tuple(word for word in words if word in ATTRIBUTE_WORDS),
            tuple(word for word in words if word in OPTION_WORDS),
            price_limit(goal),
        )

    def fits(self, product: Product) -> bool:
        """Type, attributes and price; options are not in a title."""
        return product.dollars <= self.limit and {self.kind, *self.attributes} <= set(product.words)

    def queries(self) -> tuple[str, ...]:
        """Searches worth trying, best first: the goal's words in their order, then without the options."""
        plain = [word for word in self.words if word not in self.options]
        return tuple(f"search[{' '.join(query)}]" for query in (self.words, plain))


@dataclass(slots=True)
class Trail:
    """What the episode has shown so far."""

    page: Page = Page("search")
    query: str = ""  # the search whose results are looked at
    pages: dict[int, Page] = field(default_factory=dict)  # of its results
    spent: set[str] = field(default_factory=set)  # searches that led nowhere
    rejected: set[str] = field(default_factory=set)  # products that lack a wanted option
    chosen: dict[str, str] = field(default_factory=dict)
    item: str = ""  # of the item page

    def update(self, action: str, page: Page) -> None:
        """An action that did nothing leaves everything as it is."""
        name, _, rest = action.partition("[")
        argument = rest.removesuffix("]")
        if name == "search" and page.kind == "results":
            self.query, self.pages = action, {}
        elif page.kind == "item" and self.page.kind == "item":
            self.chosen.update({group: argument for group, values in page.groups if argument in values})
        elif page.kind == "item" and (asin := product_of(action)):
            self.item, self.chosen = asin, {}
        if page.kind == "results":
            self.pages[page.number] = page
        self.page = page


class Expert:
    """Label any state of an episode: `reset`, then `observe` each executed action, and ask for a distribution.

    The preferred command gets what is left after `spread`, shared by the other sensible commands, `detour`, for a
    roundabout way (where there are any), and `noise`, shared by all allowed commands. A teacher that puts all mass on
    one command would punish every other sampled command with an extreme log-probability.
    """

    def __init__(self, spread: float = 0.13, detour: float = 0.03, noise: float = 0.02) -> None:
        shares = (spread, detour, noise)
        if min(shares) < 0 or sum(shares) >= 0.5:
            raise ValueError(f"spread, detour and noise must be >= 0 and add up to less than 0.5, got {shares}")
        self.spread, self.detour, self.noise = shares
        self._wish: Wish | None = None
        self._trail = Trail()

    def reset(self, goal: str, observation: str) -> None:
        """Start an episode. Raises `EnvError` if the goal cannot be understood."""
        self._wish, self._trail = Wish.parse(goal), Trail(read_page(observation))

    def observe(self, action: str, observation: str) -> None:
        """Take in an executed action, whoever chose it, and the page that followed."""
        self._trail.update(action, read_page(observation))
        wish, page = self._state()
        if page.kind == "results" and not self._worth_turning(page):
            if not any(map(self._fitting, self._trail.pages.values())):
                self._trail.spent.add(self._trail.query)
        elif page.kind == "item" and not set(wish.options) <= {v for _, values in page.groups for v in values}:
            self._trail.rejected.add(self._trail.item)

    def distribution(self, allowed: tuple[str, ...]) -> dict[str, float]:
        """Probability of each allowed command and of the searches that the expert would make."""
        preferred, others = self.choices(allowed)
        detours = self._detours(preferred)
        clicks = [command for command in allowed if command.startswith("click[")]
        commands = list(dict.fromkeys([*clicks, preferred, *others, *detours]))
        probability = dict.fromkeys(commands, self.noise / len(commands))
        left = 1 - self.noise
        for share, way in ((self.spread, others), (self.detour, detours)):
            for command in way:
                probability[command] += share / len(way)
                left -= share / len(way)
        probability[preferred] += left
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

    def _detours(self, preferred: str) -> list[str]:
        """What also leads on, a longer way: a search for the type alone, the next page, the results again."""
        wish, page = self._state()
        ways = {"search": f"search[{wish.kind}]", "results": NEXT, "item": BACK}
        way = ways.get(page.kind)
        return [way] if way is not None and preferred not in (way, RESTART) else []

    def _search(self) -> tuple[str, list[str]]:
        wish, _ = self._state()
        queries = list(dict.fromkeys(sorted(wish.queries(), key=lambda query: query in self._trail.spent)))
        return queries[0], queries[1:]

    def _results(self, page: Page, allowed: tuple[str, ...]) -> tuple[str, list[str]]:
        """A fitting product, on an earlier page if need be; else the next page of a good search, or another search."""
        fitting = self._fitting(page)
        if fitting:
            return fitting[0], fitting[1:]
        if BACK in allowed and any(self._fitting(self._trail.pages[n]) for n in self._trail.pages if n < page.number):
            return BACK, [RESTART]
        if self._worth_turning(page):
            return NEXT, [RESTART]
        return RESTART, [NEXT] if page.results else []

    def _fitting(self, page: Page) -> list[str]:
        wish, _ = self._state()
        return [f"click[{p.asin}]" for p in page.results if wish.fits(p) and p.asin not in self._trail.rejected]

    def _worth_turning(self, page: Page) -> bool:
        """Is there hope on the next page? Not after a search that left out the type or an attribute."""
        wish, _ = self._state()
        good = {wish.kind, *wish.attributes} <= set(content_words(self._trail.query))
        return good and page.number < _LAST_PAGE and len(page.results) == _FULL

    def _item(self, page: Page) -> tuple[str, list[str]]:
        """Back from a wrong item; else the wanted options not chosen yet, then the purchase."""
        wish, _ = self._state()
        offered = {value: group for group, values in page.groups for value in values}
        if page.product is None or not wish.fits(page.product) or not set(wish.options) <= offered.keys():
            return BACK, [RESTART]
        missing = [f"click[{v}]" for v in wish.options if self._trail.chosen.get(offered[v]) != v]
        return (missing[0], missing[1:]) if missing else (BUY, [])
