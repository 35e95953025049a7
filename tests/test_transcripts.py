"""Transcripts: which rollouts a run keeps in words, and that they say what turns.parquet sums up."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from divopd import transcripts
from divopd.runlog import read_table, validate
from divopd.train import train
from divopd.transcripts import Transcripts
from divopd.types import Actor, Rollout, Turn

KEYS = ["explorer_batch", "task_index", "run", "turn"]


class Letters:
    """A tokenizer whose token i is the i-th letter."""

    def decode(self, tokens: list[int]) -> str:
        return "".join(chr(97 + token) for token in tokens)


def rollout(batch: int, task: int = 0, spans: tuple[tuple[int, int], ...] = ((3, 5), (6, 7))) -> Rollout:
    """Turns whose responses are these spans of the context 0, 1, 2, ..."""
    made = Rollout((batch, task, 0), "t", success=True, reward=1.5)
    context = np.arange(spans[-1][1])
    for i, (start, end) in enumerate(spans):
        logprobs = -np.arange(1, end - start + 1, dtype=np.float32)
        mask = np.ones(end - start, dtype=bool)
        made.turns.append(Turn(made.id, i, 0, context, start, end, logprobs, logprobs / 2, mask))
    return made


def kept(played: list[tuple[list[Rollout], int]], updates: int) -> list[tuple[int, int, int]]:
    """(explorer batch, task, turn) of the rows that a run with these steps would log."""
    log = Transcripts(updates, Letters())
    for rollouts, version in played:
        log.note(rollouts, version)
    rows = log.take([turn for rollouts, _ in played for made in rollouts for turn in made.turns])
    return [(row["explorer_batch"], row["task_index"], row["turn"]) for row in rows]


def test_the_first_step_at_or_after_each_mark_is_kept():
    # marks of a run of 60 updates: versions 0, 10, 20, 30, 40, 50
    steps = [([rollout(i)], version) for i, version in enumerate((0, 0, 9, 10, 19, 33, 34, 40, 60))]
    # 33 serves the marks 20 and 30
    assert sorted({batch for batch, _, _ in kept(steps, 60)}) == [0, 3, 5, 7, 8]
    first = [([rollout(0, task) for task in range(5)], 0)]
    assert kept(first, 60) == [(0, 0, 0), (0, 0, 1), (0, 1, 0), (0, 1, 1)]


def test_rows_by_hand():
    log = Transcripts(10, Letters())
    made = rollout(0)
    made.turns[1].actor, made.turns[1].student_logprobs, made.turns[1].action_mask = Actor.TEACHER, None, None
    log.note([made], 0)
    state = log.state_dict()
    first, second = log.take(made.turns)
    assert first == {
        "explorer_batch": 0, "task_index": 0, "run": 0, "turn": 0, "actor": "student", "prompt": "abc",
        "tokens": ["d", "e"], "student_logprobs": [-1.0, -2.0], "teacher_logprobs": [-0.5, -1.0],
        "valid": [True, True], "episode_reward": 1.5, "episode_success": True,
    }  # fmt: skip
    assert (second["actor"], second["prompt"], second["tokens"]) == ("teacher", "f", ["g"])
    assert (second["student_logprobs"], second["teacher_logprobs"], second["valid"]) == (None, [-0.5], [False])
    assert log.take(made.turns) == []
    anew = rollout(2)
    anew.turns[1].context = np.arange(10)  # another chat, not the first one grown
    log.note([anew], 9)
    assert [row["prompt"] for row in log.take(anew.turns)] == ["abc", "abcdef"]
    again = Transcripts(10, Letters())
    again.load_state_dict(state)
    again.note([rollout(1)], 0)  # this mark has its step
    assert again.take([*made.turns, *rollout(1).turns]) == [first, second]


def test_long_rollouts_are_cut_between_turns(monkeypatch: pytest.MonkeyPatch):
    spans = ((1, 4), (5, 8), (9, 12))
    monkeypatch.setattr(transcripts, "TOKENS", 6)
    assert kept([([rollout(0, 0, spans)], 0)], 10) == [(0, 0, 0), (0, 0, 1)]
    monkeypatch.setattr(transcripts, "TOKENS", 2)  # a first turn stays, however long
    assert kept([([rollout(0, 0, spans)], 0)], 10) == [(0, 0, 0)]
    monkeypatch.setattr(transcripts, "TOKENS", 100)
    monkeypatch.setattr(transcripts, "CHARACTERS", 8)
    assert kept([([rollout(0, 0, spans)], 0)], 10) == [(0, 0, 0), (0, 0, 1)]


@pytest.mark.slow
def test_a_run_keeps_what_its_turns_sum_up(tiny_cell, tmp_path: Path):
    folder = tmp_path / "run"
    train(tiny_cell(), folder, lambda *_: None)
    rows, turns = read_table(folder, "transcripts").to_pandas(), read_table(folder, "turns").to_pandas()
    assert not rows.duplicated(KEYS).any()
    joined = rows.merge(turns, on=KEYS, validate="one_to_one", suffixes=("", "_of_turns"))
    assert len(joined) == len(rows) > 20 and joined["explorer_batch"].nunique() > 2
    seen = 0
    for row in joined.itertuples():
        assert (len(row.tokens), row.actor, row.episode_success) == (
            row.response_tokens, row.actor_of_turns, row.success)  # fmt: skip
        assert bool(row.prompt)
        assert sum(row.valid) == row.valid_tokens
        if row.valid_tokens:
            student, teacher = (np.asarray(v, dtype=np.float64)[row.valid].sum() for v in
                                (row.student_logprobs, row.teacher_logprobs))  # fmt: skip
            assert student - teacher == row.disagreement  # exactly: the same numbers in the same order
            seen += 1
    assert seen > 10
    assert (folder / "transcripts.parquet").stat().st_size < 60_000
    validate(folder)
    (folder / "transcripts.parquet").unlink()  # a run of before
    validate(folder)
    assert json.loads((folder / "status.json").read_text())["status"] == "done"
