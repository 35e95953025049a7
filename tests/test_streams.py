"""Synthetic arrival streams: the distributions they promise, and mistakes in their files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from divopd.replay import ReplayError
from divopd.streams import Lengths, Ramp, StreamSpec, Synthetic, read_stream

STREAMS = sorted((Path(__file__).parent.parent / "experiments" / "streams").glob("*.yaml"))


def spec(**changes: Any) -> StreamSpec:
    content = {
        "name": "test", "max_turns": 20, "success": {"start": 0.1, "end": 0.9, "updates": 100},
        "success_turns": {"mean": 8, "shape": 4, "shortest": 3},
        "tokens": {"first_prompt": 100, "observation": 30, "response": 10, "turn_sigma": 0.4, "rollout_sigma": 0.3},
        "scores": {"per_token": 0.2, "sigma": 0.7, "skew": 0.4}, "pipeline": {"tasks_per_step": 400},
    }  # fmt: skip
    return StreamSpec.model_validate(content | changes)


def by_rollout(block: dict[str, np.ndarray], lengths: np.ndarray) -> list[dict[str, np.ndarray]]:
    cuts = np.cumsum(lengths)[:-1]
    split = {name: np.split(values, cuts) for name, values in block.items()}
    return [{name: parts[i] for name, parts in split.items()} for i in range(len(lengths))]


def test_the_three_streams_are_there_and_read() -> None:
    assert [path.stem for path in STREAMS] == ["alfworld", "scienceworld", "webshop"]
    for path in STREAMS:
        stream = read_stream(path)
        assert stream.name == path.stem and str(stream.paper_setting).startswith(path.stem)
        assert stream.queue.batch_rows == 64 and stream.pipeline.load is None


def test_every_value_of_a_stream_says_where_it_comes_from() -> None:
    for path in STREAMS:
        for line in path.read_text().splitlines():
            key, sign, value = line.partition(":")
            if line.startswith("  ") and not line.strip().startswith("#") and sign and value.strip():
                assert "#" in value or key.strip() in (
                    "steps_in_flight", "response_token_seconds", "teacher_token_seconds"
                ), (path.name, line)  # fmt: skip


def test_ramp_by_hand() -> None:
    ramp = Ramp(start=0.1, end=0.5, updates=40)
    assert [ramp.at(v) for v in (0, 10, 40, 90)] == pytest.approx([0.1, 0.2, 0.5, 0.5])


@given(mean=st.floats(2.5, 12), shape=st.floats(0.5, 20), shortest=st.integers(1, 2))
@settings(max_examples=40, deadline=None)
def test_lengths_have_their_mean_and_variance(mean: float, shape: float, shortest: int) -> None:
    p = np.diff(np.r_[0.0, Lengths(mean=mean, shape=shape, shortest=shortest).cumulative(2000)])
    k, excess = shortest + np.arange(len(p)), mean - shortest
    assert p.sum() == pytest.approx(1) and (p >= -1e-15).all()
    assert (k * p).sum() == pytest.approx(mean, rel=1e-6)
    assert ((k - mean) ** 2 * p).sum() == pytest.approx(excess + excess**2 / shape, rel=1e-4)


def test_lengths_are_cut_at_the_limit() -> None:
    p = np.diff(np.r_[0.0, Lengths(mean=6, shape=3, shortest=2).cumulative(7)])
    assert len(p) == 6 and p.sum() == pytest.approx(1)
    whole = np.diff(np.r_[0.0, Lengths(mean=6, shape=3, shortest=2).cumulative(500)])
    assert p / p[0] == pytest.approx(whole[:6] / whole[0])


def test_outcomes_and_lengths() -> None:
    """400 rollouts a step: 10 % succeed at version 0, 90 % from version 100 on; failures reach the limit."""
    stream = Synthetic(spec(), 0)
    for version, rate in ((0, 0.1), (50, 0.5), (500, 0.9)):
        rollouts = by_rollout(*stream.block(3, version))
        won = np.array([r["success"][0] for r in rollouts])
        assert won.mean() == pytest.approx(rate, abs=0.07)
        lengths = np.array([len(r["turn"]) for r in rollouts])
        assert (lengths[~won] == 20).all() and lengths[won].min() >= 3
    assert lengths[won].mean() == pytest.approx(8, abs=0.5)
    for r in rollouts:
        assert r["turn"].tolist() == list(range(len(r["turn"]))) and set(r["rollout_turns"]) == {len(r["turn"])}
        assert r["reward"].sum() == r["success"][0] == r["reward"][-1]
        assert (np.diff(r["prompt_tokens"]) >= r["response_tokens"][:-1]).all()  # the chat grows


def test_failures_can_end_by_themselves() -> None:
    stream = spec(failure_stop=0.5, failure_turns={"mean": 6, "shape": 5, "shortest": 2})
    rollouts = by_rollout(*Synthetic(stream, 0).block(0, 0))
    lost = np.array([len(r["turn"]) for r in rollouts if not r["success"][0]])
    assert (lost < 20).mean() == pytest.approx(0.5, abs=0.08) and lost[lost < 20].mean() == pytest.approx(6, abs=0.6)


def test_a_better_student_wins_the_same_rollouts_and_more() -> None:
    """Rules meet the same luck: what a version changes is the outcome, not the draws of the others."""
    stream = Synthetic(spec(), 0)
    early, late = (by_rollout(*stream.block(2, version)) for version in (20, 60))
    for a, b in zip(early, late, strict=True):
        assert b["success"][0] or not a["success"][0]
        n = min(len(a["turn"]), len(b["turn"]))
        assert a["prompt_tokens"][:n].tolist() == b["prompt_tokens"][:n].tolist()


def test_a_step_depends_on_seed_and_step_alone() -> None:
    def tokens(seed: int, step: int) -> list[int]:
        return Synthetic(spec(), seed).block(step, 5)[0]["prompt_tokens"].tolist()

    stream = Synthetic(spec(), 1)
    for step in (3, 0, 3):
        assert stream.block(step, 5)[0]["prompt_tokens"].tolist() == tokens(1, step)
    assert tokens(1, 0) != tokens(2, 0) and tokens(1, 0) != tokens(1, 1)


def test_dead_rows() -> None:
    """Past the prompt limit a rollout's turns are dead for good; elsewhere at a rate. Dead rows have no scores."""
    block, lengths = Synthetic(spec(dead_share=0.2, tokens={**spec().tokens.model_dump(), "max_prompt": 500}), 0).block(
        0, 0
    )
    past = block["reason"] == "prompt_truncated"
    for r in by_rollout(block | {"past": past}, lengths):
        assert (np.diff(r["past"].astype(int)) >= 0).all()
        assert (r["prompt_tokens"][r["past"]] == 500).all() and (r["response_tokens"][r["past"]] == 0).all()
    assert 0.05 < past.mean() < 0.6
    assert (block["reason"][~past] == "no_valid_token").mean() == pytest.approx(0.2, abs=0.02)
    dead = ~block["valid"]
    assert (dead == (block["reason"] != "")).all() and (block["valid_tokens"][dead] == 0).all()
    assert np.isnan(block["disagreement"][dead]).all() and np.isfinite(block["disagreement"][~dead]).all()
    assert (block["valid_tokens"][~dead] == block["response_tokens"][~dead]).all()


