"""Environments and task lists by configuration; each environment's packages are imported only when it is asked for.

An environment is a folder divopd/envs/<name>/ whose plugin.py fills one seam: `Options` (what `env.options` may hold),
`COMPILES` (whether tasks are prepared ahead of a suite), `make` (environments), `tasks` (a named split), `check_tasks`
(raises for ids that the source has not), and for small models `style` (few words), `words` (their tokenizer's),
`players` (expert and novice, which label states) and `short` (the response that stands for a command among the allowed
ones). One function is optional: `expert_path(config, env, task)`, the actions that win a task, found with an
environment of its own or without; it raises `EnvError` for a task that has none (paths.py).
"""

from __future__ import annotations

import importlib
import re
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, cast

from ..config import EnvConfig, Strict
from .base import EnvError, TextEnv

if TYPE_CHECKING:
    from ..cloning.demos import Labeller
    from ..prompts import Style

RANGE = re.compile(r"(?P<stem>.+/)(?P<low>\d+):(?P<high>\d+)")
_COMMENT = re.compile(r"(^|\s)#.*")


class Plugin(Protocol):
    """See the module."""

    Options: type[Strict]
    COMPILES: bool  # loading a task once saves time whenever it is loaded again

    def make(self, config: EnvConfig, count: int) -> list[TextEnv]: ...

    def tasks(self, config: EnvConfig, split: str) -> list[str]: ...

    def check_tasks(self, config: EnvConfig, tasks: Sequence[str]) -> None: ...

    def style(self) -> Style: ...

    def words(self) -> tuple[list[str], list[str]]: ...

    def players(self, habits: Sequence[float]) -> dict[str, Callable[[], Labeller]]: ...

    def short(self, command: str, allowed: tuple[str, ...]) -> str: ...


def environments() -> list[str]:
    """Every environment, sorted: the folders beside this file that hold a plugin.py."""
    return sorted(path.parent.name for path in Path(__file__).parent.glob("*/plugin.py"))


def plugin(name: str) -> Plugin:
    """The seam of one environment, imported when it is first asked for."""
    return cast(Plugin, importlib.import_module(f"divopd.envs.{name}.plugin"))


def make_envs(config: EnvConfig, count: int) -> list[TextEnv]:
    """`count` environments of one kind, for as many episodes at once. Raises `EnvError` naming what is missing."""
    return plugin(config.name).make(config, count)


def train_tasks(config: EnvConfig) -> list[str]:
    """Training task ids: a range ("gen/train/0:2000"), a panel file, or a split that the environment names."""
    spec = config.train_tasks
    if found := RANGE.fullmatch(spec):
        tasks = [f"{found['stem']}{i}" for i in range(int(found["low"]), int(found["high"]))]
        if not tasks:
            raise EnvError(f"env.train_tasks: {spec} is empty: it runs from its first number to below its second")
        return tasks
    if spec.endswith(".txt"):
        return read_panel(spec)
    return plugin(config.name).tasks(config, spec)


def require_tasks(config: EnvConfig, tasks: Sequence[str], where: str) -> None:
    """Raise `EnvError`, which begins with `where`, for the first task id that the environment's source has not.

    Starts no game and reads no large file: of WebShop's whole product set, only the form of an id is checked.
    """
    try:
        plugin(config.name).check_tasks(config, tasks)
    except EnvError as error:
        raise EnvError(f"{where}: {error}") from error


def eval_tasks(config: EnvConfig, episodes: int) -> list[str]:
    """The first `episodes` tasks of the panel, in its order. Raises `EnvError` where the source lacks one of its."""
    tasks = panel_tasks(config, episodes)
    require_tasks(config, tasks, f"panel {config.eval_panel}")
    return tasks[:episodes]


def panel_tasks(config: EnvConfig, episodes: int) -> list[str]:
    """All tasks of the panel. Raises `EnvError` where it cannot be used, or has fewer than `episodes`."""
    tasks = read_panel(config.eval_panel)
    if len(tasks) < episodes:
        raise EnvError(
            f"panel {config.eval_panel} has {len(tasks)} tasks, evaluation asks for {episodes}: lower "
            "evaluation.episodes or name a longer env.eval_panel"
        )
    return tasks


def read_panel(path: str | Path) -> list[str]:
    """Task ids of a panel file, one a line; `#` starts a comment, blanks around an id do not count.

    Raises `EnvError` if the file is missing, no UTF-8 text, empty or repeating.
    """
    try:
        text = Path(path).read_text(encoding="utf-8-sig")  # Windows editors begin a file with a byte-order mark
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "not UTF-8 text"
        raise EnvError(f"panel {path} cannot be read ({why}): it lists task ids, one a line") from error
    tasks = [task for line in text.splitlines() if (task := _COMMENT.sub("", line).strip())]
    if not tasks:
        raise EnvError(f"panel {path} is empty: it lists task ids, one a line")
    task, times = Counter(tasks).most_common(1)[0]
    if times > 1:
        raise EnvError(f"panel {path} is not a list of distinct tasks: it has {task} {times} times")
    return tasks
