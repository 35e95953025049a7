"""The short tasks' rules on drawn worlds, for cloning: no Java, microseconds a step, as many tasks as one wants.

A sketch shows what the compact style reads of the game, room by room, and answers the commands of that style as the
game does; `tests/envs/test_scienceworld_sketch.py` plays recorded games on both. It leaves out growth, cooling and
furniture.
Models are cloned here (`env.source: sketch`), and trained and measured on the game.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import numpy as np

from divopd.envs.base import EnvError, Observation, Step
from divopd.envs.scienceworld.expert_beliefs import HELD, Wanted, parse_goal
from divopd.envs.scienceworld.knowledge import (
    ANIMALS,
    BOXES,
    BY_LIFE_SPAN,
    KITCHEN,
    PLANTS,
    ROOMS,
    STAGES,
    SUBSTANCES,
    THERMOMETER,
    suits,
    things_in,
)
from divopd.seeds import rng

_REFUSED = "No known action matches that input."
_PICTURES = ("painting", "drawing", "finger painting", "picture")
_BOX_ROOMS = {  # of find tasks, of measuring tasks
    "find": ("kitchen", "kitchen", "bedroom", "living room", "bathroom", "workshop"),
    "measure": ("living room", "bedroom", "bathroom"),
}
_BOUNDS = (-50, 0, 50, 100, 200)
_KITCHEN_THINGS = ["bowl", "sodium chloride", "lighter", "painting", "soap", "stopwatch", THERMOMETER]
_COMMAND = re.compile(r"(teleport to|focus on|pick up|move|use thermometer on) (.+?)(?: to (.+))?")


@dataclass(slots=True)
class World:
    """A variation: its goal, where it starts, the things in sight of every room in the order of the listings."""

    goal: str
    start: str
    rooms: dict[str, list[str]]
    degrees: int = 20  # of what is measured

    @property
    def wanted(self) -> Wanted:
        return parse_goal(self.goal)


def draw_world(draws: np.random.Generator) -> World:
    """A world as the game's variations have them, of any of the eight task types. The same draws, the same world."""
    rooms = _furnish(draws)
    start = str(draws.choice(ROOMS))
    kind = str(draws.choice(["find", "find", "life", "measure"]))
    if kind == "life":
        animals = [str(draws.choice(BY_LIFE_SPAN[i : i + 5])) for i in (0, 5, 10)]
        _add(rooms["outside"], animals)
        ends = [["longest"], ["shortest"], ["longest", "shortest"]][draws.integers(3)]
        return World(f"find the animal with the {' life span, then the '.join(ends)} life span.", start, rooms)
    if kind == "find":
        _add(rooms["outside"], _pick([animal for animal in ANIMALS if animal not in STAGES], 3, draws))
        plants = _pick(PLANTS, 3, draws)
        rooms["greenhouse"] = [*plants, *rooms["greenhouse"]]
        box, room = str(draws.choice(BOXES)), str(draws.choice(_BOX_ROOMS["find"]))
        _add(rooms[room], [box])
        what = draws.choice(["animal", "plant", "living thing", "non-living thing"])
        goal = f"find a(n) {what}. First, focus on the thing. Then, move it to the {box} in the {room}."
        return World(goal, start, rooms)
    above, below = _pick(BOXES, 2, draws)
    room, box_room = (str(draws.choice(_BOX_ROOMS["measure"])) for _ in range(2))
    thing = str(draws.choice([SUBSTANCES[0], SUBSTANCES[0], *SUBSTANCES]))
    _add(rooms[room], [thing])
    _add(rooms[box_room], [above, below])
    bound = int(draws.choice(_BOUNDS))
    goal = (
        f"measure the temperature of {thing}, which is located around the {room}. First, focus on it. If it is above"
        f" {bound}.0 degrees celsius, place it in the {above}. If not, place it in the {below}."
        f" The boxes are located around the {box_room}."
    )
    return World(goal, start, rooms, bound + int(draws.choice([-1, 1]) * draws.integers(1, 120)))


def _pick(names: tuple[str, ...] | list[str], count: int, draws: np.random.Generator) -> list[str]:
    return [names[i] for i in draws.permutation(len(names))[:count]]


_LISTED_AS = {"frog egg": "common toad", "butterfly egg": "butterfly", "bowl": "a", "sodium chloride": "glass"}


def _add(things: list[str], new: list[str]) -> None:
    """The game lists things by name, not always by the name it prints."""
    things += new
    things.sort(key=lambda name: _LISTED_AS.get(name, name))


def _furnish(draws: np.random.Generator) -> dict[str, list[str]]:
    rooms: dict[str, list[str]] = {room: [] for room in ROOMS}
    for room in ("hallway", "bedroom", "living room", "bathroom"):
        rooms[room] = [str(draws.choice(_PICTURES, p=[0.5, 0.25, 0.2, 0.05]))]
    rooms[KITCHEN] = list(_KITCHEN_THINGS)
    rooms["art studio"] = [["jug"], ["bowl"], []][draws.integers(3)]
    shovel = draws.integers(2)
    rooms["greenhouse"] = ["jug", *(["shovel"] if shovel else [])]
    rooms["outside"] = ["axe", *([] if shovel else ["shovel"]), "wood"]
    return rooms


@dataclass(slots=True)
class _State:
    world: World
    wanted: Wanted
    room: str
    at: list[tuple[str, str]]  # (thing, room or box or HELD): a name may be there more than once
    focused: list[str] = field(default_factory=list)
    asked: str = ""


