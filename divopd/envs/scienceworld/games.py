"""The game's task names with their numbers of variations (scienceworld 1.2.3), known without starting Java."""

from __future__ import annotations

from divopd.envs.base import EnvError

VARIATIONS = {
    "boil": 30,
    "melt": 30,
    "freeze": 30,
    "change-the-state-of-matter-of": 30,
    "use-thermometer": 540,
    "measure-melting-point-known-substance": 436,
    "measure-melting-point-unknown-substance": 300,
    "power-component": 20,
    "power-component-renewable-vs-nonrenewable-energy": 20,
    "test-conductivity": 900,
    "test-conductivity-of-unknown-substances": 600,
    "find-living-thing": 300,
    "find-non-living-thing": 300,
    "find-plant": 300,
    "find-animal": 300,
    "grow-plant": 126,
    "grow-fruit": 126,
    "chemistry-mix": 32,
    "chemistry-mix-paint-secondary-color": 36,
    "chemistry-mix-paint-tertiary-color": 36,
    "lifespan-longest-lived": 125,
    "lifespan-shortest-lived": 125,
    "lifespan-longest-lived-then-shortest-lived": 125,
    "identify-life-stages-1": 14,
    "identify-life-stages-2": 10,
    "inclined-plane-determine-angle": 168,
    "inclined-plane-friction-named-surfaces": 1386,
    "inclined-plane-friction-unnamed-surfaces": 162,
    "mendelian-genetics-known-plant": 120,
    "mendelian-genetics-unknown-plant": 480,
}


def parse_task(task: str) -> tuple[str, int]:
    """("find-animal", 17) of "find-animal/17". Raises `EnvError` for anything the game has not."""
    name, _, number = task.rpartition("/")
    if name not in VARIATIONS:
        raise EnvError(f"no ScienceWorld task {task!r}: ids are <name>/<variation>, names are {', '.join(VARIATIONS)}")
    if not (number.isascii() and number.isdigit()) or number != str(int(number)) or int(number) >= VARIATIONS[name]:
        raise EnvError(f"no ScienceWorld task {task!r}: {name} has variations 0 to {VARIATIONS[name] - 1}")
    return name, int(number)
