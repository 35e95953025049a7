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
from divopd.envs.registry import eval_tasks
from divopd.evaluate import Evaluator
from divopd.learner import Learner
from divopd.policies.hf import HFPolicy
from divopd.runlog import STAGES
from divopd.seeds import rng
from divopd.suite import load_suite
from divopd.train import Trainer
from divopd.types import Turn


def split(cell: RunConfig) -> list[Turn]:
    """Run the cell and evaluate it once, print the seconds by stage; its last batch, for the learner's comparison."""
    batch: list[Turn] = []
    seconds = {stage: 0.0 for stage in STAGES if stage != "startup"}
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(cell, Path(folder))
        learn, charge = trainer._learn, trainer._charge

        def watched(turns: list[Turn], version: int) -> dict[str, float]:
            batch[:] = turns
            return learn(turns, version)

        def charged() -> None:  # at every resume point and at the end; the watch is emptied
            for stage, value in trainer.watch.seconds.items():
                seconds[stage] += value
            charge()

        trainer._learn, trainer._charge = watched, charged  # type: ignore[assignment, method-assign]
        for task in {*trainer.pipeline.tasks, *eval_tasks(cell.env, cell.evaluation.episodes)}:
            trainer.envs[0].reset(task)  # compiled beforehand, as the workflow does
        trainer.watch.seconds.clear()  # of loading, which is no part of an update
        started = time.perf_counter()
        trainer.run(lambda *_: None)
        trained = time.perf_counter() - started
        evaluator = Evaluator(cell)
        started = time.perf_counter()
        evaluator.run(cell.train.updates)
        seconds["evaluation"] = time.perf_counter() - started
    updates, episodes, total = cell.train.updates, cell.evaluation.episodes, trained + seconds["evaluation"]
    print(f"{cell.setting}, rule {cell.method.rule}: {updates} updates, {trained / updates:.2f} s each; "
          f"one evaluation of {episodes} episodes, {seconds['evaluation']:.1f} s; of both together:")  # fmt: skip
    seconds["in no stage"] = total - sum(seconds.values())
    for stage, value in sorted(seconds.items(), key=lambda item: -item[1]):
        if value:  # a stage that this method does not have
            print(f"  {_SHOWN.get(stage, stage):20} {value:8.2f} s {100 * value / total:5.1f} %")
    return batch


_SHOWN = {"clock": "clock, pool and log", "environment": "environments"}


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
