"""The fast engine: plays a translated game with TextWorld's behaviour, command for command and text for text.

Translation and parsing are the planner's and TextWorld's own (`translate`, `text`), done once a game and once a
grammar. What is ours is the execution: which operators apply is known by counting each one's unmet preconditions.
Nothing is drawn at random and no set is iterated, so a game plays the same in every process. Where two operators share
one command the translation's first counts; alfworld numbers names so that no official game has such a pair.
"""

from __future__ import annotations

from base64 import b64decode
from bisect import insort
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from divopd.envs.alfworld.text import Binding, Entity, Row, Writer, queried, signature

NOTHING = "Nothing happens."


def _unpacked(text: str) -> NDArray[np.int32]:
    return np.frombuffer(b64decode(text), dtype="<i4")


class _Lists:
    """Lists of numbers in two flat arrays (a game has thousands; Python lists would take ten times the memory)."""

    def __init__(self, packed: Sequence[str]) -> None:
        start, self._numbers = map(_unpacked, packed)
        self._start: list[int] = start.tolist()

    def __getitem__(self, index: int) -> NDArray[np.int32]:
        return self._numbers[self._start[index] : self._start[index + 1]]


class World:
    """What never changes while a game is played, shared by all its episodes."""

    def __init__(self, data: dict[str, Any], grammar: dict[str, Any]) -> None:
        """`data` from `translate.translate`, `grammar` from `text.compile_grammar`."""
        names = data["names"]
        self.entities = [Entity(name, kind, names.get(name, name)) for name, kind in data["entities"]]
        self.facts: dict[str, list[Row]] = {name: sorted(map(tuple, rows)) for name, rows in data["facts"].items()}
        self.grammar = grammar
        self.writer = Writer(grammar["rules"], self.entities)
        self.initial: list[int] = _unpacked(data["initial"]).tolist()
        self.unmet = _unpacked(data["unmet"])
        self.watchers = _Lists(data["watchers"])
        self.goal: list[int] = data["goal"]
        self.layers: list[list[list[int]]] = data["rules"]
        self._predicates: list[str] = data["predicates"]
        self._atoms = _Lists(data["atoms"])
        self._schemas: list[tuple[str, list[str]]] = [(name, keys) for name, keys in data["schemas"]]
        self._calls = _Lists(data["calls"])
        self._effects = _Lists(data["effects"])
        self._fixed = self._fixed_templates()
        self._commands: dict[int, str] = {}
        self._shown: dict[int, tuple[str, str, Row]] = {}

    def _fixed_templates(self) -> set[str]:
        """Actions whose command never changes in a game: no fact it asks about is ever an effect."""
        changing = set(self._predicates)
        changing |= {"not_" + name for name in changing}
        actions, rules = self.grammar["actions"], self.grammar["rules"]
        return {name for name, _ in self._schemas if not queried(actions[name]["template"], rules) & changing}

    def call(self, operator: int) -> tuple[str, Binding]:
        """An operator's action name and what its placeholders are bound to."""
        head, *arguments = self._calls[operator].tolist()
        name, keys = self._schemas[head]
        return name, dict(zip(keys, arguments, strict=True))

    def command(self, operator: int, facts: dict[str, list[Row]]) -> str:
        """What the player types for an operator."""
        known = self._commands.get(operator)
        if known is not None:
            return known
        name, binding = self.call(operator)
        command = self.writer.write(self.grammar["actions"][name]["template"], facts, binding)
        if name in self._fixed:
            self._commands[operator] = command
        return command

    def effects(self, operator: int) -> list[tuple[int, list[int]]]:
        """An operator's effects in the planner's order: the fact made, and the facts it depends on."""
        numbers = self._effects[operator].tolist()
        effects, at = [], 0
        while at < len(numbers):
            end = at + 2 + numbers[at + 1]
            effects.append((numbers[at], numbers[at + 2 : end]))
            at = end
        return effects

    def shown(self, fact: int) -> tuple[str, str, Row]:
        """How TextWorld records a fact: its signature, the signature of its opposite, and its arguments."""
        known = self._shown.get(fact)
        if known is None:
            number, *row = self._atoms[fact // 2].tolist()
            types = [self.entities[entity].type for entity in row]
            true, false = (signature(prefix + self._predicates[number], types) for prefix in ("", "not_"))
            known = (true, false, tuple(row)) if fact % 2 == 0 else (false, true, tuple(row))
            self._shown[fact] = known
        return known


class Episode:
    """One run through a world: its facts, its values, and the commands it accepts now."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.facts = dict(world.facts)
        self._holds = bytearray(2 * len(world.initial))
        for fact in world.initial:
            self._holds[fact] = 1
        self._unmet = world.unmet.copy()
        self._derive()
        self._operators: dict[str, int] = {}
        self.commands: tuple[str, ...] = ()
        self._list_commands()

    @property
    def won(self) -> bool:
        """Whether the goal holds."""
        return all(self._holds[fact] for fact in self.world.goal)

    def intro(self) -> str:
        """The game's first text."""
        return self.world.writer.write(self.world.grammar["intro"], self.facts, {})

    def act(self, command: str) -> str:
        """Apply one command and give its text; a command that is not listed does nothing."""
        operator = self._operators.get(command.strip())
        if operator is None:
            return NOTHING
        self._apply(operator)
        name, binding = self.world.call(operator)
        feedback = self.world.writer.write(self.world.grammar["actions"][name]["feedback"], self.facts, binding)
        self._list_commands()
        return feedback

    def _apply(self, operator: int) -> None:
        effects = self.world.effects(operator)
        happening = [fact for fact, conditions in effects if all(self._holds[other] for other in conditions)]
        for fact in happening:
            self._set(fact)
        self._derive()
        # TextWorld records every effect, whether its condition held or not; so do we.
        for fact, _ in effects:
            self._record(*self.world.shown(fact))

    def _set(self, fact: int) -> None:
        """Make a fact true and its opposite false."""
        if not self._holds[fact]:
            self._holds[fact], self._holds[fact ^ 1] = 1, 0
            self._unmet[self.world.watchers[fact]] -= 1
            self._unmet[self.world.watchers[fact ^ 1]] += 1

    def _derive(self) -> None:
        """Work out the derived facts anew: back to their defaults, then the rules, layer by layer, to a fixpoint."""
        for rules in self.world.layers:
            for _, default, *_ in rules:
                self._set(default)
            changed = True
            while changed:
                changed = False
                for made, default, *conditions in rules:
                    if self._holds[default] and all(self._holds[fact] for fact in conditions):
                        self._set(made)
                        changed = True

    def _record(self, name: str, opposite: str, row: Row) -> None:
        """Add a fact to what the grammar sees, and take away its opposite; lists are replaced, never changed."""
        rows = self.facts.get(opposite)
        if rows and row in rows:
            self.facts[opposite] = [other for other in rows if other != row]
        rows = self.facts.get(name, [])
        if row not in rows:
            rows = rows.copy()
            insort(rows, row)
            self.facts[name] = rows

    def _list_commands(self) -> None:
        operators: dict[str, int] = {}
        for operator in np.flatnonzero(self._unmet == 0).tolist():
            operators.setdefault(self.world.command(operator, self.facts), operator)
        self._operators = operators
        self.commands = tuple(sorted(operators))
