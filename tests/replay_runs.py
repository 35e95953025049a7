"""Finished runs without any model, for the tests of replay: the real clock, pool, rules and log."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from divopd.config import RunConfig
from divopd.pipeline.virtual import Task, VirtualPipeline, Workers
from divopd.runlog import RunLog, turn_row
from divopd.selection import load_rule
from divopd.streams import StreamSpec
from divopd.timing import Stopwatch
from divopd.types import Rollout, Turn
from synthetic import cell

STATS = dict.fromkeys(("loss", "objective", "drift", "grad_norm", "computed_tokens"), 0)
Explore = Callable[..., tuple[list[Rollout], int]]


def random_rollouts(tasks: Sequence[Task], version: int, *_: Any) -> tuple[list[Rollout], int]:
    """Episodes of 1 to 9 turns; one turn in eight is dead, each for one of the gate's reasons."""
    out = []
    for name, task, draws in tasks:
        n, won = int(draws.integers(1, 10)), bool(draws.random() < 0.4)
        context = np.zeros(12 * n, dtype=np.int64)
        rollout = Rollout(name, task, success=won)
        for i in range(n):
            length = int(draws.integers(1, 6))
            student, teacher = -draws.random((2, length)).astype(np.float32)
            start = 12 * i + 4
            turn = Turn(name, i, version, context, start, start + length, student, teacher, np.ones(length, dtype=bool))
            turn.rollout_turns, turn.rollout_success, turn.reward = n, won, float(won and i == n - 1)
            if draws.random() < 1 / 8:
                kill(turn, int(draws.integers(4)))
            rollout.turns.append(turn)
        out.append(rollout)
    return out, 10


def kill(turn: Turn, how: int) -> None:
    assert turn.student_logprobs is not None
    if how == 0:
        turn.prompt_truncated, turn.end = True, turn.start
    elif how == 1:
        turn.teacher_mask = np.zeros(turn.response_tokens, dtype=bool)
    elif how == 2:
        turn.student_logprobs[0] = np.nan
    else:
        turn.end = turn.start


def logged_run(root: Path, rule: str, explore: Explore = random_rollouts, **pipeline: Any) -> tuple[Path, list[Any]]:
    """A finished run's folder, made by the real clock and log without any model; and what its learner was given."""
    clock = {"tasks_per_step": 5, "turn_seconds": 1.0, "update_seconds": 3.0, "load": 2.5} | pipeline
    train = {"updates": 14, "batch_rows": 12, "max_staleness": 2, "learning_rate": 1e-3}
    config = RunConfig.model_validate(cell(method=rule).model_dump() | {"train": train, "pipeline": clock})
    return config.run_dir(root), drive(config, explore, config.run_dir(root))


def drive(config: RunConfig, explore: Explore, run_dir: Path | None = None) -> list[Any]:
    batches: list[Any] = []

    def learn(turns: Sequence[Turn], version: int, *_: Any) -> dict[str, float]:
        batches.append([turn.arrival for turn in turns])
        return dict(STATS)

    rule = load_rule(config.method.rule, config.method.params)
    pipeline, rows = VirtualPipeline(config, rule, ["a", "b", "c"]), list[dict[str, Any]]()
    workers = Workers(explore, learn, lambda: None, lambda *_: None)
    while not pipeline.finished:
        pipeline.run(workers, rows.append, Stopwatch())
    if run_dir is not None:
        log = RunLog.open(run_dir, config)
        log.add("updates", rows)
        log.add("turns", [turn_row(turn, "a") for turn in pipeline.pool.take_closed()])
        log.finish("done", updates=len(rows))
    return batches


def same(ours: pd.DataFrame, logged: pd.DataFrame) -> None:
    shared = [name for name in ours.columns if name in logged.columns]
    assert len(shared) > 15
    for name in shared:
        left, right = ours[name].tolist(), logged[name].tolist()
        assert [None if pd.isna(x) else x for x in left] == [None if pd.isna(x) else x for x in right], name


def small(**changes: Any) -> StreamSpec:
    spec = {
        "name": "small", "updates": 12, "max_turns": 8, "success": {"start": 0.2, "end": 0.8, "updates": 10},
        "success_turns": {"mean": 4, "shape": 3, "shortest": 2}, "dead_share": 0.1,
        "tokens": {"first_prompt": 20, "observation": 9, "response": 5, "turn_sigma": 0.5, "max_prompt": 90},
        "scores": {"per_token": 0.2, "sigma": 0.8}, "pipeline": {"tasks_per_step": 5, "load": 2.0},
        "queue": {"batch_rows": 10},
    }  # fmt: skip
    return StreamSpec.model_validate(spec | changes)
