"""ALFWorld on the fast engine: the stock engine's words, the same in every process, nothing left behind."""

from __future__ import annotations

import hashlib
import json
import lzma
import multiprocessing
import os
import subprocess
import sys
import tempfile
import tracemalloc
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from divopd.envs.alfworld import AlfworldEnv, GeneratedGames, OfficialGames, store, translate
from divopd.envs.alfworld.env import FastPlayer
from divopd.envs.alfworld.generate import GameSize, generate_game
from divopd.envs.alfworld.stock import StockPlayer
from divopd.envs.alfworld.store import WorldStore
from divopd.envs.base import EnvError, TextEnv

# Found, not imported: other processes import this file too, and most of them do not need the engine's packages.
missing = [name for name in ("alfworld", "textworld", "fast_downward") if find_spec(name) is None]
pytestmark = pytest.mark.skipif(bool(missing), reason=f"not installed: {missing}")

HERE = Path(__file__).resolve().parent
GOLDEN = json.loads((HERE / "golden" / "alfworld.json").read_text())
OFFICIAL = HERE.parents[2] / "shared" / "data" / "alfworld"
SIZES = {"default": GameSize(), "large": GameSize((12, 15), (18, 24), max_same=4, max_number=6, shared_spots=True)}
TINY = GameSize((7, 7), (10, 10))


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def env(cache: Path) -> AlfworldEnv:
    return AlfworldEnv(GeneratedGames(TINY), cache)


@pytest.fixture(scope="module")
def official(tmp_path_factory: pytest.TempPathFactory) -> OfficialGames:
    """The recorded official games in the official layout."""
    if not OFFICIAL.is_dir():
        pytest.skip("the official games are not beside the checkout")
    root = tmp_path_factory.mktemp("official")
    wanted = {entry["task"] for entry in GOLDEN["official"]}
    with lzma.open(OFFICIAL / "valid_seen.jsonl.xz", "rt") as lines:
        for row in (row for row in map(json.loads, lines) if row["path"] in wanted):
            grammar = (OFFICIAL / f"{row['grammar']}.txt").read_text().replace("@TASK@", row["task"])
            domain = (OFFICIAL / f"{row['domain']}.txt").read_text()
            path = root / row["path"] / "game.tw-pddl"
            path.parent.mkdir(parents=True)
            path.write_text(json.dumps({**row, "grammar": grammar, "pddl_domain": domain}))
    return OfficialGames(root)


def digest(text: str, commands: tuple[str, ...], won: bool) -> str:
    return hashlib.sha256(json.dumps([text, commands, won]).encode()).hexdigest()[:8]


def check_recorded(entry: dict[str, Any], game: Any, cache: Path) -> None:
    parts = [game["pddl_domain"], game["pddl_problem"], game["grammar"]]
    same = hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16] == entry["game"]
    assert same, "the generated game is another one now: run tests/envs/record_alfworld.py"
    player = FastPlayer(WorldStore(cache))
    text, commands = player.start(game)
    answers = [digest(text, commands, False)]
    for action in entry["actions"]:
        answers.append(digest(*player.act(action)))
    assert answers == entry["answers"]


def transcript(env: AlfworldEnv, task: str, turns: int = 12) -> str:
    """Everything that an episode of fixed choices shows."""
    observation = env.reset(task)
    shown: list[Any] = [observation.text, observation.goal, observation.allowed]
    allowed = observation.allowed
    for turn in range(turns):
        step = env.step(allowed[(7 * turn) % len(allowed)])
        allowed = step.allowed
        shown.append([step.text, step.reward, step.done, step.valid, step.progress, step.allowed])
    return hashlib.sha256(json.dumps(shown).encode()).hexdigest()


def child_transcripts(folder: str | None = None) -> list[str]:
    """What another process shows (called by name from there)."""
    env = AlfworldEnv(GeneratedGames(TINY), None if folder is None else Path(folder))
    return [transcript(env, f"gen/test/{index}") for index in range(3)]


