"""The tables that the alfworld package ships, read without importing the package.

Importing `alfworld` creates a cache folder in the user's home, so its two table modules are executed by file instead.
Every set is turned into a sorted tuple: drawing from a set would depend on PYTHONHASHSEED.
"""

from __future__ import annotations

import importlib.util
import json
from collections import Counter
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import ModuleType

from divopd.envs.base import EnvError

TASK_TYPES = (
    "pick_and_place_simple",
    "look_at_obj_in_light",
    "pick_clean_then_place_in_recep",
    "pick_heat_then_place_in_recep",
    "pick_cool_then_place_in_recep",
    "pick_two_obj_and_place",
)

# Only types that occur here are ever generated, so a tokenizer can list every entity name.
RECEPTACLE_TYPES = (
    "ArmChair", "BathtubBasin", "Bed", "Cabinet", "CoffeeTable", "CounterTop", "Desk", "DiningTable", "Drawer",
    "Dresser", "Fridge", "GarbageCan", "Microwave", "Safe", "Shelf", "SideTable", "SinkBasin", "Sofa", "Toilet",
)  # fmt: skip
OBJECT_TYPES = (
    "AlarmClock", "Apple", "Book", "Bowl", "Bread", "Candle", "CD", "CellPhone", "Cloth", "CreditCard", "Cup",
    "DeskLamp", "DishSponge", "Egg", "Fork", "HandTowel", "KeyChain", "Laptop", "Lettuce", "Mug", "Pan", "Pen",
    "Pencil", "PepperShaker", "Pillow", "Plate", "Pot", "Potato", "RemoteControl", "SaltShaker", "SoapBar",
    "SoapBottle", "Spatula", "Spoon", "SprayBottle", "Statue", "ToiletPaper", "Tomato", "Vase", "Watch",
)  # fmt: skip
ENTITY_TYPES = {
    "receptacle": tuple(name.lower() for name in RECEPTACLE_TYPES),
    "object": tuple(name.lower() for name in OBJECT_TYPES),
}

LAMP = "DeskLamp"
TOOLS = {
    "pick_clean_then_place_in_recep": "SinkBasin",
    "pick_heat_then_place_in_recep": "Microwave",
    "pick_cool_then_place_in_recep": "Fridge",
}
# The shipped tables say nothing about where a lamp stands: surfaces on which the shipped layouts show one.
LAMP_STANDS = ("Desk", "DiningTable", "Dresser", "Shelf", "SideTable")
_AFFORDANCES = {"cleanable": "Cleanable", "heatable": "Heatable", "coolable": "Coolable", "toggleable": "Toggleable",
                "sliceable": "Sliceable"}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Scene:
    """One kind of room: the receptacles of each shipped layout (sorted) and the object types at home there."""

    layouts: tuple[tuple[str, ...], ...]
    receptacles: tuple[str, ...]
    objects: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Tables:
    """All that game generation needs from the package."""

    domain: str
    grammar: str
    goals: dict[str, tuple[str, tuple[str, ...]]]
    scenes: dict[str, Scene]
    scenes_of_task: dict[str, tuple[str, ...]]
    can_contain: dict[str, tuple[str, ...]]
    affordances: dict[str, frozenset[str]]
    openable: frozenset[str]
    containers: frozenset[str]


def _package_dir() -> Path:
    spec = importlib.util.find_spec("alfworld")
    if spec is None or not spec.submodule_search_locations:
        raise EnvError("the package 'alfworld' is missing: pip install alfworld==0.4.2")
    return Path(next(iter(spec.submodule_search_locations)))


def _run_file(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"_alfworld_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise EnvError(f"cannot read alfworld's {path.name}: reinstall alfworld==0.4.2")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _receptacle_type(key: str) -> str:
    """Type of a layout key such as `Drawer|+01|...` or `Sink|...|SinkBasin`."""
    parts = key.split("|")
    return parts[-1] if parts[-1].endswith("Basin") else parts[0]


def _scene(layouts_dir: Path, numbers: range) -> Scene:
    """Read one kind of room; an object type is at home there if at least three layouts have it."""
    layouts, seen, homes = [], Counter[str](), Counter[str]()
    for number in sorted(numbers):
        keys = json.loads((layouts_dir / f"FloorPlan{number}-openable.json").read_text("utf-8"))
        layout = tuple(sorted(t for t in map(_receptacle_type, keys) if t in RECEPTACLE_TYPES))
        layouts.append(layout)
        seen.update(set(layout))
        homes.update(set(json.loads((layouts_dir / f"FloorPlan{number}-objects.json").read_text("utf-8"))))
    return Scene(
        tuple(layouts),
        tuple(t for t in RECEPTACLE_TYPES if seen[t] >= 3),
        tuple(t for t in OBJECT_TYPES if homes[t] >= 3 and t != LAMP),
    )


@lru_cache(maxsize=1)
def load_tables() -> Tables:
    """Read the shipped tables once a process. Raises `EnvError` if the package or one of its files is missing."""
    root = _package_dir()
    try:
        constants, library = _run_file(root / "gen/constants.py"), _run_file(root / "gen/goal_library.py")
        domain = (root / "data/alfred.pddl").read_text("utf-8")
        grammar = (root / "data/alfred.twl2").read_text("utf-8")
        scenes = {name: _scene(root / "gen/layouts", n) for name, n in constants.SCENE_TYPE.items()}
    except OSError as error:
        raise EnvError(f"alfworld's shipped tables are incomplete ({error}): reinstall alfworld==0.4.2") from error
    if "UNKNOWN GOAL" not in grammar:
        raise EnvError("alfworld's grammar has no place for the goal: install alfworld==0.4.2")
    holds = constants.VAL_RECEPTACLE_OBJECTS
    goals = {t: (library.gdict[t]["pddl"].replace("#", "-"), tuple(library.gdict[t]["templates"])) for t in TASK_TYPES}
    return Tables(
        domain=domain,
        grammar=grammar,
        goals=goals,
        scenes=scenes,
        scenes_of_task={t: tuple(sorted(constants.GOALS_VALID[t])) for t in TASK_TYPES},
        can_contain={r: tuple(o for o in OBJECT_TYPES if o in holds.get(r, ())) for r in RECEPTACLE_TYPES},
        affordances={k: frozenset(constants.VAL_ACTION_OBJECTS[v]) for k, v in _AFFORDANCES.items()},
        openable=frozenset(constants.OPENABLE_CLASS_LIST),
        containers=frozenset(constants.MOVABLE_RECEPTACLES),
    )
