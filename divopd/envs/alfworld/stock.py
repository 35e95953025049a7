"""TextWorld's own engine behind our player interface: slow, and the yardstick our engine is compared with."""

from __future__ import annotations

import functools
from typing import Any

from divopd.envs.alfworld.games import Game
from divopd.envs.alfworld.translate import kept_process_state
from divopd.envs.base import EnvError


@functools.cache
def _engine() -> Any:
    """One engine a process: each new one copies the 34 MB planner library and leaks 2.4 MB."""
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
    """Plays one game at a time with TextWorld's `PddlEnv`. Not thread-safe; all instances share one engine."""

    def start(self, game: Game) -> tuple[str, tuple[str, ...]]:
        """Load a game and give its first feedback and the commands it accepts."""
        with kept_process_state():
            engine = _engine()
            engine.load(game)
            state = engine.reset()
        return state["feedback"], tuple(state["admissible_commands"])

    def act(self, command: str) -> tuple[str, tuple[str, ...], bool]:
        """Give a command's feedback, the commands accepted next, and whether the game is won."""
        state, _, _ = _engine().step(command)
        return state["feedback"], tuple(state["admissible_commands"]), bool(state["won"])