# --- the stock engine's words ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", SIZES)
def test_recorded_transcripts_of_generated_games(size: str, cache: Path) -> None:
    for entry in GOLDEN[size]:
        check_recorded(entry, GeneratedGames(SIZES[size]).load(entry["task"]), cache)


@pytest.mark.parametrize("part", ["small", pytest.param("middle", marks=pytest.mark.slow)])
def test_recorded_transcripts_of_official_games(part: str, official: OfficialGames, cache: Path) -> None:
    """Of each task type the smallest game, and the one of middle size, which takes a second to translate."""
    for entry in GOLDEN["official"][part == "middle" :: 2]:
        check_recorded(entry, official.load(entry["task"]), cache)


def test_same_answers_as_the_stock_engine_live(cache: Path) -> None:
    game = GeneratedGames(TINY).load("gen/test/1")
    stock, fast = StockPlayer(), FastPlayer(WorldStore(cache))
    assert fast.start(game) == stock.start(game)
    for action in [*game["walkthrough"], "look", "inventory", "help", "nonsense", "Look"]:
        assert fast.act(action) == stock.act(action)


def test_a_task_that_is_not_plain_text_is_parsed_like_the_stock_engine_does() -> None:
    game = dict(GeneratedGames(TINY).load("gen/test/0"))
    game["grammar"] = game["grammar"].replace(game["task"], "put a \\u201cmug\\u201d (blue) in: shelf!")
    text, commands = FastPlayer(WorldStore()).start(game)
    assert "Your task is to: put a “mug” (blue) in: shelf!" in text
    assert (text, commands) == StockPlayer().start(game)


def test_official_tasks_are_sorted_and_solvable(official: OfficialGames) -> None:
    tasks = official.tasks("valid_seen")
    assert tasks == sorted(entry["task"] for entry in GOLDEN["official"])
    game = official.load(tasks[0])
    assert game["task_type"] == "look_at_obj_in_light" and game["task"].startswith(("look", "examine"))


# --- the protocol ----------------------------------------------------------------------------------------------------


def test_walkthrough_wins_once(env: AlfworldEnv) -> None:
    assert isinstance(env, TextEnv)
    for index in range(6):
        task = f"gen/test/{index}"
        game = env.source.load(task)
        observation = env.reset(task)
        assert observation.goal == game["task"]
        assert observation.text.startswith("You are in the middle of a room.")
        assert "task" not in observation.text and "Welcome" not in observation.text
        steps = [env.step(action) for action in game["walkthrough"]]
        assert [step.reward for step in steps] == [0.0] * (len(steps) - 1) + [1.0]
        assert [step.success for step in steps] == [step.done for step in steps] == [*[False] * (len(steps) - 1), True]
        assert all(step.valid and step.progress for step in steps)
        assert env.step("look").reward == 0.0


@pytest.mark.parametrize(
    "action", ["", " ", "Look", "LOOK", "go to", "go to mars 1", "look\nlook", "x" * 10_000, "{0}"]
)
def test_bad_actions_change_nothing(env: AlfworldEnv, action: str) -> None:
    allowed = env.reset("gen/test/0").allowed
    step = env.step(action)
    assert (step.text, step.valid, step.progress, step.allowed) == ("Nothing happens.", False, False, allowed)


def test_progress_is_lost_by_an_exact_repeat_that_changes_nothing(env: AlfworldEnv) -> None:
    first = env.reset("gen/test/0").allowed
    assert first == tuple(sorted(first)) and {"help", "inventory", "look"} <= set(first)
    place = next(command for command in first if command.startswith("go to"))
    asked = ["look", "look", "inventory", "look", " look ", place]
    assert [env.step(action).progress for action in asked] == [True, False, True, True, False, True]


def test_environments_of_a_process_share_loaded_games(tmp_path: Path) -> None:
    """Sixteen environments on one panel would else hold sixteen copies; their episodes stay apart."""
    first, second = (AlfworldEnv(GeneratedGames(TINY), tmp_path) for _ in range(2))
    start = first.reset("gen/test/0")
    for action in first.source.load("gen/test/0")["walkthrough"]:
        first.step(action)
    assert second.reset("gen/test/0") == start
    assert len(store.shared_store(tmp_path, 256)) == 1


