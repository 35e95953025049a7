"""The teacher's intervention: when it acts, and what it leaves in rollouts, pool and clock."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from divopd.candidates import gate
from divopd.config import EnvConfig, PolicyConfig, PromptConfig
from divopd.envs.registry import make_envs
from divopd.pipeline.clock import CostModel
from divopd.policies.hf import HFPolicy, load_model
from divopd.pool import Pool
from divopd.prompts import Renderer, make_style
from divopd.rollout import PlaySettings, play, score
from divopd.rollouts import Direction, Moment, TeacherTurns, load_policy
from divopd.seeds import rng
from divopd.timing import Stopwatch
from divopd.types import Actor, Rollout, Turn
from test_pipeline import cell

NOW = Moment(step=0, version=10, updates=40, max_turns=30, seed=0)


def turns_of(text: str) -> Rollout:
    """p: progress, n: none, by the student; P, N: by the teacher; any other letter: that action, with progress."""
    rollout = Rollout((0, 0, 0), "t")
    for i, letter in enumerate(text):
        actor = Actor.TEACHER if letter.isupper() else Actor.STUDENT
        turn = Turn(rollout.id, i, 0, np.zeros(0), 0, 0, None, None, None, actor=actor, action=f"{letter}{i}")
        turn.progress = letter.lower() != "n"
        turn.action = letter if letter.lower() not in "pn" else turn.action
        rollout.turns.append(turn)
    return rollout


def takes_over(text: str, version: int = 10, **params) -> bool:
    policy = load_policy("recovery", {"patience": 2, "max_turns": 3} | params)
    return policy.teacher_acts(turns_of(text), Moment(0, version, 40, 30, 0), None)


def test_trigger_by_hand():
    assert [takes_over(text) for text in ("", "n", "nn", "pnn", "npn", "nnp", "nnn")] == [
        False, False, True, True, False, False, True,
    ]  # fmt: skip


def test_the_teacher_keeps_the_turn_until_its_budget_is_spent():
    assert [takes_over("nn" + teacher) for teacher in ("N", "P", "PN", "NNN", "PPP")] == [
        True,
        True,
        True,
        False,
        False,
    ]
    # and that was the rollout's: it may be as stuck as it likes
    assert not takes_over("nnPPPnnnn")


def test_hand_back_at_the_first_progress_keeps_the_rest_of_the_budget():
    found = [takes_over(t, hand_back="progress") for t in ("nnN", "nnNP", "nnNPn", "nnNPnn", "nnNPnnN")]
    assert found == [True, False, False, True, False]  # one turn was left: N, P and N are three


def test_a_teachers_stuck_turns_do_not_count_as_the_students():
    assert not takes_over("nN", patience=2, hand_back="progress", max_turns=1)
    assert not takes_over("pNn", hand_back="progress", max_turns=9)


def test_warm_up_counts_updates():
    assert [takes_over("nn", version, warmup_updates=5) for version in (4, 5)] == [False, True]


def test_memory_sees_a_walk_to_and_fro():
    """a b a b: no action repeats the one before it; with a memory of two, the third and fourth turn are stuck."""
    assert not takes_over("abab") and takes_over("abab", memory=2)
    assert not takes_over("aba", memory=2) and not takes_over("abcabc", memory=2) and takes_over("abcabc", memory=3)
    assert not takes_over("abcd", memory=3)


@given(
    st.lists(st.booleans(), max_size=40), st.integers(1, 4), st.integers(1, 5), st.sampled_from(["budget", "progress"])
)
def test_whatever_happens_the_contract_holds(progress, patience, budget, hand_back):
    policy = load_policy("recovery", {"patience": patience, "max_turns": budget, "hand_back": hand_back})
    text = ""
    for moves in progress:
        teacher = policy.teacher_acts(turns_of(text), NOW, None)
        if teacher and not (text and text[-1].isupper()):  # a takeover starts after p stuck student turns
            assert text.endswith("n" * patience)
        letter = "p" if moves else "n"
        text += letter.upper() if teacher else letter
    assert sum(letter.isupper() for letter in text) <= budget


# the loop of turns ---------------------------------------------------------------------------------------------------


class Pattern(TeacherTurns):
    """The teacher acts on these turns of every second rollout."""

    turns: tuple[int, ...]

    def teacher_acts(self, rollout, moment, state):
        return rollout.id[1] % 2 == 0 and len(rollout.turns) in self.turns


@pytest.fixture(scope="module")
def parts(tiny_models, tokenizer, game_cache):
    renderer = Renderer(tokenizer, make_style(PromptConfig(), "alfworld"))
    policies = [
        HFPolicy(load_model(PolicyConfig(path=str(tiny_models / n))), renderer.eos) for n in ("student", "teacher")
    ]
    return renderer, policies, make_envs(EnvConfig(cache_dir=str(game_cache)), 5)


def played(parts, direction=None, max_prompt=1000):
    renderer, (student, teacher), envs = parts
    tasks = [((2, i, 0), f"gen/train/{i}", rng("s", i)) for i in range(5)]
    settings = PlaySettings(8, max_prompt, 3, 1.0)
    rollouts = play(student, renderer, envs, tasks, 7, settings, Stopwatch(), direction, teacher)
    return rollouts, score(teacher, rollouts, len(renderer.tokenizer), Stopwatch())


def directed(*turns, **limits):
    return Direction(Pattern(turns=turns), Moment(0, 0, 10, limits.get("max_turns", 8), 3), None)


@pytest.mark.parametrize("turns", [(0, 1), (2, 3, 6), (7,)])
def test_each_policy_has_heard_what_the_other_said(parts, turns):
    """Kept caches, with turns left out on both sides, against one pass over the whole: the same log-probs."""
    renderer, (student, teacher), envs = parts
    rollouts, scored = played(parts, directed(*turns))
    for rollout in rollouts:
        by = [t.actor is Actor.TEACHER for t in rollout.turns]
        assert by == [rollout.id[1] % 2 == 0 and i in turns for i in range(8)]
        spans = [(t.start, t.end) for t in rollout.turns]
        [ours], [theirs] = (p.score([rollout.turns[0].context], [spans]) for p in (student, teacher))
        for turn, own, other in zip(rollout.turns, ours, theirs, strict=True):
            np.testing.assert_allclose(turn.teacher_logprobs, other, atol=2e-5)
            assert (turn.student_logprobs is None) == (turn.actor is Actor.TEACHER) == (gate(turn) is not None)
            if turn.student_logprobs is not None:
                np.testing.assert_allclose(turn.student_logprobs, own, atol=2e-5)
        tokens = renderer.first(envs[0].reset(rollout.task)).tolist()  # teacher turns stay in the context
        for turn in rollout.turns:
            assert tokens == turn.context[: turn.start].tolist()
            step = envs[0].step(turn.action)
            tokens += turn.context[turn.start : turn.end].tolist()
            tokens += renderer.follow(turn.action, step, turn.response_truncated).tolist()
    assert scored == sum(max(t.end for t in r.turns if t.actor is Actor.STUDENT) for r in rollouts)


def test_a_takeover_leaves_the_other_episodes_and_its_own_past_alone(parts):
    alone, mixed = played(parts)[0], played(parts, directed(4))[0]
    for before, after in zip(alone, mixed, strict=True):
        same = [a.action == b.action for a, b in zip(before.turns, after.turns, strict=True)]
        assert all(same[:4]) and (before.id[1] % 2 == 0 or all(same))
    again = played(parts, directed(4))[0]
    assert [[t.action for t in r.turns] for r in again] == [[t.action for t in r.turns] for r in mixed]


def test_limits_hold_with_a_teacher_too(parts):
    short = played(parts, directed(1, max_turns=3))[0]
    assert [len(r.turns) for r in short] == [3] * 5
    starts = [t.start for r in played(parts)[0] for t in r.turns]
    cut, _ = played(parts, directed(*range(1, 8)), max_prompt=int(np.median(starts)))
    for turn in (t for r in cut for t in r.turns if t.prompt_truncated):
        assert turn.actor is Actor.STUDENT and turn.action == "" and turn.response_tokens == 0
    assert all(len(r.turns) == 8 for r in cut)


def test_a_teachers_turn_cannot_enter_the_pool(parts):
    [rollout, *_] = played(parts, directed(1))[0]
    with pytest.raises(ValueError, match="turn 1 .* was acted by the teacher"):
        Pool(4, 4, 2, 8).put(rollout.turns, 0.0)


def test_the_teachers_time_is_counted_apart():
    """Turns of 2 tokens from 0, 10, 20; the teacher acts on the second: it reads 10 tokens and decodes 2."""
    rollout, context = Rollout((0, 0, 0), "t"), np.zeros(30)
    for i in range(3):
        rollout.turns.append(Turn(rollout.id, i, 0, context, 10 * i, 10 * i + 2, None, None, None))
    costs = CostModel(cell(teacher_response_token_seconds=4.0).pipeline)
    before = costs.generation(rollout), costs.scoring(rollout)
    assert (before, costs.takeovers(rollout)) == ((3 * 1.0 + 6 * 0.5, 22 * 0.25), 0.0)
    rollout.turns[1].actor = Actor.TEACHER
    assert costs.generation(rollout) == 3 * 1.0 + 4 * 0.5  # the environment's share of its turn stays here
    assert costs.takeovers(rollout) == 10 * 0.25 + 2 * 4.0
    assert costs.scoring(rollout) == 22 * 0.25
