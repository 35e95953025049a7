"""Expert data from the game's own gold paths: fewer commands, each path verified by replay to a score of 100.

A gold path walks from door to door; in the simplified game one teleports. Making gold takes the game seconds to minutes
a task, so paths of short tasks ship in gold.json.xz (`python -m divopd.envs.scienceworld.gold` makes it again).
"""

from __future__ import annotations

import contextlib
import json
import logging
import lzma
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from pathlib import Path

from divopd.config import EnvConfig
from divopd.envs.base import EnvError, TextEnv
from divopd.envs.fields import entry, mapping, texts
from divopd.files import atomic_write

log = logging.getLogger("divopd")
STORE = Path(__file__).with_name("gold.json.xz")
_WALK, _TELEPORT = "go to ", "teleport to "
_DOORS = ("open door to ", "close door to ")
_IDLE = ("look around", "inventory")


def compress(path: Sequence[str]) -> list[str]:
    """A gold path without doors and looks, each walk through rooms as one teleport to where it ends.

    `["open door to hallway", "go to hallway", "go to kitchen", "look around", "pick up cup"]` becomes
    `["teleport to kitchen", "pick up cup"]`.
    """
    short: list[str] = []
    room = ""
    for command in path:
        if command.startswith(_DOORS) or command in _IDLE:
            continue
        if command.startswith(_WALK):
            room = command.removeprefix(_WALK)
            continue
        if room:
            short.append(_TELEPORT + room)
            room = ""
        short.append(command)
    return short


def verified(env: TextEnv, task: str, path: Sequence[str]) -> list[str] | None:
    """The part of a path after which the task is done with score 100, or None if it does not come to that."""
    env.reset(task)
    for number, command in enumerate(path, 1):
        step = env.step(command)
        if step.success:
            return list(path[:number])
        if step.done:
            return None
    return None


def collect(env: TextEnv, tasks: Iterable[str], gold_path: Callable[[str], Sequence[str]]) -> dict[str, list[str]]:
    """Compressed, verified paths of those tasks that have one. `gold_path` asks the game for a task's own path."""
    found = {}
    for task in tasks:
        path = verified(env, task, compress(gold_path(task)))
        if path is not None:
            found[task] = path
    return found


def write_store(paths: dict[str, list[str]], store: Path = STORE) -> None:
    text = json.dumps(dict(sorted(paths.items())), indent=0)
    store.write_bytes(lzma.compress(text.encode(), preset=9))


@cache
def shipped(store: Path = STORE) -> dict[str, list[str]]:
    """The paths in the package, by task. Raises `EnvError` if the file is not there, or is not what it should be."""
    try:
        content = json.loads(lzma.decompress(store.read_bytes()))
    except (OSError, lzma.LZMAError, ValueError) as error:
        said = getattr(error, "strerror", None) or error
        raise EnvError(f"{store.name} cannot be read ({said}): install the package anew") from error
    with entry(f"{store.name} (install the package anew)"):
        return {task: list(texts(path, repr(task))) for task, path in mapping(content).items()}


def gold(task: str) -> list[str]:
    """The verified path of a short task. Raises `EnvError` where none ships."""
    paths = shipped()
    if task not in paths:
        raise EnvError(f"no gold path ships for {task}: {len(paths)} short tasks have one, or ask the game (gold_path)")
    return list(paths[task])


def kept(config: EnvConfig, env: TextEnv, task: str) -> list[str]:
    """The game's verified path, asked for once and kept in `config.cache_dir`; the walk itself where teleport loses.

    Raises `EnvError` where replaying neither comes to a score of 100.
    """
    from divopd.envs.scienceworld.env import gold_path
    from divopd.envs.scienceworld.options import Options

    options = Options.model_validate(config.options)
    name = f"{task.replace('/', '-')}-{options.simplifications or 'plain'}.json"
    path = Path(config.cache_dir) / "scienceworld" / "gold" / name
    # Missing, or not ours: ask the game.
    with contextlib.suppress(OSError, ValueError):
        return list(texts(json.loads(path.read_text()), "the path"))
    log.info("asking ScienceWorld for the gold path of %s: seconds to minutes, once", task)
    walk = gold_path(task, options)
    found = verified(env, task, compress(walk)) or verified(env, task, walk)
    if found is None:
        raise EnvError(f"the game's gold path of {task} does not come to a score of 100 when it is replayed")
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic_write(path, json.dumps(found).encode())
    return found


def main() -> None:
    """Make the store again, from the game: the tasks named, or those that ship one (an hour or so)."""
    from divopd.envs.scienceworld.env import gold_path, make_scienceworld

    [env] = make_scienceworld(EnvConfig(name="scienceworld"), 1)
    paths = collect(env, sys.argv[1:] or list(shipped()), gold_path)
    write_store(shipped() | paths if STORE.exists() else paths)
    env.close()


if __name__ == "__main__":
    main()
