"""Looking at an episode: by hand, and with a checkpoint."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from divopd import play
from divopd.cli import main
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
    assert not play.by_hand(env, TASK, said.append, typed(iter(["?", "look", "q", "look"])))
    assert said[1] == play.HELP
    assert said[2] == said[3] and said[2].lstrip().startswith("1 go to ")
    assert said[-1] == "no success after 1 turn(s)"
    said.clear()
    assert not play.by_hand(env, TASK, said.append, typed(iter(["look"] * 9)))  # the turn limit, not the game, ends it
    assert said[-1] == "no success after 3 turn(s)" and sum("no progress" in line for line in said) == 2


def by_hand(name: str, cache: Path, lines: list[str]) -> tuple[list[str], list[str]]:
    """(what is said, what is asked) in an episode of the environment's small setting that ends with these lines."""
    setting = play.setting_of(name, None)
    env = setting.env.model_copy(update={"cache_dir": str(cache)})
    said, asked, left = list[str](), list[str](), iter(lines)

    def ask(prompt: str) -> str:
        asked.append(prompt)
        return typed(left)(prompt)

    assert not play.by_hand(env, play.task_of(env, "0"), said.append, ask)
    return said, asked


@pytest.mark.parametrize("name", ["alfworld", "scienceworld", "webshop"])
def test_what_is_no_command_costs_no_turn(name: str, game_cache: Path) -> None:
    said, asked = by_hand(name, game_cache, ["99", "0", "help", "xyzzy", "click[xyzzy]", "", "?"])
    assert said[-1] == "no success after 0 turn(s)"
    assert [prompt.startswith("[1/") for prompt in asked] == [True] * 8
    listed = said[2].splitlines()
    count = sum(line.strip()[:1].isdigit() for line in listed)
    assert count > 0 and said[3:5] == [f"There is no number {n}: 1 to {count}." for n in (99, 0)]
    assert said.count(play.HELP) == 2 and "help" in play.HELP and "q " in play.HELP
    assert said[6].startswith("xyzzy  (not understood)") and said[6].endswith("No turn is spent; ? or help.\n")
    assert said[-3:-1] == [said[2]] * 2


@pytest.mark.parametrize(
    ("name", "template", "typed", "played"),
    [
        ("webshop", "search[<query>]", ["quiet speaker"], "search[quiet speaker]"),
        ("scienceworld", "teleport OBJ", ["hallway"], "teleport hallway\nYou teleport to the hallway."),
        ("scienceworld", "move OBJ to OBJ", ["OBJ", "bowl"], "move OBJ to bowl"),
    ],
)
def test_a_template_asks_for_what_it_leaves_open(
    name: str, template: str, typed: list[str], played: str, game_cache: Path
) -> None:
    listed = by_hand(name, game_cache, [])[0][2].splitlines()
    [number] = [line.split()[0] for line in listed if line.split(maxsplit=1)[-1] == template]
    for line in (number, template):
        said, asked = by_hand(name, game_cache, [line, *typed])
        assert len(asked) == 2 + len(typed) and asked[1].startswith(template)
        assert said[3].startswith(played)
    said, _ = by_hand(name, game_cache, [number, ""])
    assert said[-1] == "no success after 0 turn(s)" and len(said) == 4


@pytest.mark.parametrize("name", ["alfworld", "scienceworld", "webshop"])
def test_the_end_of_input_is_polite(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    done = CliRunner().invoke(main, ["play", name], input="help\n")
    assert done.exit_code == 0 and done.output.endswith("\nno success after 0 turn(s)\n"), done.output


@pytest.mark.slow
@pytest.mark.parametrize("who", ["hand", "student"])
def test_ctrl_d_on_a_terminal_is_polite(who: str) -> None:
    """At the prompt, and between the turns of a checkpoint."""
    master, terminal = os.openpty()
    command = [sys.executable, "-m", "divopd.cli", "play", "alfworld", "--by", who]
    run = subprocess.Popen(command, stdin=terminal, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    os.write(master, b"\x04")
    output, errors = run.communicate(timeout=120)
    os.close(master)
    os.close(terminal)
    assert run.returncode == 0, errors
    assert output.endswith("\nno success after 0 turn(s)\n" if who == "hand" else "\nstopped\n"), output
    assert "Error" not in errors


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