def test_scores_keep_their_means_and_their_bounds() -> None:
    scores = {"per_token": 0.2, "sigma": 0.7, "skew": 0.4, "early": 1.5, "early_turns": 2.0, "failure": 1.3,
              "student_nll": 5.0}  # fmt: skip
    block, _ = Synthetic(spec(scores=scores), 0).block(0, 0)
    gap, n = block["disagreement"], block["response_tokens"]
    assert block["teacher_nll"] - block["student_nll"] == pytest.approx(gap, abs=1e-9)
    assert (gap < 0).mean() > 0.05 and (block["teacher_nll"] >= 0).all()
    lost = ~block["success"]
    for turn in (0, 4):
        here = (block["turn"] == turn) & lost
        want = 0.2 * 1.3 * (1 + 1.5 * np.exp(-turn / 2.0))
        assert gap[here].sum() / n[here].sum() == pytest.approx(want, rel=0.12)
    low = Synthetic(spec(scores=scores | {"student_nll": 0.01}), 0).block(0, 0)[0]
    assert (low["teacher_nll"] >= 0).all() and (low["teacher_nll"] == 0).any()


def test_runs_of_a_task_and_names() -> None:
    stream = Synthetic(spec(pipeline={"tasks_per_step": 3, "runs_per_task": 2}), 0)
    block, lengths = stream.block(7, 0)
    assert len(lengths) == 6
    assert np.unique(block["rollout"], axis=0).tolist() == [[7, task, run] for task in range(3) for run in range(2)]


