"""Looking at an episode: by hand, and with a checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from divopd import play
from divopd.config import EnvConfig, PolicyConfig, PromptConfig
from divopd.envs.alfworld.expert import Expert
from divopd.envs.registry import make_envs
from divopd.suite import SuiteError

TASK = "gen/eval/0"


def typed(lines: Iterator[str]) -> Callable[[str], str]:
    def ask(prompt: str) -> str:
        for line in lines:
            return line
        raise EOFError

    return ask


def solution(env: EnvConfig) -> Iterator[str]:
    """What an expert types, as numbers of the list that stands on the screen."""
    [game], expert = make_envs(env, 1), Expert()
    seen = game.reset(TASK)
    expert.reset(seen.goal, seen.text)
    allowed = seen.allowed
    while True:
        action = expert.act(None, allowed)
        step = game.step(action)
        expert.observe(action, step.text)
        yield str(allowed.index(action) + 1)
        allowed = step.allowed


def test_an_episode_won_by_hand(game_cache: Path) -> None:
    env, said = EnvConfig(cache_dir=str(game_cache)), list[str]()
    assert play.by_hand(env, TASK, said.append, typed(solution(env)))
    assert said[0].startswith(f"task {TASK}: put some candle on countertop.")
    assert "success after" in said[-1] and "reward 1" in said[-1]


def test_typing_words_asking_again_and_giving_up(game_cache: Path) -> None:
    env, said = EnvConfig(cache_dir=str(game_cache), max_turns=3), list[str]()
    assert not play.by_hand(env, TASK, said.append, typed(iter(["?", "999", "look", "q", "look"])))
    assert said[1] == said[2] and said[1].lstrip().startswith("1 go to ")
    assert said[3].startswith("999  (not understood)\nNothing happens.")
    assert said[-1] == "no success after 2 turn(s)"
    said.clear()
    assert not play.by_hand(env, TASK, said.append, typed(iter(["look"] * 9)))  # the turn limit, not the game, ends it
    assert said[-1] == "no success after 3 turn(s)" and sum("no progress" in line for line in said) == 2


@pytest.mark.slow
def test_a_checkpoint_plays_and_the_teacher_scores_each_turn(tiny_models: Path, game_cache: Path) -> None:
    env = EnvConfig(cache_dir=str(game_cache), max_turns=4)
    policies = {name: PolicyConfig(path=str(tiny_models / name)) for name in ("student", "teacher")}
    setting = play.Setting(env, PromptConfig(max_response_tokens=3), **policies)
    said: list[str] = []
    waits: list[int] = []
    assert not play.watch(setting, policies["student"], TASK, 1.0, 0, said.append, lambda: waits.append(1))
    assert len(waits) == 4
    scored = [float(line.split()[1]) for line in said[-4:]]
    assert all(abs(value) > 0 for value in scored)
    again: list[str] = []
    play.watch(setting, policies["teacher"], TASK, 1.0, 0, again.append, lambda: None)
    assert [line.split()[1].lstrip("+-") for line in again[-4:]] == ["0.00"] * 4  # the teacher agrees with itself


def test_a_setting_of_another_environment_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "other.yaml"
    file.write_text("student: {path: a}\nteacher: {path: b}\nenv: {name: alfworld}\n")
    with pytest.raises(SuiteError, match="is a setting of alfworld: name one of webshop's with --setting"):
        play.setting_of("webshop", file)


def test_tasks_by_position_in_the_panel(tmp_path: Path) -> None:
    panel: Any = tmp_path / "panel.txt"
    panel.write_text("gen/eval/5\ngen/eval/3\n")
    env = EnvConfig(eval_panel=str(panel))
    assert (play.task_of(env, "1"), play.task_of(env, "gen/train/9")) == ("gen/eval/3", "gen/train/9")
