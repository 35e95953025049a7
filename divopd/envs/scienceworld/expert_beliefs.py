"""What a ScienceWorld player may know: the goal text, and what the observations so far have shown. No hidden state."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from divopd.envs.base import EnvError
from divopd.envs.scienceworld.knowledge import BOXES, KITCHEN, ROOMS, THERMOMETER, things_in

HELD = "inventory"
_FIND = re.compile(r"find a\(n\) (.+?)\. .*move it to the (.+? box) in the (.+?)\.")
_MEASURE = re.compile(
    r"temperature of (.+?), which is located around the (.+?)\. .*above (.+?) degrees celsius, place it in the"
    r" (.+? box).*in the (.+? box)\. The boxes are located around the (.+?)\."
)
ROOM = re.compile(r"This (?:room|outside location) is called the ([a-z ]+)\.")
_ARRIVE = re.compile(r"You (?:teleport|move) to the ([a-z ]+)\.")
_MOVE = re.compile(r"You move the (.+) to the ([a-z ]+)\.")
_FOCUS = re.compile(r"You focus on the (.+)\.")
READS = re.compile(r"measures a temperature of (-?\d+) degrees")
_INSIDE = re.compile(r"([a-z]+ box) \(containing ([^()]*)")


@dataclass(frozen=True, slots=True)
class Wanted:
    """A goal text understood.

    `kind` is find (a thing that suits `what`, into `box` in `box_room`), measure (the thing `what` from `room`, then
    into `box` if it is above `bound` degrees, else into `other_box`), or life (focus on the animals of `ends`).
    """

    kind: str
    what: str = ""
    room: str = ""
    bound: float = 0.0
    box: str = ""
    other_box: str = ""
    box_room: str = ""
    ends: tuple[str, ...] = ()


def parse_goal(text: str) -> Wanted:
    """Understand a short task's goal. Raises `EnvError` for any other text."""
    if found := _FIND.search(text):
        what, box, room = found.groups()
        return Wanted("find", what=what, box=box, box_room=room)
    if found := _MEASURE.search(text):
        what, room, bound, above, below, box_room = found.groups()
        return Wanted("measure", what, room, float(bound), above, below, box_room)
    if "life span" in text:
        return Wanted("life", ends=tuple(end for end in ("longest", "shortest") if end in text))
    raise EnvError(f"the expert knows the short tasks (find, life span, thermometer), not this goal: {text!r}")


@dataclass(slots=True)
class Beliefs:
    """Where things are, as far as was seen: `at` maps things to a room, a box, or HELD; `seen` rooms to things."""

    box_room: str = ""
    boxes: tuple[str, ...] = ()  # those of the goal, in `box_room`
    room: str = ""
    at: dict[str, str] = field(default_factory=dict)
    seen: dict[str, list[str]] = field(default_factory=dict)
    focused: list[str] = field(default_factory=list)
    reads: int | None = None
    refused: list[str] = field(default_factory=list)  # things that a command named in vain
    counted: bool = False  # the inventory was looked at since something was found missing
    asked: bool = False  # the game waits for the number of one of several things

    @classmethod
    def start(cls, wanted: Wanted, observation: str) -> Beliefs:
        """What goal and first observation tell. Raises `EnvError` if the observation shows no room."""
        beliefs = cls(wanted.box_room, tuple(box for box in (wanted.box, wanted.other_box) if box))
        if wanted.kind == "measure":
            beliefs.at |= {THERMOMETER: KITCHEN, wanted.what: wanted.room}
        if not ROOM.match(observation):
            raise EnvError(f"an episode starts with a look around a room, not with {observation!r}")
        beliefs.update("look around", observation)
        return beliefs

    def update(self, action: str, text: str) -> None:
        """Take in an executed action and what the game answered."""
        self.asked = text.startswith("Ambiguous")
        if found := ROOM.match(text):
            self._look(found.group(1), text.split("You also see:")[0])
        elif text.startswith("In your inventory"):
            self._hold(things_in(text))
        elif found := READS.search(text):
            self.reads = int(found.group(1))
        elif found := _FOCUS.match(text):
            self.focused += _meant(action, found.group(1))
        elif (found := _ARRIVE.match(text)) and found.group(1) in ROOMS:
            self.room = found.group(1)
        elif found := _MOVE.match(text):
            self.at |= dict.fromkeys(_meant(action, found.group(1)), found.group(2))
        elif text.startswith(("No known action", "Unknown action")):
            self._mistaken(action)

    def here(self) -> list[str]:
        """The things last seen in this room, in the order of the listing."""
        return self.seen.get(self.room, [])

    def place(self, thing: str) -> str:
        """The room in which a thing can be taken, HELD, or "" where nobody knows."""
        place = self.at.get(thing, "")
        return self.box_room if place in BOXES else place

    def _look(self, room: str, text: str) -> None:
        self.room, things = room, things_in(text)
        gone = [thing for thing, place in self.at.items() if place == room and thing not in things]
        for thing in gone:
            del self.at[thing]
        self.seen[room] = things
        held = {thing for thing, place in self.at.items() if place == HELD}
        self.at |= {thing: room for thing in things if thing not in held}
        for box, inside in _INSIDE.findall(text):
            self.at |= dict.fromkeys(things_in(inside), box)

    def _hold(self, things: list[str]) -> None:
        self.counted = True
        for thing in [thing for thing, place in self.at.items() if place == HELD and thing not in things]:
            del self.at[thing]
        self.at |= dict.fromkeys(things, HELD)

    def _mistaken(self, action: str) -> None:
        """A refused command about a thing: it is not where it was thought to be, and the room wants another look."""
        target = action.rpartition(" to ")[2]
        if target in BOXES and (target not in self.boxes or self.room != self.box_room):
            return  # the box was not here, which was to be expected
        things = things_in(action)
        self.refused += things
        for thing in things:
            if thing not in BOXES and self.at.get(thing) in (self.room, HELD):
                del self.at[thing]
        self.seen.pop(self.room, None)
        self.counted = False


def _meant(action: str, answer: str) -> list[str]:
    """What an action was about: the answer may say "the pea" for a pea plant, and the action may be a number."""
    return things_in(action)[:1] or things_in(answer)