def test_one_env_plays_many_games_and_reopens(env: AlfworldEnv) -> None:
    first = transcript(env, "gen/test/0")
    other = transcript(env, "gen/test/1")
    env.close()
    with pytest.raises(EnvError, match="reset"):
        env.step("look")
    assert (transcript(env, "gen/test/0"), transcript(env, "gen/test/1")) == (first, other)
    with pytest.raises(EnvError):
        env.reset("gen/nowhere")
    with pytest.raises(EnvError, match="reset"):  # a failed reset leaves no old game running
        env.step("look")


# --- the same everywhere ---------------------------------------------------------------------------------------------


def started(seed: str, folder: Path | None) -> subprocess.Popen[str]:
    """Another interpreter that prints what its episodes show."""
    path = os.pathsep.join([str(HERE), *(part for part in sys.path if part)])
    code = "import sys, test_alfworld as t; print(*t.child_transcripts(*sys.argv[1:]))"
    command = [sys.executable, "-c", code, *([] if folder is None else [str(folder)])]
    environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": path}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)


def test_hash_seed_does_not_matter_nor_do_two_processes_on_one_empty_cache(env: AlfworldEnv, tmp_path: Path) -> None:
    expected = [transcript(env, f"gen/test/{index}") for index in range(3)]
    children = [started("0", tmp_path), started("1", tmp_path)]
    for child in children:
        assert child.communicate()[0].split() == expected
    assert len(list(tmp_path.iterdir())) == 4  # three games, one grammar, no unfinished file
    assert started("2", tmp_path).communicate()[0].split() == expected  # from disk alone


def test_a_forked_process_plays_on(env: AlfworldEnv) -> None:
    expected = transcript(env, "gen/test/0")
    context = multiprocessing.get_context("fork")
    answers = context.SimpleQueue()
    child = context.Process(target=lambda: answers.put(transcript(env, "gen/test/0")))
    child.start()
    assert answers.get() == expected
    child.join()
    assert transcript(env, "gen/test/0") == expected


# --- nothing left behind ---------------------------------------------------------------------------------------------


def test_argv_and_stdout_survive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["mine", "--flag"])
    argv, stdout = sys.argv, sys.stdout
    FastPlayer(WorldStore()).start(generate_game("gen/test/0", TINY))
    with pytest.raises(EnvError, match="translated"):
        translate.translate({"pddl_domain": "(define (domain d))", "pddl_problem": "(define"})
    assert sys.argv is argv and sys.stdout is stdout


def test_no_growth_over_200_games(cache: Path) -> None:
    games = [generate_game(f"gen/growth/{index}", TINY) for index in range(10)]
    worlds = WorldStore(cache, memory=4)
    player = FastPlayer(worlds)

    def play(count: int) -> None:
        for index in range(count):
            player.start(games[index % len(games)])
            for action in games[index % len(games)]["walkthrough"][:2]:
                player.act(action)

    play(20)
    files = set(os.listdir(tempfile.gettempdir()))
    tracemalloc.start()
    try:
        play(20)
        before, _ = tracemalloc.get_traced_memory()
        play(200)
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < 500_000
    assert len(worlds) == 4
    assert not [name for name in set(os.listdir(tempfile.gettempdir())) - files if "downward" in name]


@pytest.mark.parametrize("damage", [b"", b"nonsense", None])
def test_damaged_entries_are_made_again(damage: bytes | None, tmp_path: Path) -> None:
    expected = transcript(AlfworldEnv(GeneratedGames(TINY), tmp_path), "gen/test/0")
    whole = {path: path.read_bytes() for path in tmp_path.iterdir()}
    assert len(whole) == 2  # the game and the grammar
    for path, content in whole.items():
        path.write_bytes(content[: len(content) // 2] if damage is None else damage)
    store.shared_store.cache_clear()
    assert transcript(AlfworldEnv(GeneratedGames(TINY), tmp_path), "gen/test/0") == expected
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == whole
