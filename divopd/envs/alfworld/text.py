"""Text from a game's grammar: TextWorld's parsers read it once, these functions expand it at every step.

What TextWorld does at each step (parse templates and conditions again, copy every context deeply) is done once here,
and the result is plain JSON data. Expansion follows `textworld.envs.pddl.textgen` and `textworld.logic.State` in order,
in using each variable once, and in taking the first rule whose condition holds.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import CodeType
from typing import Any

Row = tuple[int, ...]
"""The arguments of a fact, as entity numbers."""
Facts = Mapping[str, Sequence[Row]]
"""Facts by signature (`predicate|type,type`), each list sorted as TextWorld sorts propositions."""
Binding = dict[str, int]
"""Placeholder (`name:type`) to entity number."""


@dataclass(slots=True, frozen=True)
class Entity:
    """What a template's expression sees of a thing; the fields of TextWorld's EntityInfo that alfworld fills."""

    id: str
    type: str
    name: str
    definite: str = "the"
    indefinite: str = "a"

    def __str__(self) -> str:
        return self.name


def signature(predicate: str, types: Sequence[str]) -> str:
    """The key of a predicate with these argument types."""
    return f"{predicate}|{','.join(types)}"


# --- compiling: needs textworld, gives JSON data ---------------------------------------------------------------------


def compile_grammar(grammar: str, types: Sequence[tuple[str, Sequence[str]]]) -> dict[str, Any]:
    """A grammar as JSON data: `rules` (symbol → [condition, symbols] in order), `actions` (name → template, feedback).

    `types` are the domain's types with their supertypes; a condition covers their subtypes, in TextWorld's order.
    """
    from textworld.envs.pddl.logic import GameLogic
    from textworld.envs.pddl.textgen import _parse_and_convert
    from textworld.logic import Type, TypeHierarchy

    hierarchy = TypeHierarchy()
    for name, supertypes in types:
        if name not in hierarchy._types:  # a domain may declare the planner's built-in `object` again; the first counts
            hierarchy.add(Type(name, supertypes))
    logic = GameLogic(domain="", grammar=grammar)

    def symbols(text: str) -> list[Any]:
        return [_symbol(symbol, hierarchy) for symbol in _parse_and_convert(text, rule_name="symbols")]

    rules = {
        str(name): [
            [
                _query(rule.condition, hierarchy) if rule.condition else None,
                [_symbol(symbol, hierarchy) for symbol in rule.rhs],
            ]
            for rule in alternatives
        ]
        for name, alternatives in logic.grammar._rules.items()
    }
    actions = {
        name: {"template": symbols(action.template), "feedback": symbols(action.feedback_rule)}
        for name, action in logic.actions.items()
    }
    return {"rules": rules, "actions": actions, "intro": symbols("#intro#")}


def _symbol(symbol: Any, hierarchy: Any) -> list[Any]:
    """One parsed symbol as data: text, rule, eval, each (one copy an answer of a query), list (an each with commas)."""
    kind = type(symbol).__name__
    if kind == "TerminalSymbol":
        return ["text", str(symbol)]
    if kind == "NonterminalSymbol":
        return ["rule", str(symbol)]
    if kind == "EvalSymbol":
        return ["eval", symbol.expression]
    if kind == "ConditionalSymbol":
        query = _query(symbol.given, hierarchy) if symbol.given else None
        return ["each", _symbol(symbol.expression, hierarchy), query]
    if kind == "ListSymbol":
        return ["list", _symbol(symbol.symbol, hierarchy)]
    raise ValueError(f"unknown grammar symbol {kind}")


def _query(expression: str, hierarchy: Any) -> list[Any]:
    """A conjunctive query as data: for each predicate, its placeholders and the signatures to look up, in order."""
    from textworld.logic import Rule

    query = []
    for predicate in Rule.parse_conjunctive_query(expression).preconditions:
        combinations = hierarchy.multi_subtypes([hierarchy.get(name) for name in predicate.signature.types])
        signatures = [signature(predicate.name, [part.name for part in parts]) for parts in combinations]
        query.append([[f"{ph.name}:{ph.type}" for ph in predicate.parameters], signatures])
    return query


def queried(symbols: Sequence[Any], rules: Mapping[str, Any]) -> set[str]:
    """The predicates that the expansion of these symbols can ask about."""
    found: set[str] = set()
    seen: set[str] = set()
    todo = list(symbols)
    while todo:
        kind, *rest = todo.pop()
        queries = []
        if kind == "rule" and rest[0] not in seen:
            seen.add(rest[0])
            for condition, body in rules[rest[0]]:
                queries.append(condition)
                todo += body
        elif kind == "each":
            todo.append(rest[0])
            queries.append(rest[1])
        elif kind == "list":
            todo.append(rest[0])
        found |= {name.split("|")[0] for query in queries if query for _, names in query for name in names}
    return found


# --- expanding: at every step ----------------------------------------------------------------------------------------


def answers(query: Sequence[Any], facts: Facts, binding: Binding) -> Iterator[Binding]:
    """Every way to bind the query's placeholders so that all its predicates are facts, in TextWorld's order.

    No two placeholders get the same entity, except where they are bound beforehand.
    """
    return _answers(query, 0, facts, binding, frozenset(binding.values()))


def _answers(
    query: Sequence[Any], depth: int, facts: Facts, binding: Binding, used: frozenset[int]
) -> Iterator[Binding]:
    if depth == len(query):
        yield binding
        return
    placeholders, signatures = query[depth]
    wanted = tuple([binding.get(placeholder, -1) for placeholder in placeholders])
    for name in signatures:
        rows = facts.get(name)
        if rows is None:
            continue
        if -1 not in wanted:
            if wanted in rows:
                yield from _answers(query, depth + 1, facts, binding, used)
            continue
        for row in rows:
            new = _bound(placeholders, wanted, row, used)
            if new is not None:
                yield from _answers(query, depth + 1, facts, {**binding, **new}, used.union(new.values()))


def _bound(placeholders: Sequence[str], wanted: Row, row: Row, used: frozenset[int]) -> Binding | None:
    """What matching a fact binds anew, or None where it does not match; -1 is wanted where anything may stand."""
    new: Binding = {}
    for placeholder, want, entity in zip(placeholders, wanted, row, strict=True):
        if want != -1:
            if want != entity:
                return None
        elif placeholder in new:
            if new[placeholder] != entity:
                return None
        elif entity in used or entity in new.values():
            return None
        else:
            new[placeholder] = entity
    return new


@functools.lru_cache(maxsize=1024)
def _code(expression: str) -> CodeType:
    return compile(expression.strip(), "<grammar>", "eval")


class Writer:
    """Expands one game's grammar over the facts of the moment."""

    def __init__(self, rules: Mapping[str, Any], entities: Sequence[Entity]) -> None:
        """`rules` as `compile_grammar` gives them; `entities` by number."""
        self.rules = rules
        self.entities = entities

    def write(self, symbols: Sequence[Any], facts: Facts, binding: Binding) -> str:
        """The text of these symbols. Raises `LookupError` for an unknown symbol or where no rule's condition holds."""
        return "".join(self._expand(symbol, facts, binding) for symbol in symbols)

    def _expand(self, symbol: Sequence[Any], facts: Facts, binding: Binding) -> str:
        kind = symbol[0]
        if kind == "text":
            return str(symbol[1])
        if kind == "rule":
            return self.write(self._chosen(symbol[1], facts, binding), facts, binding)
        if kind == "eval":
            scope = {name.split(":")[0]: self.entities[number] for name, number in binding.items()}
            return str(eval(_code(symbol[1]), {"__builtins__": {}}, scope))
        if kind == "each":
            return "".join(self._parts(symbol, facts, binding))
        return self._joined(self._parts(symbol[1], facts, binding), facts, binding)

    def _chosen(self, name: str, facts: Facts, binding: Binding) -> Sequence[Any]:
        """The symbols of the first rule of this name whose condition holds."""
        for condition, symbols in self.rules[name]:
            if condition is None or next(answers(condition, facts, binding), None) is not None:
                return symbols
        raise LookupError(f"no rule of {name!r} applies")

    def _parts(self, symbol: Sequence[Any], facts: Facts, binding: Binding) -> list[str]:
        """The inner symbol's text, once for each answer of the query."""
        inner, query = symbol[1], symbol[2]
        bindings = [binding] if query is None else answers(query, facts, binding)
        return [self._expand(inner, facts, each) for each in bindings]

    def _joined(self, parts: list[str], facts: Facts, binding: Binding) -> str:
        """Parts with the grammar's own separators: a, b, and c."""
        if not parts:
            return self._expand(["rule", "list_empty"], facts, binding)
        if len(parts) == 1:
            return parts[0]
        comma = self._expand(["rule", "list_separator"], facts, binding)
        last = self._expand(["rule", "list_last_separator"], facts, binding)
        return comma.join(parts[:-1]) + last + parts[-1]
