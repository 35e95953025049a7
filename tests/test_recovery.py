"""Teacher recovery: when it takes over, what each environment calls progress, and what a run's log says of it."""

from __future__ import annotations

import json
import shutil

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from divopd import train as trainer_module
from divopd.analysis.recovery import rate_between, recovery_tradeoff, takeovers_over_training
from divopd.analysis.style import NothingToDrawError
from divopd.candidates import gate
from divopd.config import EnvConfig, PolicyConfig, PromptConfig
from divopd.envs.registry import make_envs
from divopd.evaluate import evaluate_run
from divopd.pipeline.clock import CostModel
from divopd.policies.hf import HFPolicy, load_model
from divopd.pool import Pool
from divopd.prompts import Renderer, make_style
from divopd.rollout import PlaySettings, play, score
from divopd.rollouts import Direction, Moment, TeacherTurns, load_policy
from divopd.runlog import read_table
from divopd.seeds import rng
from divopd.timing import Stopwatch
from divopd.train import Trainer, train
from divopd.types import Actor, Rollout, Turn
from test_pipeline import cell
from test_train import LOGS, Killed, logs, quiet

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


# what the environments call progress ---------------------------------------------------------------------------------


def flags(env, task, actions):
    """[(valid, progress)] of the actions."""
    env.reset(task)
    return [(s.valid, s.progress) for s in (env.step(action) for action in actions)]


def fires_after(found, patience=4):
    """The turn after which recovery takes over; None where it never does."""
    policy, text = load_policy("recovery", {"patience": patience, "max_turns": 6}), ""
    for _, progress in found:
        text += "p" if progress else "n"
        if policy.teacher_acts(turns_of(text), NOW, None):
            return len(text)
    return None


@pytest.fixture(scope="module")
def kitchen(game_cache):
    """A generated game and two of its places, the second one closed: (environment, task, open place, closed place)."""
    [env] = make_envs(EnvConfig(cache_dir=str(game_cache)), 1)
    for i in range(40):
        task = f"gen/train/{i}"
        first = env.reset(task)
        places = [a.removeprefix("go to ") for a in first.allowed if a.startswith("go to ")]
        closed = [p for p in places if "closed" in env_text(env, task, f"go to {p}")]
        open_ones = [p for p in places if p not in closed]
        if closed and open_ones:
            return env, task, open_ones[0], closed[0]
    raise AssertionError("no generated game with an open and a closed place")


def env_text(env, task, action):
    env.reset(task)
    return env.step(action).text


def test_alfworld_two_places_are_progress_each_time(kitchen):
    """Walking to and fro is the trigger's blind spot: every turn is another action than the one before."""
    env, task, here, there = kitchen
    found = flags(env, task, [f"go to {here}", f"go to {there}"] * 5)
    assert found == [(True, True)] * 10 and fires_after(found) is None


def test_alfworld_invalid_actions_are_none(kitchen):
    env, task, here, _ = kitchen
    found = flags(env, task, [f"go to {here}", "xyzzy", "", "take the moon", "go to nowhere 9"])
    assert found == [(True, True)] + [(False, False)] * 4 and fires_after(found) == 5


def test_alfworld_a_closed_container(kitchen):
    """Taking what is not to be seen, and opening what is open, is answered "Nothing happens."; opening it is not."""
    env, task, _, there = kitchen
    found = flags(env, task, [f"go to {there}", f"take apple 9 from {there}", f"open {there}", f"open {there}"])
    assert found == [(True, True), (False, False), (True, True), (False, False)]


def test_alfworld_a_repeat_is_none_where_nothing_changed(kitchen):
    env, task, here, _ = kitchen
    assert flags(env, task, [f"go to {here}", f"go to {here}"])[1] == (False, False)
    assert flags(env, task, ["look", "look", "inventory", "look"]) == [
        (True, True), (True, False), (True, True), (True, True),
    ]  # fmt: skip


def shop():
    pytest.importorskip("rapidfuzz")
    registry = pytest.importorskip("divopd.envs.registry")
    config = EnvConfig.model_validate({"name": "webshop", "max_turns": 15})
    [env] = make_envs(config, 1)
    return env, registry.plugin("webshop").tasks(config, "gen/train")[0]


def test_webshop_a_page_that_does_not_change():
    """Clicking what the page does not show, searching for the same again, and choosing what is chosen."""
    env, task = shop()
    goal = env.reset(task).goal
    search = f"search[{' '.join(goal.split()[:4])}]"
    found = flags(env, task, [search, "click[no such button]", search, "hello", "click[back to search]"])
    assert found[0] == (True, True) and found[-1] == (True, True)
    assert [progress for _, progress in found] == [True, False, False, False, True]
    assert [valid for valid, _ in found][1::2] == [False, False]
    assert fires_after(found, patience=3) == 4


