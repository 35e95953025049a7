"""Compile the games of a suite ahead of its cells, on all cores: else cells translate the same games side by side."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import as_completed

from ..config import EnvConfig, RunConfig
from ..seeds import task_order
from ..worker_pool import WorkerPool
from .registry import eval_tasks, make_envs, plugin, train_tasks

SHORTEST = 0.25  # turns of an average rollout at the least, as a share of the turn limit (ours)


def tasks_of(cells: Iterable[RunConfig]) -> list[tuple[EnvConfig, list[str]]]:
    """Distinct tasks that the cells will play by environment that compiles; panel and training range are no part of it.

    Of a cell's training tasks those that its seed draws first, as many as `reach` says.
    """
    found: dict[str, tuple[EnvConfig, dict[str, None]]] = {}
    for cell in cells:
        if not plugin(cell.env.name).COMPILES:
            continue
        same = cell.env.model_copy(update={"train_tasks": "", "eval_panel": ""})
        _, tasks = found.setdefault(same.model_dump_json(), (same, {}))
        names, count = train_tasks(cell.env), reach(cell)
        if count < len(names):
            order = task_order(cell.seed, 0, len(names)).tolist()
            names = [names[i] for i in order[:count]]
        tasks |= dict.fromkeys([*names, *eval_tasks(cell.env, cell.evaluation.episodes)])
    return [(env, list(tasks)) for env, tasks in found.values()]


def reach(cell: RunConfig) -> int:
    """About how many tasks a run draws at the most; a task beyond that is compiled when it is played.

    Its updates take so many rows, `load` times as many arrive, and a rollout brings SHORTEST of the turn limit. Where
    no load is aimed at, explorers answer with one token a turn and the learner's rows have the longest prompts.
    """
    train, pipeline = cell.train, cell.pipeline
    rollouts = pipeline.tasks_per_step * pipeline.runs_per_task
    update = pipeline.update_seconds + pipeline.update_token_seconds * cell.prompt.max_tokens * train.batch_rows
    step = cell.env.max_turns * (pipeline.turn_seconds + pipeline.response_token_seconds)
    turns = max(1.0, SHORTEST * cell.env.max_turns)
    load = pipeline.load or pipeline.steps_in_flight * rollouts * turns / step * update / train.batch_rows
    # those in flight when the last update begins
    steps = max(1.0, load) * train.updates * train.batch_rows / (rollouts * turns) + pipeline.steps_in_flight
    return math.ceil(steps) * pipeline.tasks_per_step


def _load(env: EnvConfig, tasks: Sequence[str]) -> int:
    [player] = make_envs(env, 1)
    for task in tasks:
        player.reset(task)
    player.close()
    return len(tasks)


def prepare(cells: Iterable[RunConfig], workers: int, progress: Callable[[int, int, str], None]) -> int:
    """Load every task once, which leaves it in its environment's cache; how many tasks there are."""
    work = [(env, tasks[i : i + 16]) for env, tasks in tasks_of(cells) for i in range(0, len(tasks), 16)]
    total = sum(len(tasks) for _, tasks in work)
    done = 0
    with WorkerPool(workers, "spawn") as pool:
        for job in as_completed([pool.submit(_load, *item) for item in work]):
            done += job.result()
            progress(done, total, "games compiled")
    return total
