"""One running ScienceWorld game. Many share a Java process."""

from __future__ import annotations

from typing import Literal, NamedTuple

from divopd.envs.base import EnvError
from divopd.envs.scienceworld.java import Java
from divopd.envs.scienceworld.wire import JavaError, Ref, Value, call, construct, free

UNPARSED = "No known action matches that input."
EMPTY = "Unknown action.  Type 'help' for a list of actions, and 'objects' for a list of possible object referents. "
AMBIGUOUS = "Ambiguous request: "
CRASHED = "ERROR: the game failed: "


class Reply(NamedTuple):
    """What the game said. `score` is the game's, -1 to 1; `completed` is its own flag, false after a wrong focus."""

    text: str
    score: float
    completed: bool


Listing = Literal["templates", "objects", "actions"]
_LISTINGS = {
    "templates": "getPossibleActions",
    "objects": "getPossibleObjects",
    "actions": "getValidActionObjectCombinations",
}


class Game:
    """One game, apart from all others. Its methods raise `JavaGone` where the process is.

    The engine has four things that all games of a Java process share: the source of randomness, the counter of object
    ids, the list of simplifications in force, and numbers for classes that no text shows. Each game has its own of
    the first three, put in place whenever it is this game's turn.
    """

    def __init__(self, java: Java) -> None:
        self.java = java
        self._random = java.ref(construct("java.util.Random"))
        self._rules = java.ref(construct("scala.collection.mutable.ArrayBuffer"))
        self._ids: Value = 0
        self._agent: Ref | None = None  # the running episode, and the same in Scala's Option
        self._option: Ref | None = None
        self._goal = ""

    def _enter(self) -> None:
        """Make the shared things this game's."""
        java, last = self.java, self.java.active
        if last is self:
            return
        java.active = None
        mine = (java.set_random(self._random), java.set_rules(self._rules), call(java.ids, "count_$eq", self._ids))
        ids, *_ = java.send(call(java.ids, "count"), *mine)
        if last is not None:
            last._ids = ids
        java.active = self

    def load(self, name: str, variation: int, simplifications: str, gold: bool = False) -> str:
        """Start a task anew; the goal in words. Raises `EnvError` where the game has no such task.

        `gold` makes the game look for its own way to win first, which takes seconds to minutes.
        """
        java = self.java
        self._enter()
        self.leave()
        try:
            [error] = java.send(call(java.server, "load", name, variation, simplifications, gold))
        except JavaError as failure:
            error = self._told(failure)
        if error:
            raise EnvError(f"ScienceWorld cannot load {name}/{variation}: {' '.join(str(error).split())}")
        self._option = java.ref(call(java.server, "agentInterface"))
        self._agent = java.ref(call(self._option, "get"))
        self._quicken(self._agent)
        [goal] = java.send(call(self._agent, "getTaskDescription"))
        self._goal = str(goal)
        return self._goal

    def _quicken(self, agent: Ref) -> None:
        """Give a new episode a parser that answers the same with less work (`jvm/QuickParser.java`)."""
        java = self.java
        handler = java.ref(call(agent, "actionHandler"))
        actions = java.ref(call(handler, "getActions"))
        parser = java.ref(construct("QuickParser", actions))
        java.send(java.set_parser(agent, parser), *map(free, (parser, actions, handler)))

    def leave(self) -> None:
        """Let Java forget the running episode."""
        refs = [ref for ref in (self._agent, self._option) if ref is not None]
        self._agent = self._option = None
        if refs:
            self.java.send(*map(free, refs))

    def end(self) -> None:
        """Let Java forget the whole game."""
        self.leave()
        if self.java.active is self:
            self.java.active = None
        self.java.send(free(self._random), free(self._rules))

    def act(self, action: str) -> Reply:
        """One action. The server's own step does the same, and after it works out lists that it shows nobody."""
        assert self._agent is not None, "load first"
        self._enter()
        if action in ("help", "objects", "task"):
            return self._free_command(action)
        try:
            triple = self.java.ref(call(self._agent, "step", action))
        except JavaError as failure:
            return Reply(CRASHED + self._told(failure), -1.0, True)
        answer, _ = self.java.send(call(triple, "toString"), free(triple))
        text, score, completed = str(answer)[1:-1].rsplit(",", 2)
        return Reply(text or EMPTY, float(score), completed == "true")

    def _free_command(self, command: str) -> Reply:
        """The three commands that the server answers by itself."""
        assert self._agent is not None
        if command == "task":
            text = "Task description:\n" + self._goal
        elif command == "help":
            text = "Possible actions: \n\t" + "\n\t".join(self.lines("templates"))
        else:
            text = "Possible object references: \n\t" + "\n\t".join(self.lines("objects"))
        task = self.java.ref(call(self._agent, "task"))
        goals = self.java.ref(call(task, "goalSequence"))
        score, completed, *_ = self.java.send(call(goals, "score"), call(goals, "isCompleted"), free(task), free(goals))
        return Reply(text, float(str(score)), bool(completed))

    def lines(self, kind: Listing) -> list[str]:
        """Action templates, things that they may name, or all valid actions. Never changes what follows."""
        assert self._option is not None, "load first"
        self._enter()
        java = self.java
        # Names are made unique by drawing: from a source of its own, so that the game's stays as it is.
        drawn = java.ref(construct("java.util.Random", 0))
        _, ids, _ = java.send(
            call(java.server, "agentInterface_$eq", self._option), call(java.ids, "count"), java.set_random(drawn)
        )
        try:
            return self._joined(call(java.server, _LISTINGS[kind]))
        finally:
            java.send(java.set_random(self._random), call(java.ids, "count_$eq", ids), free(drawn))

    def gold_path(self) -> list[str]:
        """The actions that the game found when it was loaded with `gold`."""
        return self._joined(call(self.java.server, "getGoldActionSequence"))

    def _joined(self, command: str) -> list[str]:
        """The items of a Java list of texts."""
        items = self.java.ref(command)
        text, _ = self.java.send(call("java.lang.String", "join", "\n", items), free(items))
        return str(text).split("\n") if text else []

    def _told(self, failure: JavaError) -> str:
        """A Java exception in one line."""
        if not isinstance(failure.cause, Ref):
            return str(failure).split("\n")[0]
        text, _ = self.java.send(call(failure.cause, "toString"), free(failure.cause))
        return str(text).split("\n")[0]
