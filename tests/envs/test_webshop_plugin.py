"""The seam of WebShop: options, tasks, words, and the official files where they are."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from conftest import OFFICIAL
from divopd.config import EnvConfig
from divopd.envs.base import EnvError, TextEnv
from divopd.envs.registry import make_envs, train_tasks
from divopd.envs.webshop import plugin
from divopd.suite import read_yaml

ROOT = Path(__file__).resolve().parents[2]


def test_makes_environments_that_share_a_catalogue():
    first, second = make_envs(EnvConfig(name="webshop"), 2)
    assert isinstance(first, TextEnv) and first.catalog is second.catalog  # type: ignore[attr-defined]


def test_tasks_of_a_split_and_of_a_range():
    config = EnvConfig(name="webshop", options={"per_kind": 25, "wishes": 1})
    assert len(plugin.tasks(config, "gen/eval")) == 160 and len(plugin.tasks(config, "gen/clone")) == 140
    assert train_tasks(config.model_copy(update={"train_tasks": "gen/train/3:5"})) == ["gen/train/3", "gen/train/4"]
    with pytest.raises(EnvError, match="gen/eval, gen/train, gen/clone"):
        plugin.tasks(config, "dev")


@pytest.mark.parametrize("options", [{"per_kind": 12}, {"goals": "mine"}, {"size": 3}])
def test_options_are_checked(options):
    with pytest.raises(ValidationError):
        EnvConfig(name="webshop", options=options)


def test_words_are_distinct_and_few():
    words, names = plugin.words()
    assert len(set(words)) == len(words) < 300 and names == []


def test_players_take_four_habits():
    novice = plugin.players((0.1, 0.2, 0.3, 0.4))["novice"]()
    assert (novice.vague, novice.hasty, novice.wander, novice.careless) == (0.1, 0.2, 0.3, 0.4)  # type: ignore[attr-defined]
    assert plugin.players(())["novice"]().vague == 0.0  # type: ignore[attr-defined]


def test_missing_or_ambiguous_files_are_named(tmp_path):
    config = EnvConfig(name="webshop", source=str(tmp_path))
    with pytest.raises(EnvError, match="no such file: items_shuffle"):
        make_envs(config, 1)
    for name in ("items_shuffle.json", "items_shuffle_1000.json"):
        (tmp_path / name).write_text("[]")
    with pytest.raises(EnvError, match="2 such files"):
        plugin.make(config.model_copy(update={"options": {"limit": 7}}), 1)


def test_settings_are_the_papers():
    for scale in ("0.5m", "2m", "qwen2.5-3b", "qwen2.5-7b"):
        setting = read_yaml(ROOT / "experiments" / "settings" / f"webshop-{scale}.yaml")
        small = scale in ("0.5m", "qwen2.5-3b")
        assert setting["paper_setting"] == ("webshop-qwen2.5-3b" if small else "webshop-qwen2.5-7b")
        assert setting["cap"] == (5 if small else 4)
        assert setting["recovery"] == {"patience": 4, "max_turns": 5 if small else 4, "warmup_updates": 45}
        assert setting["env"]["max_turns"] == 15


@pytest.mark.skipif(not (OFFICIAL / "webshop").is_dir(), reason="the official products are not here")
def test_official_products():
    config = EnvConfig(name="webshop", source=str(OFFICIAL / "webshop"))
    env = make_envs(config, 1)[0]
    observation = env.reset("eval/0")
    assert observation.text.startswith("WebShop [SEP] Instruction:") and observation.allowed == ("search[<query>]",)
    assert env.step("search[console table]").allowed[1] == "click[next >]"
    tasks = set(train_tasks(config.model_copy(update={"train_tasks": "train"})))
    assert len(tasks) > 1000 and not tasks & {f"eval/{i}" for i in range(128)}
