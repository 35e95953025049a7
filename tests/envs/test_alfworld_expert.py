"""The expert wins generated games from observations alone, from any state, with a calibrated distribution.

Most episodes run on a small model of the rooms, 100 times faster than the engine; `test_room_model_is_the_engine`
checks that it shows the same commands, texts and outcomes.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from typing import Any

import pytest

pytest.importorskip("alfworld")

from divopd.envs.alfworld.beliefs import Beliefs, parse_goal, type_of
from divopd.envs.alfworld.expert import Expert
from divopd.envs.alfworld.generate import GameSize, generate_game
from divopd.envs.base import EnvError

_PROCESS = {
    "clean": ("sinkbasin", "cleanable", "clean"),
    "heat": ("microwave", "heatable", "hot"),
    "cool": ("fridge", "coolable", "cool"),
}


class Room:
    """A generated game read from its PDDL problem and played by the domain's rules."""

    def __init__(self, game: dict[str, Any]) -> None:
        init, self.pddl_goal = game["pddl_problem"].split("(:init")[1].split("(:goal")
        self.facts = [tuple(fact.split()) for fact in re.findall(r"\(([^()]+)\)", init)]
        receptacles, objects = self._names("receptacleType"), self._names("objectType")
        self.order = list(receptacles.values())
        self.rank = {name: ident.lower() for ident, name in objects.items()}
        self.spot = {receptacles[f[1]]: f[2] for f in self.facts if f[0] == "receptacleAtLocation"}
        self.inside = {objects[f[1]]: receptacles[f[2]] for f in self.facts if f[0] == "inReceptacle"}
        self.can = {(f[1][:-4].lower(), f[2][:-4].lower()) for f in self.facts if f[0] == "canContain"}
        names = {**receptacles, **objects}
        self.has = {(f[0], names[f[1]]) for f in self.facts if len(f) == 2}
        self.opened: set[str] = set()
        self.toggled: set[str] = set()
        self.states: dict[str, set[str]] = {name: set() for name in self.inside}
        self.here, self.holding = "loc_bar_00", ""
        self.task_type = game["task_type"]
        self.text = f"You are in the middle of a room. Looking quickly around you, you see {self._list(self.order)}."

    def _names(self, fact: str) -> dict[str, str]:
        kinds = {f[1]: f[2][:-4].lower() for f in self.facts if f[0] == fact}
        left = Counter(kinds.values())
        names = {}
        for ident in sorted(kinds, key=str.lower):
            names[ident] = f"{kinds[ident]} {left[kinds[ident]]}"
            left[kinds[ident]] -= 1
        return names

    @staticmethod
    def _list(names: list[str]) -> str:
        items = [f"a {name}" for name in names] or ["nothing"]
        return items[0] if len(items) == 1 else f"{', '.join(items[:-1])}, and {items[-1]}"

    def _lying(self, receptacle: str) -> list[str]:
        return sorted((o for o, r in self.inside.items() if r == receptacle), key=self.rank.__getitem__)

    def _shut(self, receptacle: str) -> bool:
        return ("openable", receptacle) in self.has and receptacle not in self.opened

    def _show(self, receptacle: str) -> str:
        if self._shut(receptacle):
            return f"The {receptacle} is closed."
        start = f"The {receptacle} is open. In it" if receptacle in self.opened else f"On the {receptacle}"
        return f"{start}, you see {self._list(self._lying(receptacle))}."

    def allowed(self) -> tuple[str, ...]:
        held = self.holding
        commands = {"help", "inventory", "look", *([f"examine {held}"] if held else [])}
        for r in self.order:
            if self.spot[r] != self.here:
                commands.add(f"go to {r}")
                continue
            commands.add(f"examine {r}")
            if ("openable", r) in self.has:
                commands.add(f"{'open' if self._shut(r) else 'close'} {r}")
            lying = self._lying(r)
            commands.update(f"use {o}" for o in lying if ("toggleable", o) in self.has)
            if not held and not self._shut(r):
                commands.update(f"take {o} from {r}" for o in lying if ("pickupable", o) in self.has)
            if held and not self._shut(r) and (type_of(r), type_of(held)) in self.can:
                commands.add(f"move {held} to {r}")
            for verb, (tool, able, _) in _PROCESS.items():
                if held and type_of(r) == tool and (able, held) in self.has:
                    commands.add(f"{verb} {held} with {r}")
        return tuple(sorted(commands))

    def step(self, command: str) -> str:
        if command not in self.allowed():
            return "Nothing happens."
        verb = command.split()[0]
        first, second = [*re.findall(r"[a-z]+ \d+", command), "", ""][:2]
        if verb == "go":
            self.here = self.spot[first]
            return f"You arrive at {first}. {self._show(first)}"
        if verb == "open":
            self.opened.add(first)
            return f"You open the {first}. {self._show(first)}"
        if verb == "close":
            self.opened.discard(first)
            return f"You close the {first}."
        if verb == "take":
            self.holding = first
            del self.inside[first]
            return f"You pick up the {first} from the {second}."
        if verb == "move":
            self.inside[first], self.holding = second, ""
            return f"You move the {first} to the {second}."
        if verb == "use":
            self.toggled.add(first)
            return f"You turn on the {first}."
        if verb in _PROCESS:
            self.states[first].add(_PROCESS[verb][2])
            self.states[first].discard({"heat": "cool", "cool": "hot"}.get(verb, ""))
            return f"You {verb} the {first} using the {second}."
        if verb == "examine" and first in self.order:
            return self._show(first)
        return "(not modelled)"

    def won(self) -> bool:
        kind = re.findall(r"objectType \?o1? (\w+)Type", self.pddl_goal)[0].lower()
        if self.task_type == "look_at_obj_in_light":
            lit = any(self.spot[self.inside[lamp]] == self.here for lamp in self.toggled)
            return lit and type_of(self.holding) == kind
        dest = re.findall(r"receptacleType \?r (\w+)Type", self.pddl_goal)[0].lower()
        state = _PROCESS.get(self.task_type.split("_")[1], ("", "", ""))[2]
        ready = [o for o, states in self.states.items() if type_of(o) == kind and (not state or state in states)]
        counts = Counter(self.inside[o] for o in ready if o in self.inside and type_of(self.inside[o]) == dest)
        return max(counts.values(), default=0) >= (2 if "two" in self.task_type else 1)


