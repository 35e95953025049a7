"""New ALFWorld text games from a seed, out of what the alfworld package ships (no download).

A task id `gen/<split>/<index>` and a `GameSize` determine the game wholly: all draws come from one generator seeded by
their hash, so that splits are separate streams and neither PYTHONHASHSEED nor file order matters.
"""

from __future__ import annotations

import hashlib
import random
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from divopd.envs.alfworld.problem import Goal, Room, render, walkthrough
from divopd.envs.alfworld.tables import ENTITY_TYPES, LAMP, LAMP_STANDS, TASK_TYPES, TOOLS, Tables, load_tables
from divopd.envs.base import EnvError

__all__ = ["ENTITY_TYPES", "TASK_TYPES", "GameSize", "entity_names", "game_hash", "generate_game", "task_type_of"]

_TASK_ID = re.compile(r"gen/([a-z0-9_-]+)/(0|[1-9][0-9]*)")
_ATTEMPTS = 200
_SHARE = 0.5
_EXTRA_TARGET = 0.3
_MIN_PLACES = 3


@dataclass(frozen=True, slots=True)
class GameSize:
    """How large the rooms are; part of the seed, so another size gives other games.

    `receptacles` and `objects` are inclusive ranges. `max_same` caps the receptacles of one type, `max_number` the
    number in any entity name. With `shared_spots` about half the receptacles stand where another one stands.
    """

    receptacles: tuple[int, int] = (7, 10)
    objects: tuple[int, int] = (10, 12)
    max_same: int = 3
    max_number: int = 4
    shared_spots: bool = False

    def __post_init__(self) -> None:
        low, high = self.receptacles
        if not 4 <= low <= high:
            raise ValueError(f"receptacles must be a range from 4 up, got {self.receptacles}")
        if not 4 <= self.objects[0] <= self.objects[1]:
            raise ValueError(f"objects must be a range from 4 up, got {self.objects}")
        if not (1 <= self.max_same <= self.max_number and self.max_number >= 3):
            raise ValueError("need 1 <= max_same <= max_number and max_number >= 3")


_DEFAULT_SIZE = GameSize()


def entity_names(size: GameSize = _DEFAULT_SIZE) -> tuple[str, ...]:
    """Every entity name that a game of this size can print, such as `drawer 2`."""
    receptacles = [f"{kind} {n}" for kind in ENTITY_TYPES["receptacle"] for n in range(1, size.max_same + 1)]
    objects = [f"{kind} {n}" for kind in ENTITY_TYPES["object"] for n in range(1, size.max_number + 1)]
    return (*receptacles, *objects)


def task_type_of(task_id: str) -> str:
    """The task type of a generated task: round robin over the index. Raises `EnvError` for a malformed id."""
    match = _TASK_ID.fullmatch(task_id)
    if match is None:
        raise EnvError(f"not a generated task id: {task_id!r}; write gen/<split>/<index>, for example gen/train/17")
    return TASK_TYPES[int(match.group(2)) % len(TASK_TYPES)]


def _generator(task_id: str, size: GameSize) -> random.Random:
    fields = ",".join(f"{key}={value}" for key, value in sorted(asdict(size).items()))
    digest = hashlib.sha256(f"alfworld-games-1|{task_id}|{fields}".encode()).digest()
    return random.Random(int.from_bytes(digest[:16], "big"))


def _capped(types: Sequence[str], cap: int) -> Counter[str]:
    return Counter({kind: min(n, cap) for kind, n in Counter(types).items()})


def _draw_receptacles(
    rng: random.Random, task_type: str, size: GameSize, tables: Tables
) -> tuple[str, tuple[str, ...]]:
    """A scene and its receptacles: a sample of one shipped layout plus what the task needs, filled up if too few."""
    scene_name = rng.choice(tables.scenes_of_task[task_type])
    scene = tables.scenes[scene_name]
    available = _capped(rng.choice(scene.layouts), size.max_same)
    chosen: Counter[str] = Counter()
    if task_type in TOOLS:
        chosen[TOOLS[task_type]] = 1
    elif task_type == "look_at_obj_in_light":
        chosen[rng.choice([kind for kind in LAMP_STANDS if kind in scene.receptacles])] = 1
    rest = sorted((available - chosen).elements())
    rng.shuffle(rest)
    wanted = rng.randint(*size.receptacles)
    for kind in rest[: wanted - chosen.total()]:
        chosen[kind] += 1
    spare = sorted(kind for kind in scene.receptacles for _ in range(size.max_same - chosen[kind]))
    missing = wanted - chosen.total()
    for kind in rng.sample(spare, min(missing, len(spare))):
        chosen[kind] += 1
    return scene_name, tuple(sorted(chosen.elements()))


