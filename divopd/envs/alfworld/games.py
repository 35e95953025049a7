"""Where ALFWorld games come from: made from a seed, or the official files. Both give the same dict."""

from __future__ import annotations

import functools
import json
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from divopd.envs.base import EnvError
from divopd.envs.fields import entry, need, text, warn_of

if TYPE_CHECKING:
    from divopd.envs.alfworld.generate import GameSize

Game = Mapping[str, Any]
"""The official `game.tw-pddl` content (pddl_domain, grammar, pddl_problem, solvable, walkthrough), plus `task_type` and
`task` (the goal in words)."""

GAME_FILE = "game.tw-pddl"
SPLITS = ("train", "valid_seen", "valid_unseen", "valid_train")
TASK_SENTENCE = re.compile(r'"rhs":\s*"Your task is to: ((?:[^"\\]|\\.)*)"')


class GameError(EnvError):
    """A game that cannot be played, whatever the installation."""


class GameSource(Protocol):
    """Gives the game of a task id. `load` raises `EnvError` for an id it does not know."""

    def load(self, task: str) -> Game: ...


class GeneratedGames:
    """Games made on the spot from the id's seed, with the domain and room layouts the alfworld wheel carries."""

    def __init__(self, size: GameSize | None = None) -> None:
        """`size`: how large rooms are (None: the generator's default)."""
        self.size = size

    def load(self, task: str) -> Game:
        """The game of a generated id; the same in every process."""
        return _generated(task, self.size)


@functools.lru_cache(maxsize=256)
def _generated(task: str, size: GameSize | None) -> Game:
    """A panel's games are played many times: generation takes longer than loading the translated game."""
    from divopd.envs.alfworld.generate import GameSize, generate_game

    return generate_game(task, GameSize() if size is None else size)


class OfficialGames:
    """The official games below `root` (the `json_2.1.1` folder); a task id is the path of a trial relative to it."""

    def __init__(self, root: Path) -> None:
        """Raises `EnvError` where `root` is not a folder."""
        self.root = Path(root)
        if not self.root.is_dir():
            raise EnvError(f"no ALFWorld games at {self.root}: run `alfworld-download` and give its json_2.1.1 folder")

    def tasks(self, split: str) -> list[str]:
        """Sorted ids of a split's solvable games. Raises `EnvError` for a split that is not there."""
        folder = self.root / split
        if not folder.is_dir():
            raise EnvError(f"no split {split!r} in {self.root}: expected one of {', '.join(SPLITS)}")
        left_out: Counter[str] = Counter()
        found = []
        for path in folder.glob(f"*/*/{GAME_FILE}"):
            game = _read(path)
            if game.get("solvable") is True:
                found.append(path.parent.relative_to(self.root).as_posix())
            else:
                left_out[f"{folder}: games that are not said to be solvable"] += 1
        warn_of(left_out)
        return sorted(found)

    def file(self, task: str) -> Path:
        """The file of a game. Raises `EnvError` for a task that there is not."""
        path = self.root / task / GAME_FILE
        # A task id is a name, not a way out of the folder.
        if ".." in Path(task).parts or Path(task).is_absolute() or not path.is_file():
            raise EnvError(f"unknown ALFWorld task {task!r}: no {GAME_FILE} in {path.parent}")
        return path

    def load(self, task: str) -> Game:
        """Read one game file. Raises `EnvError` for an unknown id, and for a file that is no game."""
        path = self.file(task)
        game = _read(path)
        with entry(f"{path} (unpack it again)"):
            for key in ("pddl_domain", "pddl_problem", "grammar"):
                text(need(game, key), key)
        sentence = TASK_SENTENCE.search(game["grammar"])
        try:
            goal = json.loads(f'"{sentence.group(1)}"') if sentence else ""
        except ValueError:
            raise EnvError(f"{path}: the task's sentence in its grammar is no JSON text: unpack it again") from None
        return {**game, "task": goal, "task_type": Path(task).parent.name.split("-")[0]}


def _read(path: Path) -> Game:
    """A game's file, as an object. Raises `EnvError` where it is none."""
    try:
        game = json.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError) as error:
        raise EnvError(f"{path} is not an ALFWorld game ({error}): unpack it again") from error
    if not isinstance(game, dict):
        raise EnvError(f"{path} is not an ALFWorld game (no JSON object): unpack it again")
    return game
