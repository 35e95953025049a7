"""Task ids: which goals belong to which split."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from divopd.envs.base import EnvError
from divopd.envs.webshop.catalog import Catalog, Product
from divopd.envs.webshop.fixes import Fixes
from divopd.envs.webshop.goals import Goal
from divopd.envs.webshop.pages import BACK, BUY, PREV, SEARCH, SUB_PAGES, item_buttons
from divopd.envs.webshop.reward import meets, plain_color, purchase_reward
from divopd.seeds import rng

EVAL_SHARE = 0.2
TEST, DEV = 500, 1500  # the original's splits: goals below TEST, then below DEV, then the rest
_BUTTONS = {BACK, PREV, BUY, SEARCH, *SUB_PAGES}


def tasks_of(catalog: Catalog, fixes: Fixes, eval_share: float = EVAL_SHARE, draws: str = "webshop") -> dict[str, Goal]:
    """Task id `<split>/<number>` -> goal, in order.

    With `split_by_product`: `train` and `eval`, where `eval_share` of the products with goals (drawn by the seed named
    `draws`) are for evaluation; within a split goals go round the products, so that the first n goals are of as many
    products as can be. Without: the original's `test`, `dev` and `train` by goal number.
    """
    splits = _by_product(catalog.goals, eval_share, draws) if fixes.split_by_product else _by_number(catalog.goals)
    if fixes.reachable_goals_only:
        reach = Reach(catalog)
        splits = {name: [goal for goal in goals if reach(goal)] for name, goals in splits.items()}
    return {f"{name}/{number}": goal for name, goals in splits.items() for number, goal in enumerate(goals)}


def split_names(fixes: Fixes) -> tuple[str, ...]:
    """The splits that `tasks_of` makes."""
    return ("train", "eval") if fixes.split_by_product else ("test", "dev", "train")


def find_goal(goals: Mapping[str, Goal], task: str) -> Goal:
    """The goal of a task id. Raises `EnvError` for a task that there is not."""
    if task not in goals:
        example = next(iter(goals), "none")
        raise EnvError(f"unknown WebShop task {task!r}: ids are <split>/<number> as {example}; there are {len(goals)}")
    return goals[task]


def _by_number(goals: Sequence[Goal]) -> dict[str, Sequence[Goal]]:
    return {"test": goals[:TEST], "dev": goals[TEST:DEV], "train": goals[DEV:]}


def _by_product(goals: Iterable[Goal], share: float, draws: str) -> dict[str, Sequence[Goal]]:
    groups: dict[str, list[Goal]] = defaultdict(list)
    for goal in goals:
        groups[goal.asin].append(goal)
    asins = sorted(groups)
    drawn = rng(draws, "split").permutation(len(asins))
    held = {asins[place] for place in drawn[: round(share * len(asins))]}
    return {
        "train": _round([groups[asin] for asin in groups if asin not in held]),
        "eval": _round([groups[asin] for asin in groups if asin in held]),
    }


def _round(groups: Sequence[Sequence[Goal]]) -> list[Goal]:
    """The first of each group, then the second of each that has one, ..."""
    turns = max((len(group) for group in groups), default=0)
    return [group[turn] for turn in range(turns) for group in groups if turn < len(group)]


class Reach:
    """`reach(goal)`: can buying the goal's own product with the best options give reward 1?"""

    def __init__(self, catalog: Catalog) -> None:
        """Raises `EnvError` where the catalogue has no nouns."""
        self._catalog = catalog
        self._choices: dict[str, list[list[str]]] = {}

    def __call__(self, goal: Goal) -> bool:
        product = self._catalog.by_asin.get(goal.asin)
        if product is None:
            return False
        plain = purchase_reward(product, goal, {}, self._catalog.title_nouns)
        if plain.kind < 1 or plain.attributes < 1 or not plain.price:
            return False
        if goal.asin not in self._choices:
            self._choices[goal.asin] = _choices(product)
        # The sets of wishes that some choice of options meets, as bits.
        met = {0}
        for values in self._choices[goal.asin]:
            adds = {sum(meets(value, wish) << bit for bit, wish in enumerate(goal.options)) for value in values}
            met |= {before | more for before in met for more in adds}
        return (1 << len(goal.options)) - 1 in met


def _choices(product: Product) -> list[list[str]]:
    """For each option the values that a click can set; values that the reward cannot tell apart once."""
    choices: dict[str, dict[str, None]] = defaultdict(dict)
    for value, name in item_buttons(product, True).items():
        if name is not None and value and value not in _BUTTONS:
            choices[name][plain_color(value)] = None
    return [list(values) for values in choices.values()]