def _goal_pairs(
    task_type: str, receptacles: Sequence[str], pool: Sequence[str], tables: Tables
) -> dict[str, list[str]]:
    """Destination type → object types for which the task makes sense in this room (the lamp for the light task).

    An object qualifies only if it could lie in several other receptacles: where it is must be searched for.
    """
    able = tables.affordances.get(f"{task_type.split('_')[1]}able")
    look = task_type == "look_at_obj_in_light"
    pairs = {}
    for dest in [LAMP] if look else sorted(set(receptacles)):
        fitting = [
            o
            for o in pool
            if (look or o in tables.can_contain[dest])
            and (able is None or o in able)
            and sum(o in tables.can_contain[r] for r in receptacles if r != dest) >= _MIN_PLACES
        ]
        if fitting and dest != TOOLS.get(task_type):
            pairs[dest] = fitting
    return pairs


def _place_targets(rng: random.Random, goal: Goal, receptacles: Sequence[str], tables: Tables) -> list[tuple[str, int]]:
    """The wanted objects, one more than needed at times, never where they have to go; and the lamp if one is needed."""
    needed = 2 if goal.task_type == "pick_two_obj_and_place" else 1
    count = needed + (rng.random() < _EXTRA_TARGET)
    places = [i for i, r in enumerate(receptacles) if goal.obj in tables.can_contain[r] and r != goal.dest]
    placed = [(goal.obj, rng.choice(places)) for _ in range(count)]
    if goal.dest == LAMP:
        placed.append((LAMP, rng.choice([i for i, r in enumerate(receptacles) if r in LAMP_STANDS])))
    return placed


def _draw_objects(
    rng: random.Random, goal: Goal, pool: Sequence[str], receptacles: Sequence[str], size: GameSize, tables: Tables
) -> list[tuple[str, int]]:
    """All objects with the receptacle each lies in, in random order.

    A distractor's receptacle is drawn before its type, so that objects spread over the room instead of piling up on
    the one table that may hold everything.
    """
    placed = _place_targets(rng, goal, receptacles, tables)
    counts: Counter[str] = Counter()
    for _ in range(rng.randint(*size.objects) - len(placed)):
        at = rng.randrange(len(receptacles))
        fitting = [
            o
            for o in tables.can_contain[receptacles[at]]
            if o in pool and o != goal.obj and counts[o] < size.max_number
        ]
        if fitting:
            kind = rng.choice(fitting)
            counts[kind] += 1
            placed.append((kind, at))
    rng.shuffle(placed)
    return placed


def _draw_spots(rng: random.Random, count: int, shared: bool) -> tuple[int, ...]:
    """Location numbers from 1 (0 is the middle of the room); receptacles of one room share spots only if asked."""
    spots: list[int] = []
    for _ in range(count):
        if shared and spots and rng.random() < _SHARE:
            spots.append(rng.choice(spots))
        else:
            spots.append(max(spots, default=0) + 1)
    return tuple(spots)


def _draw(rng: random.Random, task_type: str, size: GameSize, tables: Tables) -> tuple[Room, Goal] | None:
    """One try at a room; None if its receptacles allow no goal of this type."""
    scene, receptacles = _draw_receptacles(rng, task_type, size, tables)
    pool = tables.scenes[scene].objects
    pairs = _goal_pairs(task_type, receptacles, pool, tables)
    if not pairs:
        return None
    dest = rng.choice(sorted(pairs))
    obj = rng.choice(pairs[dest])
    template = rng.choice(tables.goals[task_type][1])
    text = template.format(obj=obj.lower(), recep=dest.lower(), toggle=dest.lower())
    goal = Goal(task_type, obj, dest, text)
    placed = _draw_objects(rng, goal, pool, receptacles, size, tables)
    spots = _draw_spots(rng, len(receptacles), size.shared_spots)
    return Room(receptacles, spots, tuple(kind for kind, _ in placed), tuple(at for _, at in placed)), goal


def generate_game(task_id: str, size: GameSize = _DEFAULT_SIZE) -> dict[str, Any]:
    """The game of a task id, in the shape of an official `game.tw-pddl` file.

    Solvable by construction and never solved at the start. Raises `EnvError` for a malformed id, a missing package, or
    a size in which no room of the task's type can be drawn.
    """
    task_type = task_type_of(task_id)
    tables = load_tables()
    rng = _generator(task_id, size)
    for _ in range(_ATTEMPTS):
        drawn = _draw(rng, task_type, size, tables)
        if drawn is not None:
            break
    else:
        raise EnvError(f"no {task_type} room of {size} could be drawn; allow more receptacles or a higher max_same")
    room, goal = drawn
    return {
        "pddl_domain": tables.domain,
        "grammar": tables.grammar.replace("UNKNOWN GOAL", goal.text),
        "pddl_problem": render(room, goal, tables),
        "solvable": True,
        "walkthrough": walkthrough(room, goal, tables),
        "task_type": task_type,
        "task": f"{goal.text}.",
    }


def game_hash(game: dict[str, Any]) -> str:
    """Hash of a game's content (room and goal, not its task id), to show that panels share no game."""
    return hashlib.sha256(f"{game['pddl_problem']}|{game['task']}".encode()).hexdigest()
