"""Environments and task lists by configuration; each environment's packages are imported only when it is asked for.

An environment is a folder divopd/envs/<name>/ whose plugin.py fills one seam: `Options` (what `env.options` may hold),
`COMPILES` (whether tasks are prepared ahead of a suite), `make` (environments), `tasks` (a named split), and for small
models `style` (few words), `words` (their tokenizer's), `players` (expert and novice, which label states) and `short`
(the response that stands for a command among the allowed ones). One function is optional: `expert_path(config, env,
task)`, the actions that win a task, found with an environment of its own or without; it raises `EnvError` for a task
that has none (paths.py).
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, cast

from ..config import EnvConfig, Strict
from .base import EnvError, TextEnv

if TYPE_CHECKING:
    from ..cloning.demos import Labeller
    from ..prompts import Style

_RANGE = re.compile(r"(?P<stem>.+/)(?P<low>\d+):(?P<high>\d+)")


class Plugin(Protocol):
    """See the module."""

    Options: type[Strict]
    COMPILES: bool  # loading a task once saves time whenever it is loaded again

    def make(self, config: EnvConfig, count: int) -> list[TextEnv]: ...

    def tasks(self, config: EnvConfig, split: str) -> list[str]: ...

    def style(self) -> Style: ...

    def words(self) -> tuple[list[str], list[str]]: ...

    def players(self, habits: Sequence[float]) -> dict[str, Callable[[], Labeller]]: ...

    def short(self, command: str, allowed: tuple[str, ...]) -> str: ...


def plugin(name: str) -> Plugin:
    """The seam of one environment, imported when it is first asked for."""
    return cast(Plugin, importlib.import_module(f"divopd.envs.{name}.plugin"))


def make_envs(config: EnvConfig, count: int) -> list[TextEnv]:
    """`count` environments of one kind, for as many episodes at once. Raises `EnvError` naming what is missing."""
    return plugin(config.name).make(config, count)


def train_tasks(config: EnvConfig) -> list[str]:
    """Training task ids: a range ("gen/train/0:2000"), a panel file, or a split that the environment names."""
    spec = config.train_tasks
    if found := _RANGE.fullmatch(spec):
        tasks = [f"{found['stem']}{i}" for i in range(int(found["low"]), int(found["high"]))]
        if not tasks:
            raise EnvError(f"env.train_tasks: {spec} is empty: it runs from its first number to below its second")
        return tasks
    if spec.endswith(".txt"):
        return read_panel(spec)
    return plugin(config.name).tasks(config, spec)


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
