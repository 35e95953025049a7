"""Compile the games of a suite ahead of its cells, on all cores: else cells translate the same games side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import as_completed

from ..config import EnvConfig, RunConfig
from ..worker_pool import WorkerPool
from .registry import eval_tasks, make_envs, plugin, train_tasks


def tasks_of(cells: Iterable[RunConfig]) -> list[tuple[EnvConfig, list[str]]]:
    """Distinct tasks of the cells by environment that compiles; panel and training range are no part of one here."""
    found: dict[str, tuple[EnvConfig, dict[str, None]]] = {}
    for cell in cells:
        if not plugin(cell.env.name).COMPILES:
            continue
        same = cell.env.model_copy(update={"train_tasks": "", "eval_panel": ""})
        _, tasks = found.setdefault(same.model_dump_json(), (same, {}))
        tasks |= dict.fromkeys([*train_tasks(cell.env), *eval_tasks(cell.env, cell.evaluation.episodes)])
    return [(env, list(tasks)) for env, tasks in found.values()]


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
