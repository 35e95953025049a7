"""Environments and task lists by configuration; each environment's packages are imported only when it is asked for."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from pathlib import Path

from ..config import EnvConfig
from .base import EnvError, TextEnv

_RANGE = re.compile(r"(?P<stem>.+/)(?P<low>\d+):(?P<high>\d+)")


def make_envs(config: EnvConfig, count: int) -> list[TextEnv]:
    """`count` environments of one kind, for as many episodes at once. Raises `EnvError` naming what is missing."""
    return _BUILDERS[config.name](config, count)


def train_tasks(config: EnvConfig) -> list[str]:
    """Training task ids: a range ("gen/train/0:2000"), a panel file, or a split of the official games."""
    spec = config.train_tasks
    if found := _RANGE.fullmatch(spec):
        tasks = [f"{found['stem']}{i}" for i in range(int(found["low"]), int(found["high"]))]
        if not tasks:
            raise EnvError(f"env.train_tasks: {spec} is empty: it runs from its first number to below its second")
        return tasks
    if spec.endswith(".txt"):
        return read_panel(spec)
    from .alfworld.games import OfficialGames

    return OfficialGames(Path(config.source)).tasks(spec)


def eval_tasks(config: EnvConfig, episodes: int) -> list[str]:
    """The first `episodes` tasks of the panel, in its order."""
    tasks = read_panel(config.eval_panel)
    if len(tasks) < episodes:
        raise EnvError(f"panel {config.eval_panel} has {len(tasks)} tasks, evaluation asks for {episodes}")
    return tasks[:episodes]


def read_panel(path: str | Path) -> list[str]:
    """Task ids of a panel file, one a line, `#` starts a comment. Raises `EnvError` if missing, empty or repeating."""
    try:
        lines = Path(path).read_text().splitlines()
    except OSError as error:
        raise EnvError(f"panel {path} cannot be read ({error.strerror}): it lists task ids, one a line") from error
    tasks = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
    if not tasks or len(set(tasks)) < len(tasks):
        raise EnvError(f"panel {path} is {'empty' if not tasks else 'not a list of distinct tasks'}")
    return tasks


@cache
def _alfworld_size(items: tuple[tuple[str, object], ...]) -> object:
    from .alfworld.generate import GameSize

    try:
        return GameSize(**dict(items))  # type: ignore[arg-type]
    except (TypeError, ValueError) as error:
        raise EnvError(f"env.size: {error}") from error


def _alfworld(config: EnvConfig, count: int) -> list[TextEnv]:
    from .alfworld.env import AlfworldEnv
    from .alfworld.games import GameSource, GeneratedGames, OfficialGames

    source: GameSource
    if config.source == "generated":
        items = {key: tuple(value) if isinstance(value, list) else value for key, value in config.size.items()}
        source = GeneratedGames(_alfworld_size(tuple(sorted(items.items()))))  # type: ignore[arg-type]
    else:
        source = OfficialGames(Path(config.source))
    return [AlfworldEnv(source, Path(config.cache_dir), config.engine) for _ in range(count)]


_BUILDERS: dict[str, Callable[[EnvConfig, int], list[TextEnv]]] = {"alfworld": _alfworld}