def test_webshop_to_and_fro_is_progress_each_time():
    env, task = shop()
    search = f"search[{env.reset(task).goal.split()[-1]}]"
    found = flags(env, task, [search, "click[back to search]"] * 3)
    assert found == [(True, True)] * 6


def test_scienceworld_the_same_answer_again():
    pytest.importorskip("scienceworld")
    from divopd.envs.base import EnvError

    config = EnvConfig.model_validate({"name": "scienceworld"})
    try:
        [env] = make_envs(config, 1)
        found = flags(env, "find-animal/0", ["look around", "look around", "xyzzy", "inventory", "inventory"])
    except EnvError as error:  # no Java
        pytest.skip(str(error))
    env.close()
    assert found == [(True, True), (True, False), (False, False), (True, True), (True, False)]


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


# whole runs ----------------------------------------------------------------------------------------------------------

METHODS = {
    "recovery": {"rule": "divopd", "rollout": {"policy": "recovery", "params": {"patience": 1, "max_turns": 2}}},
    "turnopd": {"rule": "vanilla", "rollout": {"policy": "turnopd", "params": {"probes": 1, "share": 0.5}},
                "loss": {"name": "reverse_kl", "reduction": "blended"}},
    "guided_opd": {"rule": "divopd_base", "rollout": {"policy": "guided_opd", "params": {"until": 1.0}}},
    "tcod_f2b": {"rule": "vanilla", "rollout": {"policy": "tcod_f2b"}},
}  # fmt: skip


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return {}


def whole(tiny_cell, tmp_path, runs, name):
    """The folder of an undisturbed run, its cell and its bytes, made once a method."""
    if name not in runs:
        method = tiny_cell(method={"name": name} | METHODS[name])
        folder = tmp_path / name
        assert train(method, folder, quiet) == "done"
        runs[name] = (method, folder, logs(folder))
    return runs[name]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "where", "call"), [("recovery", "_learn", 4), ("turnopd", "_publish", 5)])
def test_killed_it_ends_in_the_same_log(name, where, call, tiny_cell, tmp_path, runs, monkeypatch):
    method, _, want = whole(tiny_cell, tmp_path, runs, name)
    folder, calls, real = tmp_path / "killed", 0, getattr(Trainer, where)

    def deadly(self, *args):
        nonlocal calls
        calls += 1
        if calls == call:
            raise Killed
        return real(self, *args)

    monkeypatch.setattr(trainer_module.Trainer, where, deadly)
    with pytest.raises(Killed):
        train(method, folder, quiet)
    monkeypatch.setattr(trainer_module.Trainer, where, real)
    assert train(method, folder, quiet) == "done"
    assert logs(folder) == want


@pytest.mark.slow
def test_the_log_tells_who_acted(tiny_cell, tmp_path, runs):
    _, folder, _ = whole(tiny_cell, tmp_path, runs, "recovery")
    turns, updates = read_table(folder, "turns").to_pandas(), read_table(folder, "updates").to_pandas()
    teacher = turns[turns["actor"] == "teacher"]
    student = turns[turns["actor"] == "student"]
    assert len(teacher) and (teacher[["arrival", "first_seen", "selected_at", "dropped_at"]] == -1).all(axis=None)
    assert teacher["dropped"].isna().all() and (teacher["valid_tokens"] == 0).all()
    assert teacher["disagreement"].isna().all() and (teacher["response_tokens"] > 0).all()
    assert sorted(student["arrival"]) == list(range(len(student)))
    ids = ["explorer_batch", "task_index", "run"]
    each = turns.sort_values("turn").groupby(ids)
    assert (each["turn"].apply(list) == each["rollout_turns"].first().apply(lambda n: list(range(n)))).all()
    assert (teacher.groupby(ids).size() <= 2).all()
    before = turns.merge(teacher[[*ids, "turn"]].assign(turn=teacher["turn"] - 1), on=[*ids, "turn"])
    first = before[before["actor"] == "student"]
    assert not first["progress"].any()  # patience 1: a takeover follows a turn without progress
    last = updates.iloc[-1]
    # those of rollouts still under way are counted, and not yet logged
    assert last["teacher_turns"] >= len(teacher) and last["takeovers"] >= len(first)
    assert last["teacher_generated_tokens"] >= teacher["response_tokens"].sum()
    assert last["teacher_generation_seconds"] > 0 and (updates["horizon"] == 6).all()
    assert json.loads((folder / "timings.json").read_text())["teacher_generation"] > 0
    assert pc.sum(read_table(folder, "updates")["rows"]).as_py() == int((student["selected_at"] >= 0).sum())


