"""An expert for ScienceWorld's short tasks that acts on observations alone, as a calibrated distribution over commands.

It sees the goal, the observations, and the actions that anyone executed; so it can label states that a weaker player
reached. It knows where kinds of things live and how long animals do (knowledge.py), not what this world holds.
"""

from __future__ import annotations

from collections.abc import Sequence

from divopd.envs.scienceworld.expert_beliefs import HELD, Beliefs, Wanted, parse_goal
from divopd.envs.scienceworld.knowledge import (
    BY_LIFE_SPAN,
    HOME,
    ROOMS,
    STAGES,
    THERMOMETER,
    suits,
)

Choice = tuple[str, list[str]]
"""The preferred command and the other sensible ones."""


class Expert:
    """Label any state of an episode: `reset`, then `observe` each executed action, and ask for a distribution.

    The preferred command gets what is left after `spread`, shared by the other sensible commands (if there are any),
    and `noise`, shared by all harmless ones. What may end the episode (focusing) is never noise.
    """

    def __init__(self, spread: float = 0.17, noise: float = 0.03) -> None:
        if spread < 0 or noise < 0 or spread + noise >= 0.5:
            raise ValueError(f"spread and noise must be >= 0 and add up to less than 0.5, got {spread} and {noise}")
        self.spread, self.noise = spread, noise
        self._wanted: Wanted | None = None
        self._beliefs: Beliefs | None = None

    def reset(self, goal: str, observation: str) -> None:
        """Start an episode. Raises `EnvError` if the goal or the first observation cannot be understood."""
        self._wanted = parse_goal(goal)
        self._beliefs = Beliefs.start(self._wanted, observation)

    def observe(self, action: str, observation: str) -> None:
        """Take in an executed action, whoever chose it, and what the game answered."""
        self._state()[1].update(action, observation)

    def distribution(self, allowed: tuple[str, ...]) -> dict[str, float]:
        """Probability of each command worth a thought; with a list of allowed commands, of those on it alone."""
        preferred, others = self.choices()
        harmless = [f"teleport to {room}" for room in ROOMS] + ["look around", "inventory"]
        probability = dict.fromkeys([preferred, *others, *harmless], 0.0)
        for command in harmless:
            probability[command] += self.noise / len(harmless)
        for command in others:
            probability[command] += self.spread / len(others)
        probability[preferred] += 1 - self.noise - (self.spread if others else 0)
        if allowed:
            probability = {command: mass for command, mass in probability.items() if command in allowed} or probability
            total = sum(probability.values())
            probability = {command: mass / total for command, mass in probability.items()}
        return probability

    def choices(self) -> Choice:
        """The preferred command and the other sensible ones, which do not hold the preferred one."""
        wanted, beliefs = self._state()
        if beliefs.asked:
            return "0", []
        if wanted.kind == "find":
            return _find(wanted, beliefs)
        return _measure(wanted, beliefs) if wanted.kind == "measure" else _live(wanted, beliefs)

    def _state(self) -> tuple[Wanted, Beliefs]:
        if self._wanted is None or self._beliefs is None:
            raise RuntimeError("the expert has no episode: call reset first")
        return self._wanted, self._beliefs


def go(room: str, beliefs: Beliefs) -> Choice:
    """Off to a room; others are the rooms not looked into yet."""
    rooms = [other for other in ROOMS if other not in (room, beliefs.room) and other not in beliefs.seen]
    return f"teleport to {room}", [f"teleport to {other}" for other in rooms]


def _search(rooms: Sequence[str], beliefs: Beliefs) -> Choice:
    """Look around in the first of these rooms that was not looked into yet, then in any, then once more here."""
    unseen = [room for room in (*rooms, *ROOMS) if room not in beliefs.seen]
    if beliefs.room in unseen and (beliefs.room in rooms or not any(room in rooms for room in unseen)):
        return "look around", []
    return go(unseen[0], beliefs) if unseen else ("look around", [])


def fetch(thing: str, beliefs: Beliefs) -> Choice:
    """Take a thing: from here, from the room where it was seen, or wherever it may be."""
    place = beliefs.place(thing)
    if place == beliefs.room:
        return f"pick up {thing}", []
    if place:
        return go(place, beliefs)
    return _search([], beliefs) if beliefs.counted else ("inventory", [])


def _put(thing: str, box: str, box_room: str, beliefs: Beliefs) -> Choice:
    if beliefs.room == box_room:
        return f"move {thing} to {box}", []
    return go(box_room, beliefs)


def _find(wanted: Wanted, beliefs: Beliefs) -> Choice:
    """Focus on the first thing that suits, take it, put it into the box."""
    if beliefs.focused:
        thing = now_called(beliefs.focused[0], beliefs)
        place = beliefs.place(thing)
        if place == HELD or (place == beliefs.room == wanted.box_room):
            return _put(thing, wanted.box, wanted.box_room, beliefs)
        return fetch(thing, beliefs)
    candidates = [thing for thing in beliefs.here() if suits(thing, wanted.what)]
    candidates.sort(key=beliefs.refused.count)
    if candidates:
        return f"focus on {candidates[0]}", [f"focus on {thing}" for thing in candidates[1:]]
    held = [thing for thing, place in beliefs.at.items() if place == HELD and suits(thing, wanted.what)]
    if held:
        return f"focus on {held[0]}", [f"focus on {thing}" for thing in held[1:]]
    seen = [room for room, things in beliefs.seen.items() if any(suits(thing, wanted.what) for thing in things)]
    return go(seen[-1], beliefs) if seen else _search(HOME.get(wanted.what, (wanted.box_room,)), beliefs)


def now_called(thing: str, beliefs: Beliefs) -> str:
    """The name a focused animal goes by: that of another of its stages, once that was seen in its stead."""
    animal = STAGES.get(thing, thing)
    names = [animal, *(stage for stage, grown in STAGES.items() if grown == animal)]
    return next((name for name in names if name in beliefs.at), thing)


def _live(wanted: Wanted, beliefs: Beliefs) -> Choice:
    """Look around outside, then focus on the animal whose life span is asked for."""
    if "outside" not in beliefs.seen or beliefs.room != "outside":
        return _search(["outside"], beliefs) if beliefs.room == "outside" else go("outside", beliefs)
    animals = [animal for animal in BY_LIFE_SPAN if animal in beliefs.here()]
    end = wanted.ends[min(len(beliefs.focused), len(wanted.ends) - 1)]
    if not animals:
        return "look around", []
    return f"focus on {animals[0 if end == 'longest' else -1]}", []


def _measure(wanted: Wanted, beliefs: Beliefs) -> Choice:
    """Thermometer, substance, measure, box: each taken and focused on before the next."""
    for thing in (THERMOMETER, wanted.what):
        if beliefs.place(thing) != HELD:
            return fetch(thing, beliefs)
        if thing not in beliefs.focused:
            return f"focus on {thing}", []
    if beliefs.reads is None:
        return f"use {THERMOMETER} on {wanted.what}", []
    box = wanted.box if beliefs.reads > wanted.bound else wanted.other_box
    return _put(wanted.what, box, wanted.box_room, beliefs)
