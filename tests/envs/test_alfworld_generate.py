"""Generated ALFWorld games: the same everywhere, all task types, solvable on the real engine, no game in two splits."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("alfworld")

from divopd.cloning.recipe import read_recipe
from divopd.config import EnvConfig
from divopd.envs.alfworld.generate import TASK_TYPES, GameSize, entity_names, game_hash, generate_game, task_type_of
from divopd.envs.base import EnvError
from divopd.envs.registry import read_panel, train_tasks
from divopd.suite import load_suite, read_setting

ROOT = Path(__file__).resolve().parent.parent.parent
PANEL = "experiments/panels/alfworld_eval.txt"
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


@pytest.fixture(scope="module")
def tasks_in_use() -> dict[str, list[str]]:
    """Generated tasks by what they are for, as recipes, settings, suites and panels name them."""
    experiments = ROOT / "experiments"
    recipes = [read_recipe(experiments / "models" / "alfworld.yaml")]
    cloned = [
        recipe.env.model_copy(update={"train_tasks": stage.tasks})
        for recipe in recipes
        for model in recipe.models.values()
        for stage in model.stages
        if stage.tasks
    ]
    used = [EnvConfig()]
    used += [EnvConfig(**read_setting(path).config["env"]) for path in (experiments / "settings").glob("*.yaml")]
    used += [cell.env for path in experiments.glob("*.yaml") for cell in load_suite(path)]
    generated = [env for env in used if (env.name, env.source) == ("alfworld", "generated")]
    assert cloned and all(not env.size for env in [*cloned, *generated])  # of one size, as hashed below
    assert {env.eval_panel for env in generated} == {PANEL}
    groups = {"cloning": [train_tasks(env) for env in cloned], "training": [train_tasks(env) for env in generated]}
    groups["panel"] = [read_panel(ROOT / PANEL)]
    return {name: sorted({task for tasks in lists for task in tasks}) for name, lists in groups.items()}


def test_no_game_serves_two_purposes(tasks_in_use: dict[str, list[str]]) -> None:
    """Cloning, training and evaluation share no task, and no room and goal under two names."""
    assert sum(map(len, tasks_in_use.values())) == len(set().union(*tasks_in_use.values()))
    # the panel whole; of thousands of others every fifth, each task type among them
    every = {"cloning": 5, "training": 5, "panel": 1}
    hashes = {n: {game_hash(generate_game(t)) for t in tasks[:: every[n]]} for n, tasks in tasks_in_use.items()}
    assert sum(map(len, hashes.values())) == len(set().union(*hashes.values()))
    assert len(hashes["panel"]) == len(tasks_in_use["panel"])


def test_the_panel_is_the_one_that_was_frozen() -> None:
    text = (ROOT / PANEL).read_text()
    [frozen] = re.findall(r"^# games-sha256 ([0-9a-f]{64})$", text, flags=re.MULTILINE)
    games = [game_hash(generate_game(task)) for task in read_panel(ROOT / PANEL)]  # in its order
    assert hashlib.sha256("\n".join(games).encode()).hexdigest() == frozen


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
