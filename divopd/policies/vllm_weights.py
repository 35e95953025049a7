"""How new weights reach a vLLM engine: a file in memory, the GPU's own memory (ipc), or from GPU to GPU (nccl)."""

from __future__ import annotations

import socket
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from ..config import PolicyConfig
from .base import PolicyError
from .hf import require_folder, tied_weights
from .road import gpu_of

SHARED_MEMORY = Path("/dev/shm")


class Layout:
    """A checkpoint's names and shapes, from a model without memory. `copies`: tied name -> the name it shares."""

    def __init__(self, config: PolicyConfig) -> None:
        from transformers import AutoConfig, AutoModelForCausalLM

        require_folder(config)
        try:
            self.config: Any = AutoConfig.from_pretrained(config.path, revision=config.revision)
            with torch.device("meta"):
                model: Any = AutoModelForCausalLM.from_config(self.config)
        except (OSError, ValueError) as error:
            raise PolicyError(f"checkpoint {config.path} cannot be loaded: {str(error).splitlines()[0]}") from error
        state = model.state_dict()
        source = model.get_input_embeddings().weight
        embedding = next(name for name, parameter in model.named_parameters() if parameter is source)
        self.copies = {name: embedding for name in tied_weights(model)}
        self.shapes = {name: tuple(t.shape) for name, t in state.items() if name not in self.copies}
        self.vocabulary = int(source.shape[0])
        self.longest = int(getattr(self.config.get_text_config(), "max_position_embeddings", 1 << 30))

    def check(self, found: Mapping[str, tuple[int, ...]]) -> None:
        """Raise `PolicyError` where names and shapes misfit: vLLM would keep an old tensor where a new one lacks."""
        wrong = [f"lacks {name}" for name in self.shapes if name not in found]
        wrong += [f"has {name}" for name in found if name not in self.shapes and name not in self.copies]
        wrong += [
            f"size mismatch for {name}: {found[name]}, not {shape}"
            for name, shape in self.shapes.items()
            if name in found and found[name] != shape
        ]
        if wrong:
            raise PolicyError(f"weights do not fit the model: the checkpoint {', '.join(wrong[:3])}")


def route(transfer: str, gpus: list[str | None], weights: Mapping[str, torch.Tensor]) -> str:
    """ "file", "ipc" or "nccl" for these tensors. `gpus`: UUIDs of the engine's GPUs, None on CPU.

    auto is ipc where tensors and engine share one GPU, the fastest way as nothing is copied but within it, and else the
    file. nccl must be asked for: it needs the tensors on a GPU that the engine does not use. Raises `PolicyError` where
    what is asked for cannot be.
    """
    if transfer == "file" or None in gpus:
        if transfer not in ("file", "auto"):
            raise PolicyError(f"engine.transfer: {transfer} needs an engine on a GPU: set auto or file")
        return "file"
    here = {gpu_of(tensor.device) for tensor in weights.values()}
    shared = len(here) == 1 and set(gpus) == here
    if transfer == "auto":
        return "ipc" if shared else "file"
    if None in here:
        raise PolicyError(f"engine.transfer: {transfer} needs the learner's weights on a GPU: set auto or file")
    if (transfer == "ipc") != shared:
        other = "nccl" if transfer == "ipc" else "ipc"
        where = "share one GPU" if shared else "are on different GPUs"
        raise PolicyError(f"engine.transfer: {transfer}, but learner and engine {where}: set {other}, auto or file")
    return transfer


@contextmanager
def weight_file(weights: Mapping[str, torch.Tensor]) -> Iterator[str]:
    """A safetensors file for as long as the block lasts, in memory where the system has such a folder."""
    from safetensors.torch import save_file

    root = SHARED_MEMORY if SHARED_MEMORY.is_dir() else None
    with tempfile.TemporaryDirectory(prefix="divopd-weights-", dir=root) as folder:
        path = str(Path(folder) / "weights.safetensors")
        save_file(dict(weights), path)
        yield path


class Sender:
    """vLLM's own trainer side: sends GPU tensors to an engine's workers by ipc or nccl, all of them each time.

    `client` has the engine's side of it: `Engine`, or vLLM's RayVLLMWeightSyncClient where the engine is in another
    process. `workers` is its number of GPUs. Only a GPU can show that this works: tests/test_vllm.py has its tests.
    """

    def __init__(self, backend: str, client: Any, workers: int, copies: Mapping[str, str]) -> None:
        self.backend, self.client, self.workers, self.copies = backend, client, workers, copies
        self._engine: Any = None
        self._source: Any = None

    def send(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Blocks until the workers hold them. Tied names are sent as tensors of their own (vllm_worker.py says why)."""
        whole = dict(weights) | {tied: weights[name] for tied, name in self.copies.items()}
        if self._engine is None:
            self._open(whole)
        self._source.weights = whole
        try:
            self._engine.send_weights()
        finally:
            self._source.weights = {}

    def _open(self, weights: dict[str, torch.Tensor]) -> None:
        from vllm.distributed.weight_transfer.base import ParamMeta, WeightSource

        class Source(WeightSource):  # a fresh pass each round
            def __init__(self) -> None:
                self.weights = weights

            def metadata(self) -> list[Any]:
                return [ParamMeta(name, t.dtype, tuple(t.shape)) for name, t in self.weights.items()]

            def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
                return iter(self.weights.items())

        self._source = Source()
        if self.backend == "ipc":
            from vllm.distributed.weight_transfer.ipc_engine import (
                IPCTrainerInitInfo,
                IPCTrainerWeightTransferEngine,
            )

            info = IPCTrainerInitInfo(rank=0, packed=True)
            self._engine = IPCTrainerWeightTransferEngine.trainer_init(info, client=self.client, source=self._source)
            return
        from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerInitInfo, NCCLTrainerWeightTransferEngine

        with socket.socket() as free:
            free.bind(("", 0))
            port = free.getsockname()[1]
        address = socket.gethostbyname(socket.gethostname())
        start = NCCLTrainerInitInfo(address, port, world_size=1 + self.workers, rank=0)
        self._engine = NCCLTrainerWeightTransferEngine.trainer_init(start, client=self.client, source=self._source)

    def close(self) -> None:
        if self._engine is not None and hasattr(self._engine, "shutdown"):
            self._engine.shutdown()
        self._engine = None
