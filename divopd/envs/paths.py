"""Expert paths: actions that win a task, where an environment has them (`expert_path` of its plugin)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from ..config import EnvConfig
from .base import EnvError, TextEnv
from .registry import make_envs, plugin

if TYPE_CHECKING:
    from ..cloning.demos import Labeller

Paths = Mapping[str, tuple[str, ...]]
"""Task id -> the actions, in their order."""
LONGEST = 100  # turns after which a scripted expert has lost


def expert_paths(config: EnvConfig, tasks: Iterable[str]) -> Paths:
    """A path for each of the tasks; the same in every process.

    Raises `EnvError` in one line: where the environment offers none, and where some tasks have none.
    """
    find = getattr(plugin(config.name), "expert_path", None)
    if find is None:
        raise EnvError(f"{config.name} has no expert paths: give divopd/envs/{config.name}/plugin.py an `expert_path`")
    paths: dict[str, tuple[str, ...]] = {}
    missing: list[str] = []
    reason = ""
    [env] = make_envs(config, 1)
    try:
        for task in dict.fromkeys(tasks):
            try:
                paths[task] = tuple(find(config, env, task))
            except EnvError as error:
                missing.append(task)
                reason = reason or str(error)
    finally:
        env.close()
    if missing:
        named = ", ".join(missing[:3]) + (", ..." if len(missing) > 3 else "")
        raise EnvError(
            f"{len(missing)} of {len(missing) + len(paths)} training tasks have no expert path ({named}): {reason}; "
            "leave them out of env.train_tasks, which may name a file of task ids, one a line"
        )
    return paths


def played(env: TextEnv, expert: Labeller, task: str) -> list[str]:
    """The expert's likeliest actions up to its success. Raises `EnvError` where it has none in `LONGEST` turns."""
    seen, path = env.reset(task), list[str]()
    expert.reset(seen.goal, seen.text)
    allowed = seen.allowed
    while len(path) < LONGEST:
        opinion = expert.distribution(allowed)
        path.append(max(opinion, key=opinion.__getitem__))
        step = env.step(path[-1])
        if step.success:
            return path
        if step.done:
            break
        expert.observe(path[-1], step.text)
        allowed = step.allowed
    raise EnvError(f"the scripted expert does not solve {task} in {len(path)} actions")
