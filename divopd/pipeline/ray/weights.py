"""Weights on their way from the learner to everyone: put into the object store once, read by each without a copy."""

from __future__ import annotations

import warnings
from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor

Packed = dict[str, tuple[str, np.ndarray]]
"""By the checkpoint's names: type, and the numbers as an array, which Ray keeps outside the pickle."""


def pack(weights: Iterable[tuple[str, Tensor]], dtype: torch.dtype) -> Packed:
    """Floating-point tensors as `dtype`, the others as they are. On a CPU of that type nothing is copied yet."""
    out: Packed = {}
    for name, tensor in weights:
        plain = tensor.detach().to("cpu", dtype if tensor.is_floating_point() else None).contiguous()
        # numpy has no bfloat16: its 16 bits travel as an integer's
        bits = plain.view(torch.int16) if plain.dtype is torch.bfloat16 else plain
        out[name] = (str(plain.dtype).removeprefix("torch."), bits.numpy())
    return out


def unpack(packed: Packed) -> dict[str, Tensor]:
    """Tensors over the packed memory, for reading alone."""
    out = {}
    for name, (kind, array) in packed.items():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # memory of the object store cannot be written
            tensor = torch.from_numpy(array)
        out[name] = tensor.view(torch.bfloat16) if kind == "bfloat16" else tensor
    return out
