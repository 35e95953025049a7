"""What runs inside vLLM's worker processes: taking new weights in place. Named to vLLM as `worker_extension_cls`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any


class Receiver:
    """Mixed into vLLM's worker; `collective_rpc` calls its methods by name."""

    model_runner: Any
    device: Any

    def take_file(self, path: str, copies: Mapping[str, str]) -> None:
        """Load a safetensors file of checkpoint names. `copies`: tied name -> the name whose tensor it shares.

        Tied names must come explicitly: vLLM reloads layer by layer, and a head without weights of its own keeps the
        old ones (on CPU a packed copy of them), with no more than a warning. `load_weights` alone fails on CPU, where
        linear layers hold packed weights.
        """
        self.model_runner.reload_weights(weights_iterator=_tensors(path, copies))

    def gpu(self) -> str | None:
        """The UUID of this worker's GPU; None on CPU."""
        if self.device.type != "cuda":
            return None
        import torch

        return str(torch.cuda.get_device_properties(self.device).uuid)


def _tensors(path: str, copies: Mapping[str, str]) -> Iterator[tuple[str, Any]]:
    from safetensors import safe_open

    with safe_open(path, framework="pt") as handle:
        for name in handle.keys():  # noqa: SIM118
            yield name, handle.get_tensor(name)
        for tied, name in copies.items():
            yield tied, handle.get_tensor(name)
