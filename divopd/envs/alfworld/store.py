"""Translated games: kept in memory (the last few hundred) and on disk (all of them)."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import re
import tempfile
import warnings
import zlib
from collections import OrderedDict
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

from divopd.envs.alfworld.engine import World
from divopd.envs.alfworld.games import TASK_SENTENCE, Game
from divopd.envs.alfworld.text import compile_grammar
from divopd.envs.alfworld.translate import translate
from divopd.envs.base import EnvError

FORMAT = 2
"""Of the entries on disk; a new number makes old entries unused."""
VERSIONS = {"alfworld": "0.4.2", "textworld": "1.7.0", "fast-downward-textworld": "20.6.4"}
"""What the engine's behaviour was compared with; another version is refused, since it may differ in any sentence."""
_TASK_MARK = "TASK SENTENCE"
_PLAIN = re.compile(r"[A-Za-z0-9 ,.'!?-]+")


@functools.cache
def check_versions() -> None:
    """Raise `EnvError` where one of the three engine packages is missing or has another version."""
    mend = "pip install " + " ".join(f"{name}=={version}" for name, version in VERSIONS.items())
    for name, version in VERSIONS.items():
        try:
            found = metadata.version(name)
        except metadata.PackageNotFoundError as error:
            raise EnvError(f"ALFWorld needs the package {name}: {mend}") from error
        if found != version:
            raise EnvError(f"ALFWorld needs {name} {version}, found {found}: {mend}")


def _key(*parts: str) -> str:
    """A name for what is made from these texts by these versions."""
    digest = hashlib.sha256(f"{FORMAT} {VERSIONS}".encode())
    for part in parts:
        content = part.encode()
        digest.update(b"%d " % len(content) + content)
    return digest.hexdigest()


class WorldStore:
    """Worlds by game; not thread-safe. `memory` bounds how many stay in memory; the least recently used goes first."""

    def __init__(self, cache_dir: Path | None = None, memory: int = 256) -> None:
        """`cache_dir` is made where it is missing; None keeps nothing on disk. Raises `EnvError` where it cannot be."""
        self._dir = None if cache_dir is None else Path(cache_dir)
        self._memory = memory
        self._worlds: OrderedDict[str, World] = OrderedDict()
        self._grammars: dict[str, dict[str, Any]] = {}
        if self._dir is not None:
            try:
                self._dir.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise EnvError(f"cannot make the game cache {self._dir}: {error.strerror}") from error

    def __len__(self) -> int:
        """How many worlds are in memory."""
        return len(self._worlds)

    def world(self, game: Game) -> World:
        """The game's world. Raises `EnvError` for a game that cannot be translated."""
        check_versions()
        key = _key(game["pddl_domain"], game["pddl_problem"], game["grammar"])
        world = self._worlds.pop(key, None)
        if world is None:
            problem = _key(game["pddl_domain"], game["pddl_problem"])
            data = self._kept(problem, lambda: translate(game))
            world = World(data, self._grammar(game["grammar"], data["types"]))
        self._worlds[key] = world
        if len(self._worlds) > self._memory:
            self._worlds.popitem(last=False)
        return world

    def _grammar(self, grammar: str, types: list[Any]) -> dict[str, Any]:
        """The compiled grammar. All games share one but for the task's sentence, so that is taken out and put back."""
        sentences = list(TASK_SENTENCE.finditer(grammar))
        goal, template = None, grammar
        # Only words and simple punctuation are sure to be plain text to TextWorld's parsers.
        if len(sentences) == 1 and _PLAIN.fullmatch(sentences[0].group(1)):
            goal, (start, end) = sentences[0].group(1), sentences[0].span(1)
            template = grammar[:start] + _TASK_MARK + grammar[end:]
        key = _key("grammar", template, json.dumps(types))
        compiled = self._grammars.get(key)
        if compiled is None:
            compiled = self._kept(key, lambda: compile_grammar(template, types))
            if len(self._grammars) == 8:  # in practice there is one
                self._grammars.clear()
            self._grammars[key] = compiled
        return compiled if goal is None else _with_task(compiled, goal)

    def _kept(self, key: str, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """The entry on disk, or a new one that is then kept there."""
        if self._dir is None:
            return make()
        path = self._dir / f"{key}.json.z"
        try:
            entry: dict[str, Any] = json.loads(zlib.decompress(path.read_bytes()))
            return entry
        # Missing, or cut short, or not ours: make it again. zlib's checksum finds damage.
        except (OSError, zlib.error, ValueError):
            entry = make()
            _write(path, zlib.compress(json.dumps(entry, separators=(",", ":")).encode(), 1))
            return entry


@functools.cache
def shared_store(cache_dir: Path | None, memory: int) -> WorldStore:
    """One store a process for these settings, so that many environments load each game once."""
    return WorldStore(cache_dir, memory)


def _write(path: Path, content: bytes) -> None:
    """Write whole or not at all, so that two processes may keep the same entry."""
    try:
        handle, name = tempfile.mkstemp(dir=path.parent, suffix=".part")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
            os.replace(name, path)
        except OSError:
            os.unlink(name)
            raise
    except OSError as error:
        warnings.warn(f"cannot keep a translated game in {path.parent}: {error.strerror}", stacklevel=2)


def _with_task(grammar: dict[str, Any], goal: str) -> dict[str, Any]:
    """The grammar with the task's sentence put back; what does not name the task is shared."""

    def put(symbols: list[Any]) -> list[Any]:
        return [["text", s[1].replace(_TASK_MARK, goal)] if s[0] == "text" else s for s in symbols]

    rules = {
        name: [[condition, put(symbols)] for condition, symbols in alternatives]
        if any(s[0] == "text" and _TASK_MARK in s[1] for _, symbols in alternatives for s in symbols)
        else alternatives
        for name, alternatives in grammar["rules"].items()
    }
    return {**grammar, "rules": rules}
