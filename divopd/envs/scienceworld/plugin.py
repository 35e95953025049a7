"""What the suite asks of ScienceWorld: see divopd/envs/registry.py for the seam that every environment fills."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from divopd.config import EnvConfig
from divopd.envs.base import EnvError, TextEnv
from divopd.envs.scienceworld.options import Options

if TYPE_CHECKING:
    from divopd.cloning.demos import Labeller
    from divopd.prompts import Style

__all__ = ["COMPILES", "Options", "expert_path", "make", "players", "short", "style", "tasks", "words"]

COMPILES = False  # a game is loaded anew for every episode that does something new


def make(config: EnvConfig, count: int) -> list[TextEnv]:
    """Environments on the game, or with `source: sketch` on worlds drawn for cloning (sketch.py)."""
    if config.source == "sketch":
        from divopd.envs.scienceworld.sketch import SketchEnv

        return [SketchEnv() for _ in range(count)]
    from divopd.envs.scienceworld.env import make_scienceworld

    return list(make_scienceworld(config, count))


def tasks(config: EnvConfig, split: str) -> list[str]:
    """The tasks of a split: the paper's "train" and "held-out", or "short-train" and "short-eval"."""
    from divopd.envs.scienceworld.split import split_tasks

    return split_tasks(split)


def check_tasks(config: EnvConfig, tasks: Sequence[str]) -> None:
    """Raises `EnvError` for the first id that the game has not, or that names no sketch."""
    from divopd.envs.scienceworld.games import parse_task
    from divopd.envs.scienceworld.sketch import require_sketch

    for task in tasks:
        if config.source == "sketch":
            require_sketch(task)
        else:
            parse_task(task)


def style() -> Style:
    from divopd.envs.scienceworld.compact import CompactStyle

    return CompactStyle()


def words() -> tuple[list[str], list[str]]:
    """All words of the compact style; there are no numbered names."""
    from divopd.envs.scienceworld.compact import ACTION_WORDS, GOAL_WORDS, OBSERVATION_WORDS, TEMPERATURE_WORDS
    from divopd.envs.scienceworld.knowledge import FULL

    return list(dict.fromkeys([*GOAL_WORDS, *OBSERVATION_WORDS, *ACTION_WORDS, *TEMPERATURE_WORDS, *FULL])), []


def players(habits: Sequence[float]) -> dict[str, Callable[[], Labeller]]:
    """Who can label a state. `habits`: wander, forget, stall, guess of the novice."""
    from divopd.envs.scienceworld.expert import Expert
    from divopd.envs.scienceworld.novice import Novice

    return {"expert": Expert, "novice": partial(Novice, *(habits or (0.0, 0.0, 0.0, 0.0)))}


def short(command: str, allowed: tuple[str, ...]) -> str:
    from divopd.envs.scienceworld.compact import compact_action

    return compact_action(command)


def expert_path(config: EnvConfig, env: TextEnv, task: str) -> list[str]:
    """The gold path that ships, else the scripted expert's actions, else the game's own gold path, kept once made."""
    from divopd.envs.paths import played
    from divopd.envs.scienceworld.expert import Expert
    from divopd.envs.scienceworld.gold import kept, shipped

    if config.source == "sketch":
        return played(env, Expert(), task)
    if task in shipped():
        return list(shipped()[task])
    try:
        return played(env, Expert(), task)
    except EnvError:
        return kept(config, env, task)
