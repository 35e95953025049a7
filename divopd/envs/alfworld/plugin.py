"""What the suite asks of ALFWorld: see divopd/envs/registry.py for the seam that every environment fills."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from divopd.config import EnvConfig, Strict
from divopd.envs.base import EnvError, TextEnv
from divopd.envs.fields import entry, need, texts

if TYPE_CHECKING:
    from divopd.cloning.demos import Labeller
    from divopd.envs.alfworld.generate import GameSize
    from divopd.prompts import Style


COMPILES = True


class Options(Strict):
    """ALFWorld has no options of its own; the size of generated rooms is `env.size`."""


def make(config: EnvConfig, count: int) -> list[TextEnv]:
    """Environments on generated games, or on the official ones below the folder `config.source`."""
    from divopd.envs.alfworld.env import AlfworldEnv
    from divopd.envs.alfworld.games import GameSource, GeneratedGames, OfficialGames

    source: GameSource
    if config.source == "generated":
        source = GeneratedGames(_generated_size(config))
    else:
        source = OfficialGames(Path(config.source))
    return [AlfworldEnv(source, Path(config.cache_dir) / "alfworld", config.engine) for _ in range(count)]


def tasks(config: EnvConfig, split: str) -> list[str]:
    """The official games of a split ("train", "valid_seen", ...)."""
    from divopd.envs.alfworld.games import OfficialGames

    return OfficialGames(Path(config.source)).tasks(split)


def check_tasks(config: EnvConfig, tasks: Sequence[str]) -> None:
    """Raises `EnvError` for the first id that is no generated task's, or has no official game."""
    from divopd.envs.alfworld.games import OfficialGames

    if config.source != "generated":
        official = OfficialGames(Path(config.source))
        for task in tasks:
            official.file(task)
        return
    from divopd.envs.alfworld.generate import task_type_of

    _generated_size(config)
    for task in tasks:
        task_type_of(task)


def style() -> Style:
    from divopd.envs.alfworld.compact import CompactStyle

    return CompactStyle()


def words() -> tuple[list[str], list[str]]:
    """(words, entity names) that generated ALFWorld rooms can print in the compact style."""
    from divopd.envs.alfworld.compact import ACTION_WORDS, GOAL_WORDS, OBSERVATION_WORDS
    from divopd.envs.alfworld.generate import ENTITY_TYPES, entity_names

    types = [name for kind in sorted(ENTITY_TYPES) for name in ENTITY_TYPES[kind]]
    return [*OBSERVATION_WORDS, *ACTION_WORDS, *GOAL_WORDS, *types], list(entity_names())


def players(habits: Sequence[float]) -> dict[str, Callable[[], Labeller]]:
    """Who can label a state. `habits`: walk_past, raw, wander of the novice."""
    from divopd.envs.alfworld.expert import Expert
    from divopd.envs.alfworld.novice import Novice

    return {"expert": Expert, "novice": partial(Novice, *(habits or (0.0, 0.0, 0.0)))}


def short(command: str, allowed: tuple[str, ...]) -> str:
    from divopd.envs.alfworld.compact import compact_action

    return compact_action(command)


def expert_path(config: EnvConfig, env: TextEnv, task: str) -> list[str]:
    """Of an official game its walkthrough, of a generated one the scripted expert's actions."""
    from divopd.envs.alfworld.expert import Expert
    from divopd.envs.alfworld.games import OfficialGames
    from divopd.envs.paths import played

    if config.source == "generated":
        return played(env, Expert(), task)
    game = OfficialGames(Path(config.source)).load(task)
    with entry(f"the game file of {task}"):
        actions = texts(need(game, "walkthrough"), "walkthrough")
    if not actions:
        raise EnvError(f"the game file of {task} has no walkthrough")
    return list(actions)


def _generated_size(config: EnvConfig) -> GameSize:
    items = {key: tuple(value) if isinstance(value, list) else value for key, value in config.size.items()}
    return _size(tuple(sorted(items.items())))


@cache
def _size(items: tuple[tuple[str, Any], ...]) -> GameSize:
    from divopd.envs.alfworld.generate import GameSize

    try:
        return GameSize(**dict(items))
    except (TypeError, ValueError) as error:
        raise EnvError(f"env.size: {error}") from error
