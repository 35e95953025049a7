"""Generated ALFWorld games: the same everywhere, all task types, solvable on the real engine, no game in two splits."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
from typing import Any

import pytest

pytest.importorskip("alfworld")

from divopd.envs.alfworld.generate import TASK_TYPES, GameSize, entity_names, game_hash, generate_game, task_type_of
from divopd.envs.base import EnvError

_DIGEST = (
    "import hashlib, json; from divopd.envs.alfworld.generate import generate_game as g; "
    "print(hashlib.sha256(json.dumps([g(f'gen/eval/{i}') for i in range(12)]).encode()).hexdigest())"
)


def _digest() -> str:
    games = [generate_game(f"gen/eval/{i}") for i in range(12)]
    return hashlib.sha256(json.dumps(games).encode()).hexdigest()


def _other_process(hash_seed: str) -> str:
    env = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    return subprocess.run([sys.executable, "-c", _DIGEST], env=env, capture_output=True, text=True, check=True).stdout


@pytest.fixture(scope="module")
def engine() -> Any:
    """The stock engine, built once: each new one copies the planner library."""
    textworld = pytest.importorskip("textworld")
    pytest.importorskip("fast_downward")
    from alfworld.agents.environment.alfred_tw_env import AlfredDemangler
    from textworld.envs.pddl import PddlEnv

    return AlfredDemangler(PddlEnv(textworld.EnvInfos(won=True, admissible_commands=True)))


def test_same_game_in_every_process_and_hash_seed() -> None:
    assert {_digest(), _other_process("0").strip(), _other_process("4711").strip()} == {_digest()}


def test_all_task_types_in_turn_with_their_tools() -> None:
    assert [task_type_of(f"gen/train/{i}") for i in range(6)] == list(TASK_TYPES)
    needs = {"clean": "SinkBasin_bar|Sink_bar", "heat": "Microwave_bar", "cool": "Fridge_bar"}
    for i in range(60):
        game = generate_game(f"gen/train/{i}")
        assert set(game) == {
            "pddl_domain", "grammar", "pddl_problem", "solvable", "walkthrough", "task_type", "task"
        }  # fmt: skip
        assert f"Your task is to: {game['task']}" in game["grammar"]
        tool = needs.get(game["task_type"].split("_")[1], r"toggleable DeskLamp" if "look" in game["task_type"] else "")
        assert re.search(tool, game["pddl_problem"])


def test_rooms_keep_to_their_size_and_names() -> None:
    size = GameSize(receptacles=(6, 7), objects=(8, 9), max_same=2, max_number=3)
    known = set(entity_names(size))
    for i in range(120):
        game = generate_game(f"gen/train/{i}", size)
        problem = game["pddl_problem"].split("(:goal")[0]
        spots = re.findall(r"receptacleAtLocation \S+ (\S+)\)", problem)
        assert 6 <= len(spots) <= 7 and len(set(spots)) == len(spots)
        assert len(re.findall(r"inReceptacle ", problem)) <= 9
        assert set(re.findall(r"\b[a-z]+ \d+", " ".join(game["walkthrough"]))) <= known


def test_shared_spots_only_on_request() -> None:
    problem = generate_game("gen/train/0", GameSize(shared_spots=True))["pddl_problem"]
    spots = re.findall(r"receptacleAtLocation \S+ (\S+)\)", problem)
    assert len(set(spots)) < len(spots)


def test_no_game_in_two_splits() -> None:
    hashes = [game_hash(generate_game(f"gen/{split}/{i}")) for split in ("train", "eval", "cold") for i in range(700)]
    assert len(set(hashes)) == len(hashes)


def test_another_size_is_another_stream() -> None:
    other = generate_game("gen/train/1", GameSize(objects=(10, 13)))
    assert game_hash(generate_game("gen/train/1")) != game_hash(other)


@pytest.mark.parametrize("task_id", ["gen/train", "gen/train/-1", "gen/train/01", "train/3", "gen/a b/3"])
def test_malformed_id_is_named(task_id: str) -> None:
    with pytest.raises(EnvError, match="gen/<split>/<index>"):
        generate_game(task_id)


def test_impossible_sizes_are_refused() -> None:
    with pytest.raises(ValueError, match="receptacles"):
        GameSize(receptacles=(3, 2))
    with pytest.raises(ValueError, match="max_same"):
        GameSize(max_same=5, max_number=4)


@pytest.mark.parametrize("index", range(6))
def test_walkthrough_wins_on_the_real_engine(engine: Any, index: int) -> None:
    game = generate_game(f"gen/eval/{index}", GameSize(shared_spots=index % 2 == 1))
    engine.load(game)
    state = engine.reset()
    assert game["task"] in state.feedback
    for command in game["walkthrough"]:
        assert not state["won"]
        assert command in state["admissible_commands"]
        state, _, _ = engine.step(command)
    assert state["won"]
