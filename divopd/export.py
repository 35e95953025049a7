"""What leaves a sharded model: whole weights for the explorers, resume folders, Hugging Face checkpoints.

All functions are collective: every rank calls them, with the same arguments.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from divopd.files import RunLogError
from divopd.policies.hf import tied_weights


def gathered(model: Any, dtype: torch.dtype | None = None, tied: bool = True) -> Iterator[tuple[str, Tensor]]:
    """(name, whole tensor), one at a time; see ShardedLearner.gathered_weights."""
    copies = tied_weights(model)
    for name, value in model.state_dict().items():
        if name in copies and not tied:
            continue
        whole = value.full_tensor() if hasattr(value, "full_tensor") else value
        yield name, whole.detach().to(dtype or whole.dtype)


def save_shards(model: Any, optimizer: torch.optim.Optimizer, version: int, folder: Path) -> None:
    """Each rank writes its part beside `folder`; then the whole takes its place."""
    import torch.distributed.checkpoint as dcp

    beside = folder.parent / f".{folder.name}.tmp"
    if dist.get_rank() == 0:
        shutil.rmtree(beside, ignore_errors=True)
        beside.mkdir(parents=True)
    dist.barrier()
    dcp.save(_state(model, optimizer, version), checkpoint_id=beside)
    dist.barrier()
    if dist.get_rank() == 0:
        old = folder.parent / f".{folder.name}.old"
        shutil.rmtree(old, ignore_errors=True)
        if folder.exists():
            folder.rename(old)
        beside.rename(folder)
        shutil.rmtree(old, ignore_errors=True)
    dist.barrier()


def load_shards(model: Any, optimizer: torch.optim.Optimizer, folder: Path) -> int:
    """Take weights and optimizer from what any number of ranks saved; the version. Raises RunLogError."""
    import torch.distributed.checkpoint as dcp

    old = folder.parent / f".{folder.name}.old"  # where the end came between the two renamings
    found = next((path for path in (folder, old) if (path / ".metadata").exists()), None)
    if found is None:
        raise RunLogError(f"{folder} holds no learner state; run this cell again from its start")
    state = _state(model, optimizer, 0)
    try:
        dcp.load(state, checkpoint_id=found)  # in place
    except Exception as error:  # of several ranks, wrapped by each
        why = str(error).strip().splitlines()[-1]
        raise RunLogError(
            f"{found} does not fit this learner, or is damaged: {why}; delete it and start over"
        ) from error
    return int(state["version"])


def _state(model: Any, optimizer: torch.optim.Optimizer, version: int) -> dict[str, Any]:
    """Everything by reference; moments that no step has made yet are made as AdamW would."""
    moments = {}
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        if not optimizer.state[parameter]:
            zero = {key: torch.zeros_like(parameter, requires_grad=False) for key in ("exp_avg", "exp_avg_sq")}
            optimizer.state[parameter] = {"step": torch.tensor(0.0), **zero}
        moments[name] = optimizer.state[parameter]
    copies = tied_weights(model)
    weights = {name: value for name, value in model.state_dict().items() if name not in copies}
    return {"model": weights, "optimizer": moments, "version": torch.tensor(version)}


def export_model(model: Any, folder: Path, dtype: torch.dtype = torch.float32) -> None:
    """Write config and weights that `from_pretrained` loads. Rank 0 holds them whole, in `dtype`, on its CPU."""
    first = dist.get_rank() == 0
    weights = {}
    for name, value in gathered(model, dtype, tied=False):
        if first:
            weights[name] = value.cpu().contiguous()
    if first:
        before, model.config.dtype = model.config.dtype, dtype
        model.save_pretrained(folder, state_dict=weights)
        model.config.dtype = before
    dist.barrier()
