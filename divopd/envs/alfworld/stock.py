"""TextWorld's own engine behind our player interface: slow, and the yardstick our engine is compared with."""

from __future__ import annotations

import weakref
from typing import Any

from divopd.envs.alfworld.games import Game
from divopd.envs.alfworld.translate import kept_process_state
from divopd.envs.base import EnvError

_IDLE: list[Any] = []
"""Engines that no player holds: each new one copies the 34 MB planner library and leaks 2.4 MB, so they are reused."""


def _new_engine() -> Any:
    try:
        import textworld
        from alfworld.agents.utils.misc import Demangler
        from textworld.envs.pddl import PddlEnv

        class Demangled(textworld.core.Wrapper):
            """What alfworld's AlfredDemangler does, without its import of the gym machinery."""

            def load(self, *args: Any, **kwargs: Any) -> None:
                super().load(*args, **kwargs)
                names = Demangler(game_infos=self._entity_infos, shuffle=False)
                for info in self._entity_infos.values():
                    info.name = names.demangle_alfred_name(info.id)

        return Demangled(PddlEnv(textworld.EnvInfos(won=True, admissible_commands=True)))
    except (ImportError, OSError, RuntimeError) as error:
        raise EnvError(
            f"ALFWorld's engine is missing ({error}): pip install alfworld==0.4.2 textworld==1.7.0 "
            "fast-downward-textworld==20.6.4"
        ) from error


class StockPlayer:
    """Plays one game at a time with TextWorld's `PddlEnv`. Not thread-safe.

    The planner library keeps the running game in C globals, so no two players may share an engine: each takes one at
    its first `start` and gives it back when it is closed or collected.
    """

    def __init__(self) -> None:
        self._engine: Any = None
        self._give_back: weakref.finalize[..., StockPlayer] | None = None

    def start(self, game: Game) -> tuple[str, tuple[str, ...]]:
        """Load a game and give its first feedback and the commands it accepts."""
        with kept_process_state():
            if self._engine is None:
                self._engine = _IDLE.pop() if _IDLE else _new_engine()
                self._give_back = weakref.finalize(self, _IDLE.append, self._engine)
            self._engine.load(game)
            state = self._engine.reset()
        return state["feedback"], tuple(state["admissible_commands"])

    def act(self, command: str) -> tuple[str, tuple[str, ...], bool]:
        """Give a command's feedback, the commands accepted next, and whether the game is won."""
        if self._engine is None:
            raise EnvError("no ALFWorld game is running: call start first")
        state, _, _ = self._engine.step(command)
        return state["feedback"], tuple(state["admissible_commands"]), bool(state["won"])

    def close(self) -> None:
        """End the game and let another player have the engine; a later `start` takes one anew."""
        self._engine, give_back = None, self._give_back
        if give_back is not None:
            give_back()
