"""Which variations are trained on and which are held out: the paper's split by task type, and ours of the short tasks.

The paper takes the first half of the variations of each type, 17 types to train on and 13 held out, shuffles each list
once with seed 42 and evaluates on the first 256 held-out tasks. Counts and types are the paper's; the order before the
shuffle (types as the game numbers them, variations ascending) and the shuffle itself (Python's `random`) are ours, for
its code is not public. The frozen lists lie in experiments/panels; `write_panels` makes them again.
"""

from __future__ import annotations

import random
from pathlib import Path

from divopd.envs.base import EnvError
from divopd.envs.scienceworld.games import VARIATIONS

HELD_OUT = (
    "freeze",
    "measure-melting-point-unknown-substance",
    "power-component-renewable-vs-nonrenewable-energy",
    "test-conductivity-of-unknown-substances",
    "find-non-living-thing",
    "find-animal",
    "grow-fruit",
    "chemistry-mix-paint-tertiary-color",
    "lifespan-longest-lived",
    "lifespan-longest-lived-then-shortest-lived",
    "identify-life-stages-1",
    "inclined-plane-friction-unnamed-surfaces",
    "mendelian-genetics-unknown-plant",
)
SHORT_TYPES = (
    "find-living-thing",
    "find-non-living-thing",
    "find-plant",
    "find-animal",
    "lifespan-longest-lived",
    "lifespan-shortest-lived",
    "lifespan-longest-lived-then-shortest-lived",
    "use-thermometer",
)
"""What the small models play: won in ten commands or fewer by who knows how."""
_TRAIN_EACH, _EVAL_EACH = 24, 16
_SEED = 42


def paper_split() -> tuple[list[str], list[str]]:
    """(2,294 training tasks, 1,308 held-out ones), each shuffled; the paper's panel is the first 256 held out."""
    lists: tuple[list[str], list[str]] = ([], [])
    for kind, count in VARIATIONS.items():
        lists[kind in HELD_OUT].extend([f"{kind}/{variation}" for variation in range(count // 2)])
    for tasks in lists:
        random.Random(_SEED).shuffle(tasks)
    return lists


def short_split() -> tuple[list[str], list[str]]:
    """(training tasks, panel) of the short types: variations drawn from all of a type's, types in turn."""
    lists: tuple[list[str], list[str]] = ([], [])
    draws = random.Random(_SEED)
    orders = {kind: draws.sample(range(VARIATIONS[kind]), _TRAIN_EACH + _EVAL_EACH) for kind in SHORT_TYPES}
    for i in range(_TRAIN_EACH + _EVAL_EACH):
        lists[i >= _TRAIN_EACH].extend(f"{kind}/{orders[kind][i]}" for kind in SHORT_TYPES)
    return lists


PANELS = {  # file -> (what its first line says, the tasks)
    "scienceworld_train.txt": ("the paper's training tasks, 17 types, shuffled", lambda: paper_split()[0]),
    "scienceworld_heldout.txt": (
        "the paper's held-out tasks, 13 types, shuffled; the first 256 are its panel",
        lambda: paper_split()[1],
    ),
    "scienceworld_short_train.txt": ("short tasks to train small models on, types in turn", lambda: short_split()[0]),
    "scienceworld_short_eval.txt": ("panel of short tasks, types in turn", lambda: short_split()[1]),
}
_SPLITS = {
    "train": "scienceworld_train.txt",
    "held-out": "scienceworld_heldout.txt",
    "short-train": "scienceworld_short_train.txt",
    "short-eval": "scienceworld_short_eval.txt",
}


def split_tasks(split: str) -> list[str]:
    """The tasks of a named split. Raises `EnvError` for any other name."""
    if split not in _SPLITS:
        raise EnvError(f"ScienceWorld has the splits {', '.join(_SPLITS)}, not {split!r}; or name a .txt file of tasks")
    return PANELS[_SPLITS[split]][1]()


def write_panels(folder: Path) -> None:
    """The frozen lists, one task a line."""
    for name, (title, tasks) in PANELS.items():
        head = f"# ScienceWorld: {title}. Frozen; made by divopd/envs/scienceworld/split.py.\n"
        (folder / name).write_text(head + "".join(f"{task}\n" for task in tasks()))