def _start(index: int, size: GameSize, **options: float) -> tuple[Room, Expert]:
    game = generate_game(f"gen/check/{index}", size)
    room, expert = Room(game), Expert(**options)
    expert.reset(game["task"], room.text)
    return room, expert


def _play(index: int, sample: bool, foolish: int = 0, size: GameSize | None = None) -> tuple[bool, int]:
    """Success and turns within 30 turns after `foolish` random ones."""
    rng = random.Random(index)
    room, expert = _start(index, size or GameSize())
    for turn in range(foolish + 30):
        allowed = room.allowed()
        action = rng.choice(allowed) if turn < foolish else expert.act(rng if sample else None, allowed)
        expert.observe(action, room.step(action))
        if room.won():
            return True, turn + 1 - foolish
    return False, 30


@pytest.mark.parametrize(
    ("sample", "foolish", "shared"),
    [(False, 0, False), (True, 0, False), (False, 10, False), (True, 40, False), (False, 0, True), (True, 10, True)],
)
def test_expert_wins_within_thirty_turns(sample: bool, foolish: int, shared: bool) -> None:
    results = [_play(i, sample, foolish, GameSize(shared_spots=shared)) for i in range(120)]
    assert sum(won for won, _ in results) >= 117
    assert sum(turns for _, turns in results) / len(results) <= 15


def test_room_model_is_the_engine() -> None:
    pytest.importorskip("fast_downward")
    from divopd.envs.alfworld.env import AlfworldEnv
    from divopd.envs.alfworld.games import GeneratedGames

    env = AlfworldEnv(GeneratedGames())
    for index in range(6):
        rng = random.Random(index)
        room, expert = _start(index, GameSize())
        seen = env.reset(f"gen/check/{index}")
        assert (seen.text, seen.allowed) == (room.text, room.allowed())
        won = False
        while not won:
            allowed = room.allowed()
            action = "take moon 1" if rng.random() < 0.1 else expert.act(rng, allowed)
            text, step = room.step(action), env.step(action)
            assert text in (step.text, "(not modelled)")
            won = room.won()
            assert (step.success, step.allowed) == (won, room.allowed())
            expert.observe(action, step.text)
    env.close()