@pytest.mark.slow
@pytest.mark.parametrize("name", ["guided_opd", "tcod_f2b", "turnopd"])
def test_the_other_methods_leave_their_mark(name, tiny_cell, tmp_path, runs):
    _, folder, _ = whole(tiny_cell, tmp_path, runs, name)
    turns, updates = read_table(folder, "turns").to_pandas(), read_table(folder, "updates").to_pandas()
    length = turns.groupby("explorer_batch")["rollout_turns"].max()
    if name == "tcod_f2b":  # 6 updates: a turn more at each
        assert updates["horizon"].is_monotonic_increasing and updates["horizon"].iloc[0] <= 2
        first = turns[turns["version"] == 0]
        assert (first["rollout_turns"] == 1).all() and length.max() == turns["version"].max() + 1
    elif name == "turnopd":
        cut = turns[turns["task_index"] >= 1]  # the first task of each step is the probe
        assert cut[cut["explorer_batch"] > 0]["rollout_turns"].min() < 6
        assert (turns[turns["task_index"] == 0]["rollout_turns"] == 6).all()
    else:
        share = (turns["actor"] == "teacher").groupby(turns["version"]).mean()
        assert 0.3 < share[0] < 0.7 and share.iloc[-1] < share[0]


@pytest.mark.slow
def test_explorers_are_as_fast_under_every_method(tiny_cell, tmp_path, runs):
    speeds = {}
    for name in ("recovery", "tcod_f2b", "vanilla"):
        method = {"name": name, "rule": "vanilla"} | METHODS.get(name, {})
        run = Trainer(tiny_cell(method=method), tmp_path / f"speed-{name}")
        run.pipeline.run(trainer_module.Workers(run._explore, run._learn, run._publish, run._save), print, run.watch)
        speeds[name] = run.pipeline.costs.slowdown
    assert len(set(speeds.values())) == 1


@pytest.mark.slow
def test_evaluation_is_the_students_alone(tiny_cell, tmp_path, runs):
    """The untrained student's episodes are those of a run without recovery, and no turn is the teacher's."""
    found = []
    for name in ("recovery", "vanilla"):
        method = {"name": name, "rule": "vanilla"} | METHODS.get(name, {})
        folder = tmp_path / f"eval-{name}"
        train(tiny_cell(method=method), folder, quiet)
        evaluate_run(folder, quiet)
        rows = read_table(folder, "evals").to_pandas()
        found.append(rows[rows["version"] == 0].drop(columns=["explorer_step", "time"]).reset_index(drop=True))
    assert found[0].equals(found[1]) and len(found[0]) == 3
    shutil.rmtree(tmp_path / "eval-vanilla")
    assert set(LOGS) <= {path.name for path in (tmp_path / "eval-recovery").iterdir()}


# figures -------------------------------------------------------------------------------------------------------------


def test_rates_are_between_evaluations_and_averaged_over_seeds():
    """Seed 0: 4 takeovers over 8 rollouts, then 2 over 8, then no rollout. Seed 1: 0 over 8, then 8 over 4."""
    rows = [(0, 0, 0, 0), (0, 10, 4, 8), (0, 20, 6, 16), (0, 30, 6, 16), (1, 0, 0, 0), (1, 10, 0, 8), (1, 20, 8, 12)]
    curve = pd.DataFrame(rows, columns=["seed", "version", "takeovers", "rollouts"])
    rates = rate_between(curve, "takeovers")
    assert rates.to_dict() == {10: 0.25, 20: (0.25 + 2.0) / 2}


def test_figures_show_the_logged_numbers():
    key = {"setting": "a", "seed": 0}
    summary = pd.DataFrame(
        [
            key | {"method": m, "final5_mean": y, "baseline": "vanilla"}
            for m, y in (("vanilla", 0.4), ("divopd_recovery", 0.6))
        ]
    )
    shares = pd.DataFrame([key | {"method": "vanilla", "teacher_turn_share": 0.0},
                           key | {"method": "divopd_recovery", "teacher_turn_share": 0.1}])  # fmt: skip
    ax = recovery_tradeoff(summary, shares).axes[0]
    drawn = [tuple(c.lines[0].get_xydata()[0]) for c in ax.containers]
    assert drawn == [(0.0, 0.4), (0.1, 0.6)] and ax.get_xlabel() and ax.get_ylabel()
    curves = pd.DataFrame([key | {"method": m, "version": 10 * i, "rollouts": 8 * i, "takeovers": n * i,
                                  "teacher_turns": 3 * n * i} for m, n in (("vanilla", 0), ("divopd_recovery", 2))
                           for i in range(3)])  # fmt: skip
    fig = takeovers_over_training(curves)
    assert [line.get_ydata().tolist() for ax in fig.axes for line in ax.get_lines()] == [[0.25, 0.25], [0.75, 0.75]]
    with pytest.raises(NothingToDrawError, match="no method here lets the teacher act"):
        takeovers_over_training(curves[curves["method"] == "vanilla"])
    plt.close("all")
