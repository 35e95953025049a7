"""Episodes as token spans: what was sampled is what will train, and where prompts end, rows die."""

from __future__ import annotations

import numpy as np
import pytest

from divopd.candidates import gate
from divopd.config import EnvConfig, PolicyConfig, PromptConfig
from divopd.envs.registry import make_envs
from divopd.policies.hf import HFPolicy, load_model
from divopd.prompts import Renderer, make_style
from divopd.rollout import PlaySettings, play, score
from divopd.seeds import rng
from divopd.timing import Stopwatch
from divopd.types import DropReason, StopReason


@pytest.fixture(scope="module")
def parts(tiny_models, tokenizer, game_cache):
    renderer = Renderer(tokenizer, make_style(PromptConfig(), "alfworld"))
    policies = [
        HFPolicy(load_model(PolicyConfig(path=str(tiny_models / n))), renderer.eos) for n in ("student", "teacher")
    ]
    return renderer, policies, make_envs(EnvConfig(cache_dir=str(game_cache)), 3)


def rollouts_of(parts, max_turns=5, max_prompt=1000):
    renderer, (student, teacher), envs = parts
    tasks = [((2, i, 0), f"gen/train/{i}", rng("s", i)) for i in range(3)]
    rollouts = play(student, renderer, envs, tasks, 7, PlaySettings(max_turns, max_prompt, 3, 1.0), Stopwatch())
    return rollouts, score(teacher, rollouts, len(renderer.tokenizer), Stopwatch())


def test_turns_are_spans_of_one_context(parts):
    rollouts, scored = rollouts_of(parts)
    renderer, (student, teacher), _ = parts
    assert scored == sum(r.turns[-1].end for r in rollouts)
    for rollout in rollouts:
        assert [t.index for t in rollout.turns] == list(range(5))
        assert rollout.stop is StopReason.TURN_LIMIT and not rollout.success
        assert all(t.context is rollout.turns[0].context and t.version == 7 for t in rollout.turns)
        assert all(a.end <= b.start for a, b in zip(rollout.turns, rollout.turns[1:], strict=False))
        for policy, name in ((student, "student_logprobs"), (teacher, "teacher_logprobs")):
            spans = [(t.start, t.end) for t in rollout.turns]
            [want] = policy.score([rollout.turns[0].context], [spans])
            for turn, logprobs in zip(rollout.turns, want, strict=True):
                np.testing.assert_allclose(getattr(turn, name), logprobs, atol=2e-5)
                assert gate(turn) is None


def test_replaying_the_actions_gives_the_same_prompt(parts):
    """The context is the observations and responses, in order, and nothing else."""
    rollouts, _ = rollouts_of(parts)
    renderer, _, envs = parts
    for rollout in rollouts:
        tokens = renderer.first(envs[0].reset(rollout.task)).tolist()
        for turn in rollout.turns:
            assert tokens == turn.context[: turn.start].tolist()
            response = turn.context[turn.start : turn.end]
            answer = envs[0].step(turn.action)
            assert (answer.valid, answer.progress) == (turn.valid_action, turn.progress)
            tokens += response.tolist() + renderer.follow(turn.action, answer, turn.response_truncated).tolist()


def test_past_the_prompt_limit_rows_are_dead(parts):
    free, _ = rollouts_of(parts)
    limit = int(np.median([t.start for r in free for t in r.turns]))
    rollouts, _ = rollouts_of(parts, max_prompt=limit)
    dead = [t for r in rollouts for t in r.turns if t.prompt_truncated]
    assert 0 < len(dead) < 15
    for before, after in zip(free, rollouts, strict=True):
        assert len(after.turns) == 5
        for turn, same in zip(after.turns, before.turns, strict=True):
            assert turn.prompt_truncated == (same.start > limit)
            if turn.prompt_truncated:
                assert gate(turn) is DropReason.PROMPT_TRUNCATED
                assert turn.response_tokens == 0 and turn.row_tokens == limit and turn.action == ""
            else:
                assert turn.action == same.action
    stopped = {r.stop for r in rollouts if r.turns[-1].prompt_truncated}
    assert stopped == {StopReason.PROMPT_LIMIT}


def test_ids_the_teacher_lacks_are_masked(parts):
    renderer, (student, teacher), _ = parts
    rollouts, _ = rollouts_of(parts)
    border = sorted({int(t) for r in rollouts for turn in r.turns for t in turn.context[turn.start : turn.end]})[-2]
    score(teacher, rollouts, border, Stopwatch())
    turns = [turn for r in rollouts for turn in r.turns]
    for turn in turns:
        response = turn.context[turn.start : turn.end]
        assert turn.teacher_mask.tolist() == [int(token) < border for token in response]
    assert not all(turn.teacher_mask.all() for turn in turns)


def test_stopwatch_charges_the_inner_stage_alone(monkeypatch):
    now = iter([0.0, 1.0, 3.0, 7.0, 15.0])
    monkeypatch.setattr("divopd.timing.time.perf_counter", lambda: next(now))
    watch = Stopwatch()  # 0
    with watch("rollout"), watch("environment"):  # at 1 and 3
        pass  # until 7 and 15
    assert dict(watch.seconds) == {"rollout": 2.0 + 8.0, "environment": 4.0}
