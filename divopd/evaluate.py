"""Checkpoints on a fixed panel: the student alone, apart from the trainer's clock, one record an episode."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from . import runlog
from .config import RunConfig
from .envs.registry import eval_tasks, make_envs
from .policies.base import Policy, PolicyError
from .policies.make import make_policy
from .prompts import make_renderer
from .rollout import PlaySettings, play
from .runlog import RunLog, RunLogError, read_config
from .seeds import rng
from .timing import Stopwatch
from .types import Rollout


class Evaluator:
    """Plays the panel with whatever weights it is given; environments are reused from checkpoint to checkpoint."""

    def __init__(self, config: RunConfig, policy: Policy | None = None, watch: Stopwatch | None = None) -> None:
        torch.set_num_threads(config.threads)
        self.config = config
        self.tasks = eval_tasks(config.env, config.evaluation.episodes)
        self.renderer = make_renderer(config.student, config.prompt, config.env.name)
        self.policy = policy or make_policy(config.student, self.renderer.ends, config.prompt.max_tokens)
        self.envs = make_envs(config.env, min(config.evaluation.batch, len(self.tasks)))
        self.watch = watch or Stopwatch()
        self.settings = PlaySettings(
            config.env.max_turns,
            config.prompt.max_prompt_tokens,
            config.prompt.max_response_tokens,
            config.evaluation.temperature,
        )

    def run(self, version: int) -> list[Rollout]:
        """One rollout a panel task, in panel order. Draws depend on (seed, version, episode) alone."""
        rollouts: list[Rollout] = []
        for begin in range(0, len(self.tasks), len(self.envs)):
            numbered = list(enumerate(self.tasks))[begin : begin + len(self.envs)]
            batch = [((0, i, 0), task, rng(self.config.seed, "evaluate", version, i)) for i, task in numbered]
            envs = self.envs[: len(batch)]
            rollouts += play(self.policy, self.renderer, envs, batch, version, self.settings, self.watch)
        return rollouts


def episode_rows(rollouts: list[Rollout], version: int, explorer_step: int, time: float) -> list[dict[str, Any]]:
    """Rows of evals.parquet."""
    return [
        {
            "version": version,
            "explorer_step": explorer_step,
            "time": time,
            "episode": i,
            "task": rollout.task,
            "success": rollout.success,
            "reward": rollout.reward,
            "score": None if math.isnan(rollout.score) else rollout.score,
            "turns": len(rollout.turns),
            "response_tokens": sum(turn.response_tokens for turn in rollout.turns),
            "invalid_actions": sum(not turn.valid_action for turn in rollout.turns),
            "stop": str(rollout.stop),
        }
        for i, rollout in enumerate(rollouts)
    ]


def evaluate_run(run_dir: Path, progress: Callable[[int, int, str], None], keep: bool = False) -> None:
    """Evaluate every saved version of a run that has no episodes in its log yet.

    Two checkpoints of one version hold the same weights: the first counts. A checkpoint is removed once its version's
    episodes are on disk, except the last version's (`keep`: none is). Raises `RunLogError` where there is neither a
    checkpoint nor a finished evaluation, of the run as a whole or of a version that every run has, and where another
    process is at work on the run.
    """
    config = read_config(run_dir)
    with runlog.writing(run_dir):
        _evaluate_run(config, run_dir, progress, keep)


def _evaluate_run(config: RunConfig, run_dir: Path, progress: Callable[[int, int, str], None], keep: bool) -> None:
    runlog.require_same(run_dir, config, f"restore what the run was made with, or delete {run_dir} and run it again")
    log = RunLog.open(run_dir, config)
    done = set(log.table("evals").column("version").to_pylist())
    files = sorted((run_dir / "checkpoints").glob("v*.safetensors"))
    if not files and not done:
        raise RunLogError(f"{run_dir} has no checkpoints: run `divopd train` for this cell first")
    firsts: dict[int, Path] = {}
    for path in files:
        firsts.setdefault(checkpoint_version(path), path)
    over: dict[str, Any] = {"updates": 0}
    if (run_dir / "status.json").exists():
        over = runlog.read_json(run_dir, "status.json")
    if lost := runlog.lost_evaluations(done | firsts.keys(), over["updates"], over.get("status")):
        raise RunLogError(f"{run_dir} {runlog.say_lost(run_dir, lost)}")
    evaluator = Evaluator(config) if firsts.keys() - done else None
    try:
        for number, path in enumerate(files):
            version = checkpoint_version(path)
            if evaluator and version not in done:
                success = _evaluate(evaluator, path, log)
                done.add(version)
                progress(number + 1, len(files), f"version {version}: success {success:.1%}")
            if not keep and path != firsts[max(firsts)]:
                path.unlink()
    finally:
        if evaluator:
            evaluator.policy.close()


def checkpoint_version(path: Path) -> int:
    """The learner version of a checkpoint, by its name."""
    return int(path.name[1:6])


def checkpoint_rows(evaluator: Evaluator, path: Path) -> list[dict[str, Any]]:
    """Rows of evals.parquet: the panel played with one checkpoint. Raises RunLogError where it cannot be read."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as handle:
            facts = handle.metadata()
            evaluator.policy.load_weights({name: handle.get_tensor(name) for name in handle.keys()})  # noqa: SIM118
    except (SafetensorError, PolicyError) as error:
        mend = f"delete {path.parent.parent} and run this cell again, or delete the file to do without its version"
        raise RunLogError(f"{path} is damaged ({error}); {mend}") from error
    version = int(facts["version"])
    return episode_rows(evaluator.run(version), version, int(facts["explorer_step"]), float(facts["time"]))


def _evaluate(evaluator: Evaluator, path: Path, log: RunLog) -> float:
    """Play the panel with one checkpoint and put its episodes on disk; the success rate."""
    rows = checkpoint_rows(evaluator, path)
    log.add("evals", rows)
    for stage, seconds in evaluator.watch.seconds.items():
        log.add_seconds("evaluation", seconds)
        evaluator.watch.seconds[stage] = 0.0
    log.flush()
    return sum(row["success"] for row in rows) / len(rows)
