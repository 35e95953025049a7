"""ScienceWorld's seam: what the suite, the recipe and the settings get from plugin.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from divopd.config import EnvConfig
from divopd.envs.base import EnvError
from divopd.envs.registry import make_envs, plugin, train_tasks
from divopd.envs.scienceworld.novice import Novice
from divopd.envs.scienceworld.sketch import SketchEnv, draw_world
from divopd.envs.scienceworld.split import short_split
from divopd.seeds import rng
from divopd.suite import read_setting

ROOT = Path(__file__).resolve().parent.parent.parent
SETTINGS = ROOT / "experiments" / "settings"


def test_sketches_are_another_source() -> None:
    config = EnvConfig(name="scienceworld", source="sketch", train_tasks="clone/0:3")
    envs = make_envs(config, 2)
    assert all(isinstance(env, SketchEnv) for env in envs)
    first, second = (env.reset("clone/1") for env in envs)
    assert first == second != envs[0].reset("clone/2")
    assert train_tasks(config) == ["clone/0", "clone/1", "clone/2"]
    with pytest.raises(EnvError, match="named like clone/17"):
        envs[0].reset("find-animal")


def test_drawn_worlds_are_of_all_kinds_and_in_order() -> None:
    worlds = [draw_world(rng("plugin", i)) for i in range(200)]
    kinds = {
        (world.wanted.kind, world.wanted.what if world.wanted.kind == "find" else world.wanted.ends) for world in worlds
    }
    assert len(kinds) == 4 + 3 + 1
    for world in worlds:
        wanted = world.wanted
        for box in (wanted.box, wanted.other_box):
            assert not box or sum(things.count(box) for things in world.rooms.values()) == 1
            assert not box or box in world.rooms[wanted.box_room]
        assert wanted.kind != "measure" or world.degrees != wanted.bound


def test_splits_by_name() -> None:
    config = EnvConfig(name="scienceworld", train_tasks="short-train")
    assert train_tasks(config) == short_split()[0]


def test_players_take_four_habits_or_none() -> None:
    players = plugin("scienceworld").players([0.1, 0.2, 0.3, 0.4])
    novice = players["novice"]()
    assert isinstance(novice, Novice)
    assert (novice.wander, novice.forget, novice.stall, novice.guess) == (0.1, 0.2, 0.3, 0.4)
    assert set(plugin("scienceworld").players(())) == {"expert", "novice"}


def test_all_words_are_distinct_and_letters() -> None:
    words, entities = plugin("scienceworld").words()
    assert entities == [] and len(set(words)) == len(words)
    assert all(word.isalpha() and word.islower() for word in words)


@pytest.mark.parametrize(
    ("name", "cap", "reported", "target"),
    [
        ("0.5m", 4, {}, None),
        ("2m", 5, {}, None),
        ("qwen2.5-1.5b", 4, {"student_initial_success": 21.48, "teacher_success": 93.75}, 0.65),
        ("qwen2.5-3b", 5, {"student_initial_success": 45.31, "teacher_success": 93.75}, 0.85),
    ],
)
def test_settings_hold_the_paper_s_numbers(
    name: str, cap: int, reported: dict[str, float], target: float | None
) -> None:
    setting = read_setting(SETTINGS / f"scienceworld-{name}.yaml")
    assert (setting.cap, setting.reported, setting.config.get("target")) == (cap, reported, target)
    env = EnvConfig.model_validate(setting.config["env"])
    assert env.max_turns == (30 if reported else 20)
    assert len(train_tasks(env.model_copy(update={"train_tasks": str(ROOT / env.train_tasks)}))) >= 192
    assert setting.config.get("evaluation", {"episodes": 256})["episodes"] == 256
