"""Task ids: which goals belong to which split."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from divopd.envs.webshop.catalog import Catalog, Product
from divopd.envs.webshop.fixes import Fixes
from divopd.envs.webshop.goals import Goal
from divopd.envs.webshop.pages import BACK, BUY, PREV, SEARCH, SUB_PAGES, item_buttons
from divopd.envs.webshop.reward import meets, purchase_reward
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
        splits = {name: [goal for goal in goals if reachable(catalog, goal)] for name, goals in splits.items()}
    return {f"{name}/{number}": goal for name, goals in splits.items() for number, goal in enumerate(goals)}


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


def reachable(catalog: Catalog, goal: Goal) -> bool:
    """Can buying the goal's own product with the best options give reward 1?"""
    product = catalog.by_asin.get(goal.asin)
    if product is None or catalog.nouns is None:
        return False
    plain = purchase_reward(product, goal, {}, catalog.nouns)
    if plain.kind < 1 or plain.attributes < 1 or not plain.price:
        return False
    # The sets of wishes that some choice of options meets, as bits.
    met = {0}
    for values in _choices(product).values():
        adds = {sum(meets(value, wish) << bit for bit, wish in enumerate(goal.options)) for value in values}
        met |= {before | more for before in met for more in adds}
    return (1 << len(goal.options)) - 1 in met


def _choices(product: Product) -> dict[str, list[str]]:
    """Option name -> the values that a click can set."""
    choices: dict[str, list[str]] = defaultdict(list)
    for value, name in item_buttons(product, True).items():
        if name is not None and value and value not in _BUTTONS:
            choices[name].append(value)
    return choices
