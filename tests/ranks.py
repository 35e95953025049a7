"""What the ranks of test_sharded.py run: module-level functions, so that fresh processes find them."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.multiprocessing as mp

from divopd.config import LossConfig, TrainConfig
from divopd.learner import Learner, Reference
from divopd.sharded import ShardedLearner, join, leave
from test_learner import BATCH, VOCAB, rollout, tiny_qwen3

# three updates: many sequences, one (so that a rank has none), and dead rows alone
UPDATES = [BATCH, rollout(7, 3), rollout(5, 2, (0, 1))]


def make(kind: Callable[..., Learner], **change: Any) -> Learner:
    """A learner on the tests' tiny model, or for `loss` with a teacher that is another one."""
    loss = LossConfig(name=change.pop("loss", "sampled_reverse_kl"))
    bf16 = change.pop("bf16", False)
    model, teacher = tiny_qwen3(change.pop("tied", False)), tiny_qwen3(seed=3)
    config = TrainConfig(**({"learning_rate": 1e-3, "updates": 10} | change))
    return kind(model, config, bf16=bf16, loss=loss, teacher=Reference(teacher, VOCAB))


def whole(learner: Learner) -> dict[str, torch.Tensor]:
    """All weights of a learner of either kind, copied."""
    if isinstance(learner, ShardedLearner):
        return {name: value.clone() for name, value in learner.gathered_weights()}
    return copy.deepcopy(dict(learner.model.state_dict()))


def trace(learner: Learner, updates: Any = UPDATES) -> dict[str, Any]:
    """Of each update statistics and gradients (clipped); log-probs of the batch's tokens after it; weights at last."""
    grads: list[torch.Tensor] = []

    def keep(*_: Any) -> None:
        full = (p.grad.full_tensor() if hasattr(p.grad, "full_tensor") else p.grad for p in learner.parameters)
        grads.extend(g.clone() for g in full)

    hook = learner.optimizer.register_step_pre_hook(keep)
    stats, scores = [], []
    for turns in updates:
        stats.append(learner.update(turns))
        contexts, spans = [turn.context for turn in turns], [[(turn.start, turn.end), (1, 3)] for turn in turns]
        scores += [torch.from_numpy(span) for row in learner.score(contexts, spans) for span in row]
    hook.remove()
    return {"stats": stats, "grads": grads, "scores": scores, "weights": whole(learner)}


def launch(work: Callable[..., Any], world: int, folder: Path, *args: Any) -> list[Any]:
    """What `work(rank, *args)` returned in each of `world` ranks, which fork from a process that has imported all."""
    context: Any = mp.get_context("forkserver")
    context.set_forkserver_preload(["ranks"])
    address = folder / f"meet-{work.__name__}-{world}"
    out = [folder / f"{work.__name__}-{world}-{rank}.pt" for rank in range(world)]
    mp.start_processes(
        _rank, (world, f"file://{address}", work, out, args), nprocs=world, start_method="forkserver"
    )  # fmt: skip
    return [torch.load(path, weights_only=False) for path in out]


def _rank(rank: int, world: int, address: str, work: Callable[..., Any], out: list[Path], args: Any) -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    join(rank, world, address, seconds=60)
    torch.save(work(rank, *args), out[rank])
    leave()
