"""The learner over several ranks: the same update, its sequences, weights and optimizer divided (PyTorch's FSDP2).

Every rank is one process that makes the same calls with the same arguments, the whole batch among them; all calls but
`join` are collective. Who computes what is a pure function of the batch. Gradients are summed, never averaged: the
weight of a token, 1 / (N * |V_t|), is already that of the whole batch. docs/learner.md has the figures.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from divopd.config import PolicyConfig
from divopd.export import export_model, gathered, load_shards, save_shards
from divopd.learner import Learner
from divopd.logprobs import TokenLogprobs
from divopd.packing import divide
from divopd.policies.base import Spans


def join(rank: int, world: int, address: str, seconds: float = 300.0) -> torch.device:
    """Make this process rank `rank` of `world`, and wait for the others; the device it computes on.

    `address`: tcp://host:port on which rank 0 listens, or file:///path that all reach and that is not there yet. A GPU
    is shared by no two ranks: with several in sight, LOCAL_RANK, or else the rank, says which. `seconds`: how long a
    call waits for the other ranks before it raises.
    """
    gpus = torch.cuda.device_count()
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", rank)) % gpus) if gpus else torch.device("cpu")
    if gpus:
        torch.cuda.set_device(device)
    dist.init_process_group(
        "cpu:gloo,cuda:nccl" if gpus else "gloo", init_method=address, rank=rank, world_size=world,
        timeout=timedelta(seconds=seconds),
    )  # fmt: skip
    return device


def leave() -> None:
    """The end of `join`."""
    dist.destroy_process_group()


def load_master(policy: PolicyConfig) -> Any:
    """The student in float32 on the CPU: sharding moves it to the ranks' devices layer by layer."""
    from divopd.policies.hf import load_model

    return load_model(policy.model_copy(update={"dtype": "float32"}), "cpu")


class ShardedLearner(Learner):
    """A Learner whose ranks hold one part each of every weight, gradient and AdamW moment. `join` comes first.

    `bf16`: weights are gathered, and computed with, in bfloat16; the parts, the sum of gradients and the step are
    float32. Equal to one Learner to rounding in float32 (tests/test_sharded.py). A `teacher` is whole on every rank.
    """

    def _shard(self, scorer: TokenLogprobs) -> TokenLogprobs:
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        gpu = torch.cuda.is_available()
        mesh = dist.init_device_mesh("cuda" if gpu else "cpu", (self.world,))
        half = torch.bfloat16 if self.bf16 else None
        for layer in _layers(scorer.model):
            fully_shard(layer, mesh=mesh, mp_policy=MixedPrecisionPolicy(half, torch.float32))
        # Embedding, last norm and head: kept gathered until the head has been gone through backwards, chunk by chunk.
        # What the root is called with, cached log-probs of the teacher for one, stays float32.
        root = MixedPrecisionPolicy(half, torch.float32, cast_forward_inputs=False)
        fully_shard(scorer, mesh=mesh, mp_policy=root, reshard_after_forward=False)
        for module in scorer.modules():
            if isinstance(module, FSDPModule):
                module.set_gradient_divide_factor(1.0)
                module.set_force_sum_reduction_for_comms(True)
        self.autocast = False
        return scorer

    def _rounds(self, lengths: Sequence[int]) -> list[list[int]]:
        """This rank's micro-batches, and empty ones while other ranks still compute: each round is collective."""
        shares = divide(lengths, self.world)
        all_rounds = [super(ShardedLearner, self)._rounds([lengths[i] for i in share]) for share in shares]
        mine, share = all_rounds[self.rank], shares[self.rank]
        rounds = [[share[i] for i in batch] for batch in mine]
        return rounds + [[] for _ in range(max(map(len, all_rounds)) - len(mine))]

    def score(self, contexts: Sequence[np.ndarray], spans: Spans) -> list[list[np.ndarray]]:
        """See Learner.score. Collective, with the same arguments on every rank."""
        try:
            return super().score(contexts, spans)
        finally:
            scorer: Any = self.scorer
            scorer.reshard()  # no backward pass follows that would do it

    def _total(self, sums: dict[str, float]) -> dict[str, float]:
        total = torch.tensor(list(sums.values()), dtype=torch.float64, device=self.device)
        dist.all_reduce(total)
        return dict(zip(sums, total.tolist(), strict=True))

    def _clip(self) -> float:
        norm: Any = nn.utils.clip_grad_norm_(self.parameters, self.config.grad_clip)
        return float(norm.full_tensor())

    def _finite(self) -> bool:
        parts = [p.to_local() for p in self.parameters]
        bad = torch.tensor(float(not all(bool(x.isfinite().all()) for x in parts)), device=self.device)
        dist.all_reduce(bad)
        return not bad.item()

    def gathered_weights(self, dtype: torch.dtype | None = None, tied: bool = True) -> Iterator[tuple[str, Tensor]]:
        """Whole tensors by Hugging Face name, one at a time, on each rank's device: run it to its end on every rank.

        To be read before the next update, or copied. `dtype`: cast to it. `tied`: also the head that is the embedding.
        """
        return gathered(self.model, dtype, tied)

    def save(self, folder: str | Path) -> None:
        """Write weights, optimizer and version (DCP), whole or not at all. The folder is replaced."""
        save_shards(self.model, self.optimizer, self.version, Path(folder))

    def load(self, folder: str | Path) -> None:
        """Go on where `save` was called, whatever the number of ranks then. Raises RunLogError if nothing is there."""
        self.version = load_shards(self.model, self.optimizer, Path(folder))

    def export(self, folder: str | Path, dtype: torch.dtype = torch.float32) -> None:
        """Write a Hugging Face checkpoint (safetensors) without tokenizer; rank 0 does."""
        export_model(self.model, Path(folder), dtype)

    def state_dict(self) -> dict[str, Any]:
        raise NotImplementedError("a sharded learner saves to a folder: use save and load")

    def load_state_dict(self, state: dict[str, Any]) -> None:
        raise NotImplementedError("a sharded learner loads from a folder: use save and load")


def _layers(model: Any) -> list[nn.Module]:
    """The decoder's layers, which transformers names as what must stay in one piece."""
    names = set(model._no_split_modules or [])
    layers = [module for module in model.modules() if type(module).__name__ in names]
    if not layers:
        raise ValueError(f"{type(model).__name__} does not name its layers (_no_split_modules): it cannot be sharded")
    return layers
