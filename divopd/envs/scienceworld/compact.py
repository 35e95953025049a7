"""ScienceWorld's short tasks in few words, for small models: an episode of ten turns is about 60 tokens, not 3,000.

A goal, an observation and an action are words of a closed list; of a room only the things that can matter are named.
An action is its verb and the names it cannot do without: "put dove redbox" stands for "move dove to red box".
Nothing is remembered from turn to turn, and no list of commands is asked for: text in, text out.
"""

from __future__ import annotations

import math
import re

from divopd.envs.base import EnvError, Observation, Step
from divopd.envs.scienceworld.expert_beliefs import READS, ROOM, parse_goal
from divopd.envs.scienceworld.knowledge import FULL, SHORT, THERMOMETER, things_in

LIMIT = 10
"""Things named of a room, at most."""
BUCKET, COLDEST, HOTTEST = 25, -200, 400
"""Temperatures are rounded down to multiples of BUCKET degrees Celsius; the goals' bounds are multiples of it."""
_DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
_KINDS = {"animal": "animal", "plant": "plant", "living thing": "living", "non-living thing": "lifeless"}
GOAL_WORDS = ["task", "find", "longest", "shortest", "measure", *_KINDS.values()]
OBSERVATION_WORDS = ["see", "hold", "nothing", "reads", "which", "ok", "fail"]
ACTION_WORDS = ["go", "look", "inventory", "focus", "take", "put", "measure", "first", "wait"]
_PLAIN = {"look around": "look", "inventory": "inventory", "0": "first", "wait1": "wait"}
_FORMS = (  # command -> (what it is called, with names in its places)
    (re.compile(r"teleport to (.+)"), "go"),
    (re.compile(r"focus on (.+)"), "focus"),
    (re.compile(r"pick up (.+)"), "take"),
    (re.compile(rf"use {THERMOMETER} on (.+)"), "measure"),
    (re.compile(r"move (.+) to (.+)"), "put"),
)
_COMMANDS = {"go": "teleport to {}", "focus": "focus on {}", "take": "pick up {}", "put": "move {} to {}"}
_COMMANDS |= {"measure": f"use {THERMOMETER} on {{}}"}
_DONE = ("You teleport", "You focus", "You move", "You decide to wait")


def temperature_word(degrees: float) -> str:
    """The word of a temperature's bucket: 47 is "twofive", -30 is "minusfivezero"."""
    low = math.floor(min(max(degrees, COLDEST), HOTTEST) / BUCKET) * BUCKET
    return ("minus" if low < 0 else "") + "".join(_DIGITS[int(digit)] for digit in str(abs(low)))


TEMPERATURE_WORDS = [temperature_word(low) for low in range(COLDEST, HOTTEST + 1, BUCKET)]


def short(name: str) -> str:
    """One word for a name, known or not."""
    return SHORT.get(name.lower(), name.lower().replace(" ", ""))


def compact_goal(goal: str) -> str:
    """The goal's kind and its names; "task" alone where the goal is none of the short tasks'."""
    try:
        wanted = parse_goal(goal)
    except EnvError:
        return "task"
    if wanted.kind == "find":
        return f"task find {_KINDS.get(wanted.what, wanted.what)} {short(wanted.box)} {short(wanted.box_room)}"
    if wanted.kind == "measure":
        names = (wanted.what, wanted.room, wanted.box, wanted.other_box, wanted.box_room)
        thing, room, *boxes = (short(name) for name in names)
        return " ".join(["task measure", thing, room, temperature_word(wanted.bound), *boxes])
    return " ".join(["task", *wanted.ends])


def compact_observation(text: str) -> str:
    """One observation in few words; what is not understood is a failure."""
    if found := ROOM.match(text):
        seen = things_in(text.split("You also see:")[0])[:LIMIT]
        return f"{short(found.group(1))} see {_list(seen)}"
    if text.startswith("In your inventory"):
        return f"hold {_list(things_in(text))}"
    if found := READS.search(text):
        return f"reads {temperature_word(int(found.group(1)))}"
    if text.startswith("Ambiguous"):
        return "which"
    return "ok" if text.startswith(_DONE) else "fail"


def _list(names: list[str]) -> str:
    return " ".join(short(name) for name in names) or "nothing"


def compact_action(command: str) -> str:
    """What a small model says for a command."""
    if command in _PLAIN:
        return _PLAIN[command]
    for form, verb in _FORMS:
        if found := form.fullmatch(command):
            return " ".join([verb, *(short(name) for name in found.groups())])
    return " ".join(re.findall(r"[a-z]+", command.lower()))


def full_action(response: str) -> str:
    """The command that a response stands for; a response that is none stays as it is, and the game refuses it."""
    words = response.split()
    for command, word in _PLAIN.items():
        if words == [word]:
            return command
    if words and words[0] in _COMMANDS:
        form = _COMMANDS[words[0]]
        if form.count("{}") == len(words) - 1 and all(word in FULL for word in words[1:]):
            return form.format(*(FULL[word] for word in words[1:]))
    return response.strip()


class CompactStyle:
    """See the module: goal and first room, then one short line a turn."""

    def first(self, observation: Observation) -> str:
        return f"{compact_goal(observation.goal)} {compact_observation(observation.text)}"

    def follow(self, action: str, step: Step) -> str:
        return compact_observation(step.text)

    def action(self, response: str, allowed: tuple[str, ...]) -> str:
        return full_action(response)

    def response(self, action: str, allowed: tuple[str, ...]) -> str:
        return compact_action(action)