def test_an_explorer_steps_times() -> None:
    """One second a turn, a tenth a response token, a hundredth a token scored: the clock's cost model of a run."""
    costs = {"tasks_per_step": 4, "turn_seconds": 1.0, "response_token_seconds": 0.1, "teacher_token_seconds": 0.01}
    stream = Synthetic(spec(pipeline=costs | {"arrives": "rollout"}), 0)
    arrivals, end = stream.explore(0, 0, 100.0)
    for time, arrival in arrivals:
        (turns,) = arrival.rollouts
        tokens = sum(turn.response_tokens for turn in turns)
        assert time == pytest.approx(100 + len(turns) + 0.1 * tokens + 0.01 * turns[-1].end)
        assert arrival.version == 0
    assert end == max(time for time, _ in arrivals)
    together, same_end = Synthetic(spec(pipeline=costs), 0).explore(0, 0, 100.0)
    assert [time for time, _ in together] == [end] == [same_end]
    order = [turns[0].rollout for turns in together[0][1].rollouts]
    assert order == [a.rollouts[0][0].rollout for _, a in sorted(arrivals, key=lambda pair: pair[0])]
    by_task, _ = Synthetic(spec(pipeline=costs | {"order": "task"}), 0).explore(0, 0, 100.0)
    assert [turns[0].rollout for turns in by_task[0][1].rollouts] == sorted(order) != order


def written(tmp_path: Path, change: Any) -> Path:
    content = yaml.safe_load(STREAMS[0].read_text())
    change(content)
    path = tmp_path / "stream.yaml"
    path.write_text(yaml.safe_dump(content))
    return path


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c.update(succes=1), "unknown key 'succes'; did you mean 'success'?"),
        (lambda c: c["tokens"].update(respons=1), "unknown key 'tokens.respons'; did you mean 'response'?"),
        (lambda c: c["pipeline"].update(lod=1), "unknown key 'pipeline.lod'; did you mean 'load'?"),
        (lambda c: c["failure_turns"].update(men=1), "unknown key 'failure_turns.men'; did you mean 'mean'?"),
        (lambda c: c["success"].update(end=1.5), "success.end: Input should be less than or equal to 1"),
        (lambda c: c.update(arrives="step"), "arrives stands under pipeline, as in a suite: write pipeline.arrives"),
        (lambda c: c["pipeline"].update(arrives="batch"), "pipeline.arrives: Input should be 'step' or 'rollout'"),
        (lambda c: c.update(dead_share=1.0), "dead_share: Input should be less than 1"),
        (lambda c: c.pop("tokens"), "tokens: Field required"),
        (lambda c: c.pop("failure_turns"), "failure_stop is 0.1, so failure_turns must say"),
        (lambda c: c["success_turns"].update(shortest=31), "success_turns.shortest = 31 is past max_turns = 30"),
    ],
)
def test_a_mistake_in_a_stream_file_is_one_line(change: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(ReplayError) as caught:
        read_stream(written(tmp_path, change))
    assert message in str(caught.value) and str(tmp_path) in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(("text", "message"), [("a: [", "not readable as YAML"), ("- 1", "the file: Input should be")])
def test_files_that_are_no_streams(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "stream.yaml"
    path.write_text(text)
    with pytest.raises(ReplayError, match=message):
        read_stream(path)
