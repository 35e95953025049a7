"""ALFWorld behind the project's environment protocol."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal, Protocol

from divopd.envs.alfworld.engine import NOTHING, Episode
from divopd.envs.alfworld.games import Game, GameError, GameSource
from divopd.envs.alfworld.stock import StockPlayer
from divopd.envs.alfworld.store import WorldStore, shared_store
from divopd.envs.base import EnvError, Observation, Step

BANNER = "-= Welcome to TextWorld, ALFRED! =-"
_TASK = re.compile(r"\s*Your task is to: (.*)\Z", re.DOTALL)


class Player(Protocol):
    """Plays a game: `start` gives the first text and the commands, `act` a text, the commands, and if it is won."""

    def start(self, game: Game) -> tuple[str, tuple[str, ...]]: ...

    def act(self, command: str) -> tuple[str, tuple[str, ...], bool]: ...

    def close(self) -> None: ...


class FastPlayer:
    """Plays games on our engine; texts and commands are the stock engine's (tests/envs/test_alfworld.py)."""

    def __init__(self, store: WorldStore) -> None:
        self._store = store
        self._episode: Episode | None = None

    def start(self, game: Game) -> tuple[str, tuple[str, ...]]:
        """Load a game and give its first feedback and the commands it accepts."""
        self._episode = Episode(self._store.world(game))
        return self._episode.intro(), self._episode.commands

    def act(self, command: str) -> tuple[str, tuple[str, ...], bool]:
        """Give a command's feedback, the commands accepted next, and whether the game is won."""
        if self._episode is None:
            raise EnvError("no ALFWorld game is running: call start first")
        feedback = self._episode.act(command)
        return feedback, self._episode.commands, self._episode.won

    def close(self) -> None:
        """End the game."""
        self._episode = None


class AlfworldEnv:
    """Text-only ALFWorld; one game at a time, reused for many. Not thread-safe: use processes.

    `success` is the engine's `won`. Commands are case-sensitive. An action answered with "Nothing happens." is
    not `valid`. Steps are not limited here.
    """

    name = "alfworld"

    def __init__(
        self,
        source: GameSource,
        cache_dir: Path | None = None,
        engine: Literal["fast", "stock"] = "fast",
        memory: int = 256,
    ) -> None:
        """`cache_dir`: where translated games stay between processes (None: nowhere); `memory`: how many stay loaded.

        All environments of a process with the same two settings share the loaded games. `engine="stock"` plays on
        TextWorld's own engine instead, some hundred times slower; each open environment has one of its own (34 MB).
        """
        self.source = source
        self._player: Player = StockPlayer() if engine == "stock" else FastPlayer(shared_store(cache_dir, memory))
        self._playing = False
        self._won = False
        self._last: tuple[str, tuple[str, ...]] = ("", ())

    def reset(self, task: str) -> Observation:
        """Start the task's game from its beginning. Raises `EnvError` for an unknown task and for a broken game."""
        self._playing = False
        game = self.source.load(task)
        try:
            feedback, allowed = self._player.start(game)
        # The planner and TextWorld's parsers raise whatever they come upon; the planner leaves by SystemExit, too.
        except (Exception, SystemExit) as error:
            if isinstance(error, EnvError | OSError | MemoryError) and not isinstance(error, GameError):
                raise
            said = " ".join(str(error if isinstance(error, GameError) else repr(error)).split())
            raise EnvError(
                f"task {task!r} is no game that TextWorld can play ({said[:200]}): unpack it again"
            ) from error
        match = _TASK.search(feedback)
        if match is None:
            raise EnvError(f"task {task!r}: the game's first text names no task; is its grammar an ALFWorld one?")
        text = feedback[: match.start()].removeprefix(BANNER).strip()
        self._playing, self._won, self._last = True, False, ("", allowed)
        return Observation(text=text, goal=match.group(1), allowed=allowed)

    def step(self, action: str) -> Step:
        """Send one command. Raises `EnvError` where no game runs."""
        if not self._playing:
            raise EnvError("no ALFWorld game is running: call reset first")
        feedback, allowed, won = self._player.act(action)
        valid = feedback != NOTHING
        last_action, last_allowed = self._last
        repeat = action.strip() == last_action and allowed == last_allowed
        reward = 1.0 if won and not self._won else 0.0
        self._won, self._last = won, (action.strip(), allowed)
        progress = valid and not repeat
        return Step(feedback, reward, done=won, success=won, valid=valid, progress=progress, allowed=allowed)

    def close(self) -> None:
        """End the running game; a later `reset` starts anew."""
        self._playing = False
        self._player.close()
