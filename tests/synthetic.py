"""Run logs made from formulas, for tests of what reads them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from divopd.config import MethodConfig, PolicyConfig, RunConfig
from divopd.runlog import SCHEMAS, RunLog, mark_evaluated

# what each method's curve tends to, how fast (updates), effective rollouts, turns a rollout
SHAPES = {
    "vanilla": (0.62, 45.0, 5.2, 10.0),
    "divopd_base": (0.66, 38.0, 12.4, 3.9),
    "divopd": (0.72, 24.0, 12.5, 3.8),
    "divopd_recovery": (0.74, 22.0, 12.5, 3.8),
}


def cell(setting: str = "alfworld-0.5m", method: str = "vanilla", seed: int = 0, **over: Any) -> RunConfig:
    """A resolved cell whose checkpoints do not exist."""
    return RunConfig(
        suite="synthetic",
        setting=setting,
        method=MethodConfig(name=method, rule=method),
        seed=seed,
        student=PolicyConfig(path=f"models/none/{setting}"),
        teacher=PolicyConfig(path="models/none/teacher"),
        **over,
    )


def row(table: str, **values: Any) -> dict[str, Any]:
    """A row of a run-log table: zeros and empty texts but for what is given."""
    zero = {"int64": 0, "double": 0.0, "string": "", "bool": False}
    return {f.name: zero[str(f.type)] for f in SCHEMAS[table]} | values


def write_run(root: Path, config: RunConfig, updates: int = 60, every: int = 10, episodes: int = 100) -> Path:
    """A finished run whose curve rises from 25 % as SHAPES says, with noise drawn from its own seed."""
    run_dir = config.run_dir(root)
    log = RunLog.open(run_dir, config)
    top, pace, effective, per_rollout = SHAPES[config.method.name]
    rng = np.random.default_rng([config.seed, sorted(SHAPES).index(config.method.name), len(config.setting)])
    log.add("updates", [_update(q, effective, per_rollout, rng) for q in range(updates)])
    for version in range(0, updates + 1, every):
        p = 0.25 + (top - 0.25) * (1 - np.exp(-version / pace))
        wins = rng.random(episodes) < p
        log.add("evals", [_episode(version, i, bool(won)) for i, won in enumerate(wins)])
    log.add("turns", [_turn(i) for i in range(200)])
    log.add_seconds("learner", 12.0)
    log.finish("done", updates=updates)
    mark_evaluated(run_dir)
    return run_dir


def _update(q: int, effective: float, per_rollout: float, rng: np.random.Generator) -> dict[str, Any]:
    tokens = int(rng.integers(11_000, 13_000))
    return row(
        "updates", update=q, time_start=10.0 * q, time_end=10.0 * q + 10, read_wait=1.0, learner_seconds=9.0,
        explorer_seconds=20.0 * (q + 1), teacher_seconds=2.0 * (q + 1), loss=0.4, kl_per_token=0.4 * np.exp(-q / 80),
        grad_norm=1.0, rows=64, rollouts=int(64 / per_rollout), effective_rollouts=effective + rng.normal(0, 0.3),
        top_rollout_token_share=1.8 / effective, turns_per_rollout=per_rollout, dead_row_share=0.02, mean_age=1.5,
        max_age=2, row_tokens=tokens, response_tokens=400, valid_tokens=380, computed_tokens=tokens // 3,
        arrived_turns=128 * (q + 1), stale_rows=20 * q, queue_length=100, teacher_tokens=800 * (q + 1),
        arrival_rate=12.8, drain_rate=6.4, explorer_steps=q + 1,
    )  # fmt: skip


def _episode(version: int, i: int, won: bool) -> dict[str, Any]:
    return row(
        "evals", version=version, explorer_step=version, time=10.0 * version, episode=i, task=f"gen/eval/{i}",
        success=won, reward=float(won), turns=12 if won else 30, response_tokens=60,
        stop="success" if won else "turn_limit",
    )  # fmt: skip


def _turn(i: int) -> dict[str, Any]:
    # 50 rollouts of four turns; nothing is selected of every fifth rollout
    selected = i % 4 if (i // 4) % 5 else -1
    return row(
        "turns", explorer_batch=i // 40, task_index=i // 4 % 10, turn=i % 4, task="gen/train/0", actor="student",
        valid_tokens=5, disagreement=0.3, selected_at=selected, dropped=None if selected >= 0 else "stale",
    )  # fmt: skip


def write_grid(root: Path) -> Path:
    """Two settings, three methods, two seeds."""
    for setting in ("alfworld-0.5m", "alfworld-2m"):
        for method in ("vanilla", "divopd_base", "divopd"):
            for seed in (0, 1):
                write_run(root, cell(setting, method, seed))
    return root
