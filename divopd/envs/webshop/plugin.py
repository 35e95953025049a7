"""What the suite asks of WebShop: see divopd/envs/registry.py for the seam that every environment fills."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic import Field, PositiveInt

from divopd.config import EnvConfig, Strict
from divopd.envs.base import EnvError, TextEnv

if TYPE_CHECKING:
    from divopd.cloning.demos import Labeller
    from divopd.envs.webshop.catalog import Catalog
    from divopd.envs.webshop.fixes import Fixes
    from divopd.envs.webshop.goals import Goal
    from divopd.prompts import Style

_LARGE = 64 * 2**20  # bytes of official files, which take seconds to read
_ATTRIBUTES, _PEOPLE, _NOUNS = "items_ins_v2", "items_human_ins", "title_nouns"

COMPILES = False  # the catalogue is made anew in less time than it is read


class Options(Strict):
    """What `env.options` may hold.

    `catalogue` (a seed), `per_kind` and `wishes` shape the generated catalogue. `goals` and `limit` (products to read)
    are for the official files: people's instructions, or every combination of options.
    """

    observation_mode: Literal["text", "text_rich"] = "text"
    show_attributes: bool = False
    fixes: list[str] | None = None  # the defects of the original to mend; None: all of them
    catalogue: int = 0
    per_kind: int = Field(40, ge=25)
    wishes: PositiveInt = 4
    goals: Literal["people", "synthetic"] = "synthetic"
    limit: PositiveInt | None = None


def make(config: EnvConfig, count: int) -> list[TextEnv]:
    """Environments on the generated catalogue, or on the official files in the folder `config.source`."""
    from divopd.envs.webshop.env import WebshopEnv

    options = Options.model_validate(config.options)
    catalog, goals = _shop(config.source, options.model_dump_json())
    return [
        WebshopEnv(catalog, goals, options.observation_mode, _fixes(options), options.show_attributes)
        for _ in range(count)
    ]


def tasks(config: EnvConfig, split: str) -> list[str]:
    """All tasks of a split: "gen/train", "gen/eval", "gen/clone", or for official files "train", "eval"."""
    options = Options.model_validate(config.options)
    names = _shop(config.source, options.model_dump_json())[1]
    found = [task for task in names if task.rpartition("/")[0] == split]
    if not found:
        known = ", ".join(dict.fromkeys(task.rpartition("/")[0] for task in names))
        raise EnvError(f"env.train_tasks: {split!r} is no split of this WebShop catalogue: it has {known}")
    return found


def check_tasks(config: EnvConfig, tasks: Sequence[str]) -> None:
    """Raises `EnvError` for the first id that the catalogue has not, or where one of the official files is missing.

    The catalogue is read where it is small: of the whole product set only the form of an id is checked.
    """
    from divopd.envs.webshop.splits import find_goal, split_names

    options = Options.model_validate(config.options)
    if config.source != "generated":
        folder = Path(config.source)
        stems = ("items_shuffle", _ATTRIBUTES, *((_PEOPLE,) if options.goals == "people" else ()))
        if sum(_file(folder, stem).stat().st_size for stem in stems) > _LARGE:
            splits = split_names(_fixes(options))
            for task in tasks:
                split, _, number = task.rpartition("/")
                if split not in splits or not number.isdecimal():
                    raise EnvError(f"unknown WebShop task {task!r}: ids are <split>/<number>, of {', '.join(splits)}")
            return
    goals = _shop(config.source, options.model_dump_json())[1]
    for task in tasks:
        find_goal(goals, task)


def style() -> Style:
    from divopd.envs.webshop.compact import CompactStyle

    return CompactStyle()


def words() -> tuple[list[str], list[str]]:
    """(words, entity names) that the generated catalogue can print in the compact style."""
    from divopd.envs.webshop.compact import ACTION_WORDS, NUMBERS, OBSERVATION_WORDS, RANKS, SUBPAGES
    from divopd.envs.webshop.lexicon import ATTRIBUTE_WORDS, KIND_WORDS, OPTION_WORDS

    spoken = [*OBSERVATION_WORDS, *ACTION_WORDS, *SUBPAGES, *RANKS, *NUMBERS]
    return [*spoken, *KIND_WORDS, *ATTRIBUTE_WORDS, *OPTION_WORDS], []


def players(habits: Sequence[float]) -> dict[str, Callable[[], Labeller]]:
    """Who can label a state. `habits`: vague, hasty, wander, careless of the novice."""
    from divopd.envs.webshop.expert import Expert
    from divopd.envs.webshop.novice import Novice

    return {"expert": Expert, "novice": partial(Novice, *(habits or (0.0,) * 4))}


def short(command: str, allowed: tuple[str, ...]) -> str:
    from divopd.envs.webshop.compact import compact_action

    return compact_action(command, allowed)


def expert_path(config: EnvConfig, env: TextEnv, task: str) -> list[str]:
    """The scripted expert's actions: it knows the generated catalogue alone."""
    from divopd.envs.paths import played
    from divopd.envs.webshop.expert import Expert

    return played(env, Expert(), task)


