"""A game's PDDL as plain data, by way of the planner's own translator (PDDL to SAS) and alfworld's own names.

The result is JSON data that depends on the game alone, so that it can be kept on disk. In SAS every variable is one
fact that is true (value 0) or false (value 1); fact number = 2 · variable + value. Long lists of numbers are packed as
text, because JSON takes ten times as long to read them.
"""

from __future__ import annotations

import base64
import gc
import sys
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate
from typing import Any

from divopd.envs.alfworld.games import GameError
from divopd.envs.alfworld.text import signature
from divopd.envs.base import EnvError


@contextmanager
def paused_collector() -> Iterator[None]:
    """No garbage collection meanwhile: a translation makes a million objects and frees them all at its end (−30 %)."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@contextmanager
def kept_process_state() -> Iterator[None]:
    """Restore sys.argv and sys.stdout, which the translator overwrites and swaps."""
    argv, stdout = sys.argv, sys.stdout
    try:
        yield
    finally:
        sys.argv, sys.stdout = argv, stdout


class _Entities:
    """Numbers for (name, type) pairs, in sorted order, so that sorted numbers are sorted names."""

    def __init__(self, pairs: set[tuple[str, str]]) -> None:
        self.pairs = sorted(pairs)
        self._number = {pair: number for number, pair in enumerate(self.pairs)}

    def numbers(self, names: Sequence[str], types: Sequence[str]) -> list[int]:
        return [self._number[pair] for pair in zip(names, types, strict=True)]


def _atom(text: str) -> tuple[str, list[str]]:
    """`Atom holds(a, b)` → ("holds", ["a", "b"])."""
    predicate, arguments = text.split(" ", 1)[1].split("(", 1)
    return predicate, [name for name in arguments[:-1].split(", ") if name]


class _Sas:
    """The parts of a SAS text that playing needs, read line by line."""

    def __init__(self, text: str) -> None:
        self._lines = iter(text.split("\n"))
        self.atoms: list[str] = []
        self.operators: list[tuple[str, list[int], list[list[int]]]] = []
        self._variables()
        self.initial = [2 * number + int(self._next()) for number in range(len(self.atoms))]
        self._skip_to("begin_goal")
        self.goal = self._conditions()
        self._skip_to("end_goal")
        self._operators()
        self.rules = self._rules()
        self._check_same_effects()

    def _next(self) -> str:
        return next(self._lines)

    def _skip_to(self, line: str) -> None:
        while self._next() != line:
            pass

    def _conditions(self) -> list[int]:
        """A counted block of `variable value` lines, as fact numbers."""
        pairs = (self._next().split() for _ in range(int(self._next())))
        return [2 * int(variable) + int(value) for variable, value in pairs]

    def _variables(self) -> None:
        self._skip_to("end_metric")
        self.layers: list[int] = []
        for _ in range(int(self._next())):
            self._skip_to("begin_variable")
            self._next()
            self.layers.append(int(self._next()))
            if self._next() != "2":
                raise ValueError("a variable is not a single fact")
            positive, negative = self._next(), self._next()
            if not positive.startswith("Atom ") or negative != "Negated" + positive:
                raise ValueError(f"unexpected values {positive!r}, {negative!r}")
            self.atoms.append(positive)
        self._skip_to("begin_state")

    def _operators(self) -> None:
        """Per operator: name, preconditions, and effects as [fact, condition, condition, ...]."""
        for _ in range(int(self._next())):
            self._skip_to("begin_operator")
            name = self._next()
            before = self._conditions()
            effects = []
            for _ in range(int(self._next())):
                numbers = [int(number) for number in self._next().split()]
                split = 1 + 2 * numbers[0]
                conditions = [
                    2 * var + value for var, value in zip(numbers[1:split:2], numbers[2:split:2], strict=True)
                ]
                variable, old, new = numbers[split:]
                if old >= 0:
                    before.append(2 * variable + old)
                effects.append([2 * variable + new, *conditions])
            self._skip_to("end_operator")
            self.operators.append((name, before, effects))

    def _rules(self) -> list[list[list[int]]]:
        """Axioms by layer, lowest first, each as [fact made, fact it replaces, condition, ...]."""
        layers: dict[int, list[list[int]]] = {}
        for _ in range(int(self._next())):
            self._skip_to("begin_rule")
            conditions = self._conditions()
            variable, old, new = (int(number) for number in self._next().split())
            layers.setdefault(self.layers[variable], []).append([2 * variable + new, 2 * variable + old, *conditions])
        return [layers[layer] for layer in sorted(layers)]

    def _check_same_effects(self) -> None:
        """Operators of one name are ways to meet one action's `or`; which of them acts must not matter."""
        effects: dict[str, list[list[int]]] = {}
        for name, _, made in self.operators:
            if effects.setdefault(name, made) != made:
                raise ValueError(f"operators named {name!r} differ in their effects")


