"""A drawn room as the PDDL problem of an official game, with the names that the engine will print."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from divopd.envs.alfworld.tables import LAMP, TOOLS, Tables

# The domain names these types itself, so they must be declared in every room.
_DOMAIN_RECEPTACLES = ("Fridge", "Microwave", "SinkBasin")
_DOMAIN_OBJECTS = ("ButterKnife", "Knife")


@dataclass(frozen=True, slots=True)
class Room:
    """A drawn room: `spots[i]` is the location number of receptacle i, `inside[j]` the receptacle of object j."""

    receptacles: tuple[str, ...]
    spots: tuple[int, ...]
    objects: tuple[str, ...]
    inside: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Goal:
    """What is to be done; `dest` is a receptacle type, or the lamp's type for the light task."""

    task_type: str
    obj: str
    dest: str
    text: str


def _idents(types: tuple[str, ...]) -> list[str]:
    """PDDL ids in the shape `Type_bar_place`; basins carry the name of their fixture first, as officially."""
    counts: Counter[str] = Counter()
    idents = []
    for kind in types:
        place = f"{counts[kind]:02d}"
        counts[kind] += 1
        fixture = kind.removesuffix("Basin")
        idents.append(f"{kind}_bar_{place}" if fixture == kind else f"{fixture}_bar_{place}_bar_{kind}")
    return idents


def names(types: tuple[str, ...]) -> list[str]:
    """The names the engine prints: it numbers the sorted ids of a type from the highest number down."""
    left = Counter(types)
    result = []
    for kind in types:
        result.append(f"{kind.lower()} {left[kind]}")
        left[kind] -= 1
    return result


def render(room: Room, goal: Goal, tables: Tables) -> str:
    """Write the PDDL problem; equal rooms and goals give equal text."""
    recs, objs = _idents(room.receptacles), _idents(room.objects)
    rtypes = sorted({*room.receptacles, *_DOMAIN_RECEPTACLES})
    otypes = sorted({*room.objects, *_DOMAIN_OBJECTS})
    declared = ["agent1 - agent", *(f"{t}Type - otype" for t in otypes), *(f"{t}Type - rtype" for t in rtypes)]
    declared += [*(f"{o} - object" for o in objs), *(f"{r} - receptacle" for r in recs)]
    declared += [f"loc_bar_{spot:02d} - location" for spot in range(max(room.spots) + 1)]
    facts = [f"receptacleType {r} {t}Type" for r, t in zip(recs, room.receptacles, strict=True)]
    facts += [f"objectType {o} {t}Type" for o, t in zip(objs, room.objects, strict=True)]
    facts += [f"canContain {r}Type {o}Type" for r in rtypes for o in otypes if o in tables.can_contain[r]]
    facts += [f"pickupable {o}" for o, t in zip(objs, room.objects, strict=True) if t != LAMP]
    facts += [f"isReceptacleObject {o}" for o, t in zip(objs, room.objects, strict=True) if t in tables.containers]
    facts += [f"openable {r}" for r, t in zip(recs, room.receptacles, strict=True) if t in tables.openable]
    facts.append("atLocation agent1 loc_bar_00")
    for affordance, kinds in tables.affordances.items():
        facts += [f"{affordance} {o}" for o, t in zip(objs, room.objects, strict=True) if t in kinds]
    facts += [f"inReceptacle {o} {recs[at]}" for o, at in zip(objs, room.inside, strict=True)]
    facts += [f"receptacleAtLocation {r} loc_bar_{spot:02d}" for r, spot in zip(recs, room.spots, strict=True)]
    facts += [f"objectAtLocation {o} loc_bar_{room.spots[at]:02d}" for o, at in zip(objs, room.inside, strict=True)]
    objects = "".join(f"        {line}\n" for line in declared)
    init = "".join(f"        ({fact})\n" for fact in facts)
    pddl_goal = tables.goals[goal.task_type][0].format(obj=goal.obj, recep=goal.dest, toggle=goal.dest)
    return (
        f"\n(define (problem plan_generated)\n(:domain alfred)\n(:objects\n{objects}        )\n\n"
        f"(:init\n{init}        )\n{pddl_goal}"
    )


class _Walker:
    """Writes down the commands of a plan that knows the hidden state, opening what is closed on the way."""

    def __init__(self, room: Room, tables: Tables) -> None:
        self.room, self.tables = room, tables
        self.receptacles, self.objects = names(room.receptacles), names(room.objects)
        self.commands: list[str] = []
        self.at = -1
        self.opened: set[int] = set()

    def visit(self, receptacle: int, inside: bool = True) -> str:
        """Go to a receptacle and, if its inside is needed, open it."""
        name = self.receptacles[receptacle]
        spots = self.room.spots
        if self.at < 0 or spots[self.at] != spots[receptacle]:
            self.commands.append(f"go to {name}")
        self.at = receptacle
        if inside and self.room.receptacles[receptacle] in self.tables.openable and receptacle not in self.opened:
            self.commands.append(f"open {name}")
            self.opened.add(receptacle)
        return name

    def take(self, obj: int) -> str:
        name = self.visit(self.room.inside[obj])
        self.commands.append(f"take {self.objects[obj]} from {name}")
        return self.objects[obj]


def walkthrough(room: Room, goal: Goal, tables: Tables) -> list[str]:
    """A plan that solves the room with knowledge of the hidden state."""
    walker = _Walker(room, tables)
    wanted = [j for j, kind in enumerate(room.objects) if kind == goal.obj]
    if goal.task_type == "look_at_obj_in_light":
        lamp = room.objects.index(LAMP)
        walker.take(wanted[0])
        walker.visit(room.inside[lamp], inside=False)
        return [*walker.commands, f"use {walker.objects[lamp]}"]
    dest = room.receptacles.index(goal.dest)
    tool = TOOLS.get(goal.task_type)
    for obj in wanted[: 2 if goal.task_type == "pick_two_obj_and_place" else 1]:
        name = walker.take(obj)
        if tool is not None:
            verb = goal.task_type.split("_")[1]
            at = walker.visit(room.receptacles.index(tool), inside=False)
            walker.commands.append(f"{verb} {name} with {at}")
        walker.commands.append(f"move {name} to {walker.visit(dest)}")
    return walker.commands