def _fixes(options: Options) -> Fixes:
    from divopd.envs.webshop.fixes import Fixes

    return Fixes() if options.fixes is None else Fixes.only(options.fixes)


@cache
def _shop(source: str, options_json: str) -> tuple[Catalog, dict[str, Goal]]:
    """The catalogue and its tasks, once a process."""
    from divopd.envs.webshop.splits import tasks_of

    options = Options.model_validate_json(options_json)
    if source == "generated":
        return _generated(options)
    catalog = _official(Path(source), options)
    tasks = tasks_of(catalog, _fixes(options))
    if not tasks:
        raise EnvError(
            f"{source}: none of its products has a goal, or none that can be reached (options.goals, .limit)"
        )
    return catalog, tasks


def _generated(options: Options) -> tuple[Catalog, dict[str, Goal]]:
    """Tasks gen/<split>/<number>; a split's tasks go round its products, first wish of each, then second, ..."""
    from divopd.envs.webshop.catalog import load_catalog
    from divopd.envs.webshop.generate import SPLITS, generate_catalogue, split_of

    made = generate_catalogue(options.catalogue, options.per_kind, options.wishes)
    catalog = load_catalog(made.products, made.attributes, made.instructions, nouns=made.title_nouns)
    wishes: dict[str, list[Goal]] = {product.asin: [] for product in catalog.products}
    for goal in catalog.goals:
        wishes[goal.asin].append(goal)
    splits: dict[str, list[Goal]] = {name: [] for name in SPLITS}
    for turn in range(options.wishes):
        for position, asin in enumerate(wishes):
            splits[split_of(position)].append(wishes[asin][turn])
    return catalog, {f"gen/{name}/{i}": goal for name, goals in splits.items() for i, goal in enumerate(goals)}


def _official(folder: Path, options: Options) -> Catalog:
    """From the files that the original's set-up script downloads (or their 1,000 product versions)."""
    from divopd.envs.webshop.catalog import load_catalog

    return load_catalog(
        _file(folder, "items_shuffle"),
        _file(folder, _ATTRIBUTES),
        _file(folder, _PEOPLE) if options.goals == "people" else None,
        nouns=next(iter(sorted(folder.glob(f"{_NOUNS}*.json"))), {}),
        limit=options.limit,
    )


def _file(folder: Path, stem: str) -> Path:
    """The one JSON file with this start of name. Raises `EnvError` if there is none or more than one."""
    found = sorted(folder.glob(f"{stem}*.json"))
    if len(found) != 1:
        have = f"{len(found)} such files" if found else "no such file"
        raise EnvError(f"{folder} has {have}: {stem}*.json; env.source must be the folder of one WebShop product set")
    return found[0]