def test_distribution_is_calibrated() -> None:
    room, expert = _start(0, GameSize())
    allowed = room.allowed()
    probability = expert.distribution(allowed)
    assert tuple(probability) == allowed
    assert sum(probability.values()) == pytest.approx(1)
    assert min(probability.values()) == pytest.approx(0.03 / len(allowed))
    listed = [f"go to {r}" for r in room.order]
    assert max(probability, key=probability.__getitem__) == listed[0]
    assert probability[listed[0]] == pytest.approx(0.80 + 0.03 / len(allowed))
    assert sum(probability[c] for c in listed[1:]) == pytest.approx(0.17 + 0.03 * (len(listed) - 1) / len(allowed))


def test_without_alternative_the_preferred_command_gets_their_share() -> None:
    expert = Expert(spread=0.2, noise=0.1)
    expert.reset("put a mug in desk.", "You see around: you see a desk 1, and a drawer 1.")
    expert.observe("go to drawer 1", "You arrive at drawer 1. The drawer 1 is closed.")
    probability = expert.distribution(("go to desk 1", "open drawer 1"))
    assert probability == pytest.approx({"go to desk 1": 0.05, "open drawer 1": 0.95})


def test_labels_depend_on_observations_only() -> None:
    """Two experts that were shown the same texts agree, though one saw other rooms and other actions before."""
    fresh, used = Expert(), Expert()
    used.reset("put a pen in bed.", "you see a bed 1.")
    used.observe("go to bed 1", "You arrive at bed 1. On the bed 1, you see a pen 1.")
    for index in range(30):
        room, rng = Room(generate_game(f"gen/check/{index}")), random.Random(index)
        for expert in (fresh, used):
            expert.reset(generate_game(f"gen/check/{index}")["task"], room.text)
        for _ in range(12):
            action = rng.choice(room.allowed())
            text = room.step(action)
            fresh.observe(action, text)
            used.observe("anything", text)
            assert fresh.distribution(room.allowed()) == used.distribution(room.allowed())


def test_wrong_object_is_put_down_and_failed_actions_change_nothing() -> None:
    expert = Expert()
    expert.reset("heat some egg and put it in fridge.", "you see a fridge 1, a microwave 1, and a shelf 1.")
    expert.observe("go to shelf 1", "You arrive at shelf 1. On the shelf 1, you see a egg 1, and a mug 1.")
    at_shelf = ("go to fridge 1", "go to microwave 1", "take egg 1 from shelf 1", "take mug 1 from shelf 1")
    assert expert.act(None, at_shelf) == "take egg 1 from shelf 1"
    expert.observe("take mug 1 from shelf 1", "You pick up the mug 1 from the shelf 1.")
    assert expert.act(None, ("go to fridge 1", "move mug 1 to shelf 1")) == "move mug 1 to shelf 1"
    expert.observe("move mug 1 to shelf 1", "Nothing happens.")
    assert expert.act(None, ("go to fridge 1", "move mug 1 to shelf 1")) == "move mug 1 to shelf 1"


def test_goal_texts() -> None:
    assert (parse_goal("put some mug on desk.").kind, parse_goal("clean some egg and put it in fridge").tool) == (
        "place",
        "sinkbasin",
    )
    assert parse_goal("find two pen and put them in drawer.").kind == "two"
    with pytest.raises(EnvError, match="templates"):
        parse_goal("make me happy")
    with pytest.raises(EnvError, match="listing"):
        Beliefs.from_listing("It is dark.")
    with pytest.raises(RuntimeError, match="reset"):
        Expert().distribution(("look",))
    with pytest.raises(ValueError, match="spread"):
        Expert(spread=0.6)
