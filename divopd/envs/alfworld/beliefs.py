"""What an ALFWorld player may know: the goal text, and what the observations so far have shown. No hidden state."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from divopd.envs.base import EnvError

_NAME = r"([a-z]+ \d+)"
_GOALS = (
    ("clean", r"put a clean (\w+) in (\w+)|clean some (\w+) and put it in (\w+)"),
    ("heat", r"put a hot (\w+) in (\w+)|heat some (\w+) and put it in (\w+)"),
    ("cool", r"put a cool (\w+) in (\w+)|cool some (\w+) and put it in (\w+)"),
    ("two", r"put two (\w+) in (\w+)|find two (\w+) and put them in (\w+)"),
    ("look", r"look at (\w+) under the (\w+)|examine the (\w+) with the (\w+)"),
    ("place", r"put a (\w+) in (\w+)|put some (\w+) on (\w+)"),
)
_GOAL_PATTERNS = tuple((kind, re.compile(pattern)) for kind, pattern in _GOALS)
_TOOLS = {"clean": "sinkbasin", "heat": "microwave", "cool": "fridge"}
_STATES = {"clean": "clean", "heat": "hot", "cool": "cool"}

_ARRIVE = re.compile(rf"You arrive at {_NAME}\.")
_TAKE = re.compile(rf"You pick up the {_NAME} from the {_NAME}\.")
_MOVE = re.compile(rf"You move the {_NAME} to the {_NAME}\.")
_PROCESS = re.compile(rf"You (heat|cool|clean) the {_NAME} using the {_NAME}\.")
_CONTENTS = re.compile(rf"(?:On the {_NAME}, you see|The {_NAME} is open\. In it, you see) ([^.]*)\.")
_CARRYING = re.compile(rf"You are carrying: a {_NAME}\.")
_LOOKED_AT = re.compile(rf"This is a ((?:hot|cool|cold|clean|and|sliced| )+) {_NAME}\.")
_LISTED = re.compile(rf"\ba {_NAME}")


def type_of(name: str) -> str:
    """`drawer` for `drawer 2`."""
    return name.rpartition(" ")[0]


@dataclass(frozen=True, slots=True)
class Wanted:
    """A goal text understood: `kind` is place, two, look, clean, heat or cool; `dest` is the lamp's type for look."""

    kind: str
    obj: str
    dest: str

    @property
    def tool(self) -> str | None:
        """Type of the receptacle that puts the object into the wanted state, if one is needed."""
        return _TOOLS.get(self.kind)

    @property
    def state(self) -> str | None:
        """The wanted state of the object, if any."""
        return _STATES.get(self.kind)


def parse_goal(text: str) -> Wanted:
    """Understand a goal made from the shipped templates. Raises `EnvError` for any other text."""
    goal = text.strip().removeprefix("Your task is to:").strip().rstrip(".")
    for kind, pattern in _GOAL_PATTERNS:
        match = pattern.fullmatch(goal)
        if match is not None:
            obj, dest = (group for group in match.groups() if group is not None)
            return Wanted(kind, obj, dest)
    raise EnvError(f"goal not made from ALFWorld's templates: {text!r}")


@dataclass(slots=True)
class Beliefs:
    """Where things were last seen; `seen` are the receptacles whose inside was shown."""

    receptacles: tuple[str, ...]
    at: str | None = None
    holding: str | None = None
    contents: dict[str, list[str]] = field(default_factory=dict)
    seen: set[str] = field(default_factory=set)
    states: dict[str, set[str]] = field(default_factory=dict)
    origin: dict[str, str] = field(default_factory=dict)

    @classmethod
    def from_listing(cls, observation: str) -> Beliefs:
        """Start from the first observation, the only one that names the room's receptacles."""
        _, found, listing = observation.partition("you see ")
        receptacles = tuple(_LISTED.findall(listing.partition("Your task is to:")[0]))
        if not found or not receptacles:
            raise EnvError(f"no room listing in the first observation: {observation!r}")
        return cls(receptacles)

    def update(self, observation: str) -> None:
        """Take in what one observation says; text that says nothing new changes nothing."""
        if arrived := _ARRIVE.search(observation):
            self.at = arrived.group(1)
        if taken := _TAKE.search(observation):
            self._taken(*taken.groups())
        elif moved := _MOVE.search(observation):
            self._forget(moved.group(1))
            self.contents.setdefault(moved.group(2), []).append(moved.group(1))
            self.holding = None
        elif processed := _PROCESS.search(observation):
            self._set_state(processed.group(2), _STATES[processed.group(1)])
        elif looked := _LOOKED_AT.search(observation):
            for word in looked.group(1).replace("cold", "cool").split():
                if word in _STATES.values():
                    self._set_state(looked.group(2), word)
        elif carrying := _CARRYING.search(observation):
            self._taken(carrying.group(1), None)
        elif observation.startswith("You are not carrying anything"):
            self.holding = None
        if seen := _CONTENTS.search(observation):
            receptacle = seen.group(1) or seen.group(2)
            self.contents[receptacle] = _LISTED.findall(seen.group(3))
            self.seen.add(receptacle)

    def _taken(self, obj: str, receptacle: str | None) -> None:
        self._forget(obj)
        self.holding = obj
        if receptacle is not None:
            self.origin[obj] = receptacle

    def _forget(self, obj: str) -> None:
        """Drop an object from wherever it was believed to lie."""
        for inside in self.contents.values():
            if obj in inside:
                inside.remove(obj)

    def _set_state(self, obj: str, state: str) -> None:
        states = self.states.setdefault(obj, set())
        states.add(state)
        if state in ("hot", "cool"):
            states.discard("cool" if state == "hot" else "hot")

    def from_here(self) -> list[str]:
        """The receptacles in listed order, starting after the place visited last and ending with it."""
        if self.at not in self.receptacles:
            return list(self.receptacles)
        start = self.receptacles.index(self.at) + 1
        return [*self.receptacles[start:], *self.receptacles[:start]]

    def lying(self, kind: str) -> list[tuple[str, str]]:
        """Known (receptacle, object) pairs of an object type: those here first, then in listed order from here."""
        order = self.from_here()
        order = order[-1:] + order[:-1] if self.at is not None else order
        return [(r, o) for r in order for o in self.contents.get(r, ()) if type_of(o) == kind]
