"""ALFWorld in few words, for small models: an episode of 15 turns is about 120 tokens instead of 2,000.

Entity names keep their number ("drawer 2" is one token of the small tokenizer), filler words go, and an action is its
verb and its first entity: "take mug 1" stands for "take mug 1 from drawer 2", the only allowed command it can mean.
"""

from __future__ import annotations

import re

from ..base import Observation, Step

FILLERS = frozenset(
    [
        "a",
        "an",
        "the",
        "some",
        "it",
        "them",
        "that",
        "is",
        "in",
        "on",
        "to",
        "with",
        "and",
        "under",
        "from",
        "into",
        "of",
        "at",
        "your",
        "you",
        "this",
        "s",
    ]
)
_ENTITY = re.compile(r"[a-z]+ \d+")
_SEEN = re.compile(r"you see (.*?)\.", re.DOTALL)
_DONE = ("You pick up", "You move", "You put", "You heat", "You cool", "You clean", "You turn on", "You close")
OBSERVATION_WORDS = [
    "room",
    "see",
    "open",
    "closed",
    "nothing",
    "ok",
    "fail",
    "carrying",
    "task",
    ".",
    ",",
    "this",
    "hot",
    "cold",
    "cool",
    "clean",
    "sliced",
    "off",
    "normal",
    "special",
]
ACTION_WORDS = [
    "go",
    "open",
    "close",
    "take",
    "move",
    "put",
    "use",
    "heat",
    "cool",
    "clean",
    "slice",
    "examine",
    "look",
    "inventory",
    "help",
]
GOAL_WORDS = ["put", "find", "examine", "look", "two", "clean", "cool", "cold", "hot", "heat"]


def _words(text: str) -> str:
    """Lower case, without punctuation and fillers."""
    kept = [word for word in re.findall(r"[a-z]+|\d+", text.lower()) if word not in FILLERS]
    return " ".join(kept)


def _listing(text: str) -> str:
    """The entities after "you see", or "nothing"."""
    seen = _SEEN.search(text)
    return " ".join(_ENTITY.findall(seen.group(1))) or "nothing" if seen else ""


def compact_observation(text: str) -> str:
    """One observation in few words; a form that is not known keeps all words but the fillers."""
    if text.startswith("Nothing happens"):
        return "fail"
    if text.startswith(_DONE):
        return "ok"
    if "Looking quickly around" in text or "middle of a room" in text:
        return "room " + _listing(text)
    if " is closed." in text:
        return "closed"
    if " is open. In it, you see" in text:
        return "open " + _listing(text)
    if ", you see" in text:
        return "see " + _listing(text)
    if text.startswith("You are carrying"):
        return "carrying " + " ".join(_ENTITY.findall(text))
    if text.startswith("You are not carrying"):
        return "carrying nothing"
    return _words(text)


def compact_action(command: str) -> str:
    """Verb and first entity: "go drawer 2", "take mug 1"."""
    words = command.split()
    entity = _ENTITY.search(command)
    return f"{words[0]} {entity.group(0)}" if entity else words[0] if words else ""


class CompactStyle:
    """See the module: goal, room, then one short line a turn."""

    def first(self, observation: Observation) -> str:
        return f"task {_words(observation.goal)} {compact_observation(observation.text)}"

    def follow(self, action: str, step: Step) -> str:
        return compact_observation(step.text)

    def action(self, response: str, allowed: tuple[str, ...]) -> str:
        """The first allowed command with this short form; else the response itself, which the engine will refuse."""
        text = response.strip()
        return next((command for command in allowed if compact_action(command) == text), text)

    def response(self, action: str, allowed: tuple[str, ...]) -> str:
        return compact_action(action)