def translate(game: Any) -> dict[str, Any]:
    """A game as JSON data for `engine.World`. Raises `EnvError` without the planner, `GameError` for no game."""
    try:
        import fast_downward
    except (ImportError, OSError) as error:
        raise EnvError(f"the planner is missing ({error}): pip install fast-downward-textworld==20.6.4") from error
    try:
        with kept_process_state(), paused_collector():
            task, text = fast_downward.pddl2sas(game["pddl_domain"], game["pddl_problem"])
            return _compiled(task, _Sas(text))
    # The translator leaves by SystemExit or an assertion where it cannot read a problem.
    except (Exception, SystemExit) as error:
        raise GameError(f"its PDDL cannot be translated: {error!r}") from error


def _compiled(task: Any, sas: _Sas) -> dict[str, Any]:
    type_of = {thing.name: thing.type_name for thing in task.objects}
    atoms = [_atom(text) for text in sas.atoms]
    true = [atom for atom, fact in zip(atoms, sas.initial, strict=True) if fact % 2 == 0]
    shown = {(atom.predicate, tuple(atom.args)) for atom in task.init if _shown(atom)}
    shown |= {(predicate, tuple(args)) for predicate, args in true}
    keys = {action.name: [(p.name.strip("?"), p.type_name) for p in action.parameters] for action in task.actions}
    calls = [name.split() for name, _, _ in sas.operators]
    # The translator appends the variables of `exists` to an action's parameters, but not to an operator's arguments.
    keys = {head: keys[head][: len(args)] for head, *args in calls}
    schemas, predicates = sorted(keys), sorted({predicate for predicate, _ in atoms})

    pairs = {(name, type_of[name]) for _, args in [*shown, *atoms] for name in args}
    pairs |= {(name, kind) for head, *args in calls for name, (_, kind) in zip(args, keys[head], strict=True)}
    entities = _Entities(pairs)

    def row(names: Sequence[str]) -> list[int]:
        return entities.numbers(names, [type_of[name] for name in names])

    facts: dict[str, list[list[int]]] = {}
    for predicate, args in sorted(shown):
        facts.setdefault(signature(predicate, [type_of[name] for name in args]), []).append(row(args))
    return {
        "types": [[kind.name, list(kind.supertype_names)] for kind in task.types],
        "entities": entities.pairs,
        "names": _names({name for _, args in shown for name in args}),
        "facts": facts,
        "predicates": predicates,
        "atoms": _packed_lists([[predicates.index(predicate), *row(args)] for predicate, args in atoms]),
        "initial": packed(sas.initial),
        "goal": sas.goal,
        "rules": sas.rules,
        "schemas": [[head, [f"{name}:{kind}" for name, kind in keys[head]]] for head in schemas],
        "calls": _packed_lists(
            [[schemas.index(head), *entities.numbers(args, [kind for _, kind in keys[head]])] for head, *args in calls]
        ),
        **_needs([set(before) for _, before, _ in sas.operators], sas.initial),
        "effects": _packed_lists(
            [
                [number for fact, *conditions in effects for number in (fact, len(conditions), *conditions)]
                for _, _, effects in sas.operators
            ]
        ),
    }


def _shown(atom: Any) -> bool:
    """Whether TextWorld shows an initial fact; costs and equality are not facts to it."""
    return type(atom).__name__ == "Atom" and atom.predicate != "="


def packed(numbers: Sequence[int]) -> str:
    """Numbers as text: base64 of little-endian 32-bit integers; `numpy.frombuffer(b64decode(text), "<i4")` reads it."""
    content = array("i", numbers)
    if sys.byteorder == "big":
        content.byteswap()
    return base64.b64encode(content.tobytes()).decode()


def _packed_lists(lists: Sequence[Sequence[int]]) -> list[str]:
    """Lists of numbers as [start, numbers], both packed: list i is `numbers[start[i]:start[i + 1]]`."""
    start = [0, *accumulate(len(numbers) for numbers in lists)]
    return [packed(start), packed([number for numbers in lists for number in numbers])]


def _needs(before: Sequence[set[int]], initial: Sequence[int]) -> dict[str, Any]:
    """For each fact the operators that need it, and for each operator how many of its needs are unmet at the start."""
    watchers: list[list[int]] = [[] for _ in range(2 * len(initial))]
    for operator, conditions in enumerate(before):
        for fact in conditions:
            watchers[fact].append(operator)
    true = set(initial)
    return {"watchers": _packed_lists(watchers), "unmet": packed([len(conditions - true) for conditions in before])}


def _names(ids: set[str]) -> dict[str, str]:
    """What the player calls each thing: `bed_bar__plus_...` → `bed 2`, by alfworld's own rule."""
    from alfworld.agents.utils.misc import Demangler
    from textworld.generator.game import EntityInfo

    names = Demangler(game_infos={name: EntityInfo(name, "") for name in ids}, shuffle=False)
    return {name: names.demangle_alfred_name(name) for name in sorted(ids)}
