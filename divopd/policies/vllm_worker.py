"""What runs inside vLLM's worker processes: taking new weights in place, and ending with whoever started them.

Named to vLLM as `worker_extension_cls`.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import select
import signal
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any

from .road import End

OWNER = "DIVOPD_ENGINE_OWNER"
"""Environment variable: the process that holds the engine. All that it starts for the engine inherit it."""


class Receiver:
    """Mixed into vLLM's worker; `collective_rpc` calls its methods by name."""

    model_runner: Any
    device: Any
    rank: int  # of those that share a model
    end = End()

    def __new__(cls, *_: Any, **__: Any) -> Receiver:
        """The one thing of a mixin that a worker's construction passes through."""
        if int(os.environ.get(OWNER, os.getpid())) != os.getpid():
            end_with(int(os.environ[OWNER]))
        return super().__new__(cls)

    def take_file(self, path: str, copies: Mapping[str, str]) -> None:
        """Load a safetensors file of checkpoint names. `copies`: tied name -> the name whose tensor it shares.

        Tied names must come explicitly: vLLM reloads layer by layer, and a head without weights of its own keeps the
        old ones (on CPU a packed copy of them), with no more than a warning. `load_weights` alone fails on CPU, where
        linear layers hold packed weights.
        """
        self._reload(with_copies(_tensors(path), copies))

    def take_road(self, way: bytes, here: str, copies: Mapping[str, str]) -> None:
        """The same with what comes along a road (road.py). `way`: pickled; `here`: this node's address."""

        def into(tensors: Iterator[tuple[str, Any]]) -> None:
            self._reload(with_copies(tensors, copies))

        self.end.load(pickle.loads(way), 1 + self.rank, here, self.device, into)

    def _reload(self, tensors: Iterator[tuple[str, Any]]) -> None:
        """A reload that broke off within a layer leaves what it had of it, which vLLM would count to the next one."""
        from vllm.model_executor.model_loader.reload.layerwise import get_layerwise_info

        for module in self.model_runner.get_model().modules():
            info = get_layerwise_info(module)
            info.loaded_weights.clear()
            info.load_numel = 0
        self.model_runner.reload_weights(weights_iterator=tensors)

    def gpu(self) -> str | None:
        """The UUID of this worker's GPU; None on CPU."""
        if self.device.type != "cuda":
            return None
        import torch

        return str(torch.cuda.get_device_properties(self.device).uuid)


def _tensors(path: str) -> Iterator[tuple[str, Any]]:
    from safetensors import safe_open

    with safe_open(path, framework="pt") as handle:
        for name in handle.keys():  # noqa: SIM118
            yield name, handle.get_tensor(name)


def with_copies(tensors: Iterable[tuple[str, Any]], copies: Mapping[str, str]) -> Iterator[tuple[str, Any]]:
    """And each once more under the tied names that share it."""
    for name, tensor in tensors:
        yield name, tensor
        for tied, source in copies.items():
            if source == name:
                yield tied, tensor


def end_with(owner: int) -> None:
    """End this process, and the one between it and `owner` where there is one, as soon as `owner` is gone.

    vLLM's processes end when they are told to. An owner that is killed tells nobody, and its engine would keep its
    memory, a GPU's above all, for ever. A worker is the child of the engine's core, or, on one GPU, is the core.
    """
    parent = multiprocessing.parent_process()  # known even where it has been gone since before

    def wait() -> None:
        with suppress(ProcessLookupError):
            gone = select.poll()
            gone.register(os.pidfd_open(owner), select.POLLIN)
            gone.poll()
        if parent is not None and parent.pid != owner and parent.pid == os.getppid():
            os.kill(parent.pid, signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=wait, name="owner", daemon=True).start()
