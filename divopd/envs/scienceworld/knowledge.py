"""What a player of the short tasks may know before it starts: names, what lives, and how long. Facts read off the game.

Every name has a short form of one word ("red box" is `redbox`), a single token of the small models' tokenizer.
"""

from __future__ import annotations

import re

ROOMS = (
    "hallway",
    "kitchen",
    "bathroom",
    "bedroom",
    "living room",
    "workshop",
    "art studio",
    "greenhouse",
    "outside",
    "foundry",
)
BY_LIFE_SPAN = (  # longest first; a life span task shows one of each five
    "giant tortoise",
    "parrot",
    "elephant",
    "crocodile",
    "brown bear",
    "beaver",
    "wolf",
    "chipmunk",
    "frog egg",
    "rabbit",
    "hedgehog",
    "mouse",
    "chameleon",
    "dragonfly",
    "ant",
)
STAGES = {"tadpole": "frog egg", "caterpillar": "butterfly egg"}
"""Life stages whose name does not hold the animal's: the game understands the name of the present stage alone."""
ANIMALS = (*BY_LIFE_SPAN, "blue jay", "butterfly egg", "dove", "moth", "turtle", *STAGES)
PLANTS = (
    "pea plant",
    *(f"{fruit} tree" for fruit in ("apple", "avocado", "banana", "cherry", "lemon", "orange", "peach")),
)
COLOURS = ("red", "green", "blue", "orange", "yellow", "purple")
BOXES = tuple(f"{colour} box" for colour in COLOURS)
THERMOMETER = "thermometer"
SUBSTANCES = ("unknown substance B", "sodium chloride", "metal fork", "wood", "wire")
"""What is measured."""
LIFELESS = (
    "picture",
    "painting",
    "drawing",
    "finger painting",
    "axe",
    "shovel",
    "jug",
    "bowl",
    "lighter",
    "stopwatch",
    "soap",
)
"""Things that can be carried and are in sight: what a non-living thing is looked for among."""
HOME = {"animal": ("outside",), "plant": ("greenhouse",), "living thing": ("outside", "greenhouse")}
"""Where things of a kind are found."""
KITCHEN = "kitchen"
"""Where the thermometer lies."""

_THINGS = (*ANIMALS, *PLANTS, *BOXES, THERMOMETER, *SUBSTANCES, *LIFELESS)
SHORT = {name.lower(): name.lower().replace(" ", "") for name in (*ROOMS, *_THINGS)} | {"butterfly egg": "butterfly"}
"""Name in lower case -> its one word."""
FULL = {SHORT[name.lower()]: name for name in (*ROOMS, *_THINGS)}
"""One word -> the name as commands spell it."""
_SAME = {"common toad": "frog egg", "toad": "frog egg", "butterfly": "butterfly egg"}
"""What the game also calls some eggs; it understands the name with "egg" alone, for a butterfly's may be a moth's."""
_HIDING = ("bee hive", "wood cup", *(f"{colour} wire" for colour in (*COLOURS, "black")))  # contain a name, are none
_NAMES = re.compile(
    r"\b("
    + "|".join(sorted((*(thing.lower() for thing in _THINGS), *_SAME, *_HIDING), key=lambda name: (-len(name), name)))
    + r")\b"
)


def is_living(name: str) -> bool:
    return name in ANIMALS or name in PLANTS


def suits(name: str, kind: str) -> bool:
    """Whether a thing is of the kind that a find task asks for."""
    living = is_living(name)
    return {
        "animal": name in ANIMALS,
        "plant": name in PLANTS,
        "living thing": living,
        "non-living thing": name in LIFELESS,
    }[kind]


def things_in(text: str) -> list[str]:
    """The known things that a text names, in its order, each once, as commands spell them."""
    found = [_SAME.get(name, name) for name in _NAMES.findall(text.lower()) if name not in _HIDING]
    return [FULL[SHORT[name]] for name in dict.fromkeys(found)]
