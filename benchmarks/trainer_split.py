"""Where a run's time goes, and what two shortcuts are worth: merged rows in the learner, the kept attention cache.

Ratios are of two measurements in this one process, interleaved, so that a busy machine does not decide them. Usage:
    python benchmarks/trainer_split.py [--suite experiments/demo.yaml] [--updates 10]
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path

import numpy as np
import torch

from divopd.config import RunConfig
from divopd.learner import Learner
from divopd.policies.hf import HFPolicy
from divopd.seeds import rng
from divopd.suite import load_suite
from divopd.train import Trainer
from divopd.types import Turn


def split(cell: RunConfig) -> list[Turn]:
    """Run the cell, print its seconds by stage; the turns of its last batch, for the learner's comparison."""
    batch: list[Turn] = []
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(cell, Path(folder))
        learn = trainer._learn

        def watched(turns: list[Turn], version: int) -> dict[str, float]:
            batch[:] = turns
            return learn(turns, version)

        trainer._learn = watched  # type: ignore[assignment]
        for task in set(trainer.pipeline.tasks):  # compiled beforehand, as the workflow does
            trainer.envs[0].reset(task)
        started = time.perf_counter()
        seconds: dict[str, float] = {}
        charge = trainer._charge
        trainer._charge = lambda: (seconds.update(trainer.watch.seconds), charge())  # type: ignore[method-assign]
        trainer.run(lambda *_: None)
        total = time.perf_counter() - started
    print(f"{cell.setting}, rule {cell.method.rule}: {total / cell.train.updates:.2f} s an update")
    for stage, value in sorted(seconds.items(), key=lambda item: -item[1]):
        print(f"  {stage:12} {100 * value / total:5.1f} %")
    return batch


def compare(name: str, slow: Callable[[], object], fast: Callable[[], object], rounds: int = 5) -> None:
    """Medians of interleaved calls."""
    times: dict[str, list[float]] = {"slow": [], "fast": []}
    for _ in range(rounds):
        for key, call in (("slow", slow), ("fast", fast)):
            begin = time.perf_counter()
            call()
            times[key].append(time.perf_counter() - begin)
    before, after = (float(np.median(times[key])) for key in ("slow", "fast"))
    print(f"{name}: {before * 1e3:.0f} ms -> {after * 1e3:.0f} ms, {before / after:.1f} times faster")


def learner_ratio(cell: RunConfig, batch: list[Turn]) -> None:
    """One update on merged rows against one on separate rows."""
    from divopd.policies.hf import load_model

    apart = deepcopy(batch)
    for turn in apart:
        turn.context = turn.context.copy()  # no array is shared, so no rows merge
    learner = Learner(load_model(cell.student), cell.train)
    compare(f"learner, {len(batch)} rows apart -> merged", lambda: learner.update(apart), lambda: learner.update(batch))


def cache_ratio(trainer_cell: RunConfig) -> None:
    """A dozen turns of 16 episodes: prefilling the whole chat each turn against appending to the cache."""
    from divopd.policies.hf import load_model, load_tokenizer

    tokenizer = load_tokenizer(trainer_cell.student)
    policy = HFPolicy(load_model(trainer_cell.student), tokenizer.eos_token_id)

    def converse(keep: bool) -> None:
        session, draws = policy.session(16), [rng("bench", i) for i in range(16)]
        chats = [rng("user", i).integers(4, len(tokenizer), 14) for i in range(16)]
        for turn in range(12):
            fresh = [rng("user", i, turn).integers(4, len(tokenizer), 3) for i in range(16)]
            chats = [np.concatenate([a, b]) for a, b in zip(chats, fresh, strict=True)]
            if not keep:
                session = policy.session(16)
            new = fresh if keep and turn else chats
            samples = session.act(range(16), new, 1.0, 3, draws)
            chats = [np.concatenate([a, s.tokens]) for a, s in zip(chats, samples, strict=True)]

    compare("12 turns of 16 episodes, prefill anew -> kept cache", lambda: converse(False), lambda: converse(True), 3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--suite", type=Path, default=Path("experiments/demo.yaml"))
    parser.add_argument("--updates", type=int, default=10)
    options = parser.parse_args()
    torch.set_num_threads(1)
    seen = set()
    for cell in load_suite(options.suite):
        if cell.setting in seen:
            continue
        seen.add(cell.setting)
        cell = cell.model_copy(update={"train": cell.train.model_copy(update={"updates": options.updates})})
        batch = split(cell)
        learner_ratio(cell, batch)
        cache_ratio(cell)


if __name__ == "__main__":
    main()
