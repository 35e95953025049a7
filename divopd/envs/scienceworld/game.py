"""One running ScienceWorld game. Many share a Java process."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, Concatenate, Literal, NamedTuple, ParamSpec, TypeVar

from divopd.envs.base import EnvError
from divopd.envs.scienceworld.java import Java, JavaGone

P = ParamSpec("P")
R = TypeVar("R")

UNPARSED = "No known action matches that input."
EMPTY = "Unknown action.  Type 'help' for a list of actions, and 'objects' for a list of possible object referents. "
AMBIGUOUS = "Ambiguous request: "
CRASHED = "ERROR: the game failed: "


class Reply(NamedTuple):
    """What the game said. `score` is the game's, -1 to 1; `completed` is its own flag, false after a wrong focus."""

    text: str
    score: float
    completed: bool


def _talks(method: Callable[Concatenate[Game, P], R]) -> Callable[Concatenate[Game, P], R]:
    """Turn the ways in which a lost process shows into `JavaGone`."""

    @wraps(method)
    def call(self: Game, *args: P.args, **kwargs: P.kwargs) -> R:
        from py4j.protocol import Py4JJavaError, Py4JNetworkError

        try:
            return method(self, *args, **kwargs)
        except (Py4JNetworkError, OSError) as error:
            raise JavaGone(self.java.last_words()) from error
        except Py4JJavaError as error:
            raise EnvError(f"ScienceWorld failed: {error.java_exception.toString()}") from error

    return call


class Game:
    """One game, apart from all others.

    The engine has four things that all games of a Java process share: the source of randomness, the counter of object
    ids, the list of simplifications in force, and numbers for classes that no text shows. Each game has its own of
    the first three, put in place whenever it is this game's turn.
    """

    def __init__(self, java: Java) -> None:
        self.java = java
        self._random = java.jvm.java.util.Random()
        self._rules = java.jvm.scala.collection.mutable.ArrayBuffer()
        self._ids = 0
        self._agent: Any = None
        self._agent_option: Any = None

    def _enter(self) -> None:
        java, last = self.java, self.java.active
        if last is self:
            return
        java.active = None
        if last is not None:
            last._ids = java.ids.count()
        java.set_random(self._random)
        java.set_rules(self._rules)
        getattr(java.ids, "count_$eq")(self._ids)
        java.active = self

    @_talks
    def load(self, name: str, variation: int, simplifications: str) -> str:
        """Start a task anew; the goal in words. Raises `EnvError` where the game has no such task."""
        self._enter()
        server = self.java.server
        if error := server.load(name, variation, simplifications, False):
            raise EnvError(f"ScienceWorld cannot load {name}/{variation}: {' '.join(error.split())}")
        self._agent_option = server.agentInterface()
        self._agent = self._agent_option.get()
        goal: str = self._agent.getTaskDescription()
        return goal

    @_talks
    def act(self, action: str) -> Reply:
        """One action. The server's own step does the same and then lists what it shows nobody; it is left out."""
        from py4j.protocol import Py4JJavaError

        self._enter()
        if action in ("help", "objects", "task"):
            return self._free(action)
        try:
            # (text,score,completed) in one trip
            text, score, completed = self._agent.step(action).toString()[1:-1].rsplit(",", 2)
        except Py4JJavaError as error:
            return Reply(CRASHED + error.java_exception.toString(), -1.0, True)
        return Reply(text or EMPTY, float(score), completed == "true")

    def _free(self, command: str) -> Reply:
        """The three commands that the server answers by itself."""
        sequence = self._agent.task().goalSequence()
        if command == "task":
            text = "Task description:\n" + self._agent.getTaskDescription()
        else:
            title, kind = ("actions", "templates") if command == "help" else ("object references", "objects")
            text = f"Possible {title}: \n\t" + "\n\t".join(self.lines(kind))  # type: ignore[arg-type]
        return Reply(text, sequence.score(), sequence.isCompleted())

    @_talks
    def lines(self, kind: Literal["templates", "objects", "actions"]) -> list[str]:
        """Action templates, things that they may name, or all valid actions. Never changes what follows."""
        self._enter()
        java = self.java
        getattr(java.server, "agentInterface_$eq")(self._agent_option)
        ids = java.ids.count()
        # Names are made unique by drawing; from a source of its own, the game's stays as it was.
        java.set_random(java.jvm.java.util.Random(0))
        try:
            listing = {
                "templates": java.server.getPossibleActions,
                "objects": java.server.getPossibleObjects,
                "actions": java.server.getValidActionObjectCombinations,
            }[kind]()
            found: str = java.jvm.java.lang.String.join("\n", listing)
        finally:
            java.set_random(self._random)
            getattr(java.ids, "count_$eq")(ids)
        return found.split("\n") if found else []

    @_talks
    def gold_path(self, name: str, variation: int, simplifications: str) -> list[str]:
        """The game's own winning actions: seconds to minutes, and it starts the task anew."""
        self._enter()
        server = self.java.server
        if error := server.load(name, variation, simplifications, True):
            raise EnvError(f"ScienceWorld cannot load {name}/{variation}: {' '.join(error.split())}")
        found: str = self.java.jvm.java.lang.String.join("\n", server.getGoldActionSequence())
        return found.split("\n")
