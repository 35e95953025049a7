"""One episode: answers from the transcript as far as it goes, then from a game that is brought to the same point."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TypeVar

from divopd.envs.base import EnvError
from divopd.envs.scienceworld.game import UNPARSED, Game, Reply
from divopd.envs.scienceworld.java import JavaGone, JavaShare
from divopd.envs.scienceworld.options import Options
from divopd.envs.scienceworld.transcripts import Answer, Node, TranscriptStore

T = TypeVar("T")

LOOK = "look around"


class Episode:
    """An episode of one task. `first` answers the look around with which the game's own wrapper starts."""

    def __init__(
        self, store: TranscriptStore, java: JavaShare, user: object, name: str, variation: int, options: Options
    ) -> None:
        """Raises `EnvError` where the game is needed and does not start. `user`: who leaves the share in the end."""
        self._store, self._share, self._user, self._options = store, java, user, options
        self._task = (name, variation, options.simplifications)
        self._game: Game | None = None
        self._path: list[str] = []  # actions since the look around that changed, or may have changed, the state
        self._played = 0  # how many of them the game has seen
        task = f"{name}/{variation}"
        found = store.find(task)
        if found is None:
            goal, first = self._safely(self._begin)
            found = store.begin(task, goal, first)
        self._transcript = found
        self._node = found.root

    @property
    def goal(self) -> str:
        return self._transcript.goal

    @property
    def first(self) -> Answer:
        return self._transcript.first

    def act(self, action: str) -> Answer:
        """What the game says to an action. Raises `EnvError` where Java ended and does not come back."""
        known = self._node.edges.get(action)
        self._store.note(known is not None)
        if known is None:
            answer = self._safely(lambda: self._play(action))
            # text that the game cannot read leaves everything as it was
            same = answer.text == UNPARSED
            known = (answer, self._node if same else Node())
            self._transcript.add(self._node, action, *known)
            self._played += not same
        answer, node = known
        if node is not self._node:
            self._path.append(action)
        self._node = node
        return answer

    def _begin(self) -> tuple[str, Answer]:
        """Start a game: the goal, and the answer to the look around."""
        self._played = 0
        self._game = game = Game(self._share.get(self._user))
        goal = game.load(*self._task)
        return goal, self._listed(game.act(LOOK))

    def _play(self, action: str) -> Answer:
        """The game's answer, after it has caught up."""
        if self._game is None:
            self._begin()
        assert self._game is not None
        while self._played < len(self._path):
            self._game.act(self._path[self._played])
            self._played += 1
        return self._listed(self._game.act(action))

    def _listed(self, reply: Reply) -> Answer:
        assert self._game is not None
        allowed: list[str] = []
        if self._options.listing == "actions":
            allowed = self._game.lines("actions")
        elif self._options.listing == "templates":
            allowed = [*self._game.lines("templates"), "OBJ: " + ", ".join(self._game.lines("objects"))]
        return Answer(*reply, tuple(allowed))

    def _safely(self, call: Callable[[], T]) -> T:
        """Once more with a new Java process where the old one is gone; the game is then played anew to this point."""
        try:
            return call()
        except JavaGone:
            self._drop()
        try:
            return call()
        except JavaGone as error:
            self._drop()
            raise EnvError(
                f"ScienceWorld's Java process ended twice at {self._task[0]}/{self._task[1]}: {error}; "
                "is options.memory_mb too small, or the machine out of memory?"
            ) from error

    def end(self) -> None:
        """Let go of the game."""
        game, self._game = self._game, None
        if game is not None:
            with contextlib.suppress(JavaGone):
                game.end()

    def _drop(self) -> None:
        if self._game is not None:
            self._share.replace(self._game.java)
        self._game = None