def require_sketch(task: str) -> None:
    """Raise `EnvError` for an id that names no sketch."""
    if not re.fullmatch(r".+/\d+", task):
        raise EnvError(f"a sketched task is named like clone/17, not {task!r}")


class SketchEnv:
    """Short tasks by rule; a task is any name ending in "/number", from which its world is drawn."""

    name = "scienceworld"

    def reset(self, task: str) -> Observation:
        require_sketch(task)
        return self.play(draw_world(rng("scienceworld sketch", task)))

    def play(self, world: World) -> Observation:
        """Start an episode on a given world."""
        lying = [(thing, room) for room, things in world.rooms.items() for thing in things]
        self._now = _State(world, world.wanted, world.start, lying)
        self._last = ""
        return Observation(self._look(), world.goal, ())

    def step(self, action: str) -> Step:
        if not hasattr(self, "_now"):
            raise EnvError("no sketched episode is running: call reset first")
        text = self._answer(action)
        won, lost = self._judge()
        valid = not text.startswith(_REFUSED[:8])
        repeated, self._last = action == self._last, action
        return Step(text, float(won), won or lost, won, valid, valid and not repeated, (), 1.0 if won else -lost * 1.0)

    def close(self) -> None:
        """Nothing is held."""

    def _answer(self, action: str) -> str:
        now = self._now
        if now.asked and action == "0":
            action = now.asked
            return self._do(*self._parse(action), sure=True)
        if now.asked and action not in ("look around", "inventory"):
            now.asked = ""
            return _REFUSED
        now.asked = ""
        if action == "look around":
            return self._look()
        if action == "inventory":
            held = [thing for thing, place in now.at if place == HELD]
            return "In your inventory, you see:" + "".join(f"\n\ta {thing}" for thing in held)
        if action == "wait1":
            return "You decide to wait for 1 iterations."
        return self._do(*self._parse(action))

    @staticmethod
    def _parse(action: str) -> tuple[str, str, str]:
        found = _COMMAND.fullmatch(action)
        return (found.group(1), found.group(2), found.group(3) or "") if found else ("", "", "")

    def _near(self, thing: str) -> list[int]:
        """Where in the list the things of this name are that can be reached."""
        now = self._now
        boxes = {box for box, place in now.at if box in BOXES and place in (now.room, HELD)}
        return [i for i, (name, place) in enumerate(now.at) if name == thing and place in {now.room, HELD, *boxes}]

    def _do(self, verb: str, thing: str, target: str, sure: bool = False) -> str:
        now, found = self._now, self._near(thing)
        now.asked = ""
        if verb == "teleport to" and thing in ROOMS:
            now.room = thing
            return f"You teleport to the {thing}."
        if not verb or not found or (verb == "move" and (target not in BOXES or not self._near(target))):
            return _REFUSED
        if len(found) > 1 and not sure:
            now.asked = f"{verb} {thing} to {target}" if target else f"{verb} {thing}"
            return f"Ambiguous request: Please enter the number for the action you intended: {now.asked}"
        if verb == "focus on":
            now.focused.append(thing)
            return f"You focus on the {thing}."
        if verb == "use thermometer on":
            if not self._near(THERMOMETER):
                return _REFUSED
            degrees = now.world.degrees if thing == now.wanted.what else 20
            return f"the thermometer measures a temperature of {degrees} degrees celsius"
        place = target if verb == "move" else HELD
        now.at[found[0]] = (thing, place)
        return f"You move the {thing} to the {place}."

    def _look(self) -> str:
        now = self._now
        lines = []
        for thing, place in now.at:
            if place == now.room:
                inside = [f"a {name}" for name, box in now.at if box == thing] or ["nothing"]
                lines.append(f"\ta {thing} (containing {', '.join(inside)})" if thing in BOXES else f"\ta {thing}")
        return f"This room is called the {now.room}. In it, you see: \n" + "\n".join(lines) + "\nYou also see:"

    def _judge(self) -> tuple[bool, bool]:
        """(won, lost), as the game's score of 100 and of -100."""
        now, wanted, focused = self._now, self._now.wanted, self._now.focused
        if wanted.kind == "life":
            animals = [animal for animal in BY_LIFE_SPAN if any(animal == name for name, _ in now.at)]
            right = [animals[0 if end == "longest" else -1] for end in wanted.ends]
            return focused == right, focused != right[: len(focused)]
        if wanted.kind == "find":
            won = any((thing, wanted.box) in now.at for thing in focused[:1])
            return won, any(not _right_kind(thing, wanted.what) for thing in focused[:1])
        order = [THERMOMETER, wanted.what]
        hot = now.world.degrees > wanted.bound
        inside = [box for box in BOXES if (wanted.what, box) in now.at]
        if focused[:2] == order and inside:
            won = inside[0] == (wanted.box if hot else wanted.other_box)
            return won, not won
        return False, focused[:2] != order[: len(focused)]


def _right_kind(thing: str, kind: str) -> bool:
    """The game takes everything without life for a non-living thing, boxes included."""
    return not (thing in ANIMALS or thing in PLANTS) if kind == "non-living thing" else suits(thing, kind)


def world_of(goal: str, first: str, looks: dict[str, str], degrees: int = 20) -> World:
    """The sketch of a real variation, from a look around each of its rooms."""
    start = re.match(r"This (?:room|outside location) is called the ([a-z ]+)\.", first)
    if start is None:
        raise EnvError(f"an episode starts with a look around a room, not with {first!r}")
    seen = {room: things_in(text.split("You also see:")[0]) for room, text in looks.items()}
    return World(goal, start.group(1), seen, degrees)
