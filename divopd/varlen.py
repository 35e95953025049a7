"""Attention over sequences packed into one row: each sees itself alone, without padding and without a mask.

`pack_attention` makes it a model's attention. Calls that name no segments are answered by PyTorch's scaled dot product
as before, so that the same model still samples and scores with masks and caches. With segments: the flash kernel for
variable lengths where the tensors are half precision on a GPU and this PyTorch has it, else one causal call a segment.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

NAME = "divopd_packed"


@dataclass(frozen=True, slots=True, eq=False)
class Segments:
    """Where the sequences of a packed row lie."""

    lengths: tuple[int, ...]
    bounds: Tensor  # int32 (segments + 1,): cumulative lengths from 0

    @classmethod
    def of(cls, lengths: tuple[int, ...], device: torch.device) -> Segments:
        bounds = torch.tensor([0, *lengths], dtype=torch.int32).cumsum(0, dtype=torch.int32)
        return cls(lengths, bounds.to(device))


def packed_arguments(lengths: tuple[int, ...], device: torch.device) -> dict[str, Any]:
    """What a model's body takes beside `input_ids` (1, sum of lengths) for such a row, and `use_cache=False`.

    Positions start anew in each sequence. From them transformers would make a mask of (sum of lengths)^2; a mask in
    four dimensions is handed to the layers as it is, so this one of a single value only stands in for it.
    """
    positions = torch.cat([torch.arange(n, device=device) for n in lengths])[None]
    stand_in = torch.ones((1, 1, 1, 1), dtype=torch.bool, device=device)
    return {"position_ids": positions, "attention_mask": stand_in, "segments": Segments.of(lengths, device)}


def pack_attention(model: Any) -> None:
    """Switch a transformers model to this attention, and try it on two sequences of three tokens.

    Raises ValueError for a model with other than full attention, or whose layers do not keep packed sequences apart.
    """
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    kinds = set(getattr(model.config, "layer_types", None) or ["full_attention"])
    if kinds != {"full_attention"}:
        raise ValueError(f"{type(model).__name__} has layers of {', '.join(sorted(kinds))}: set train.packed to false")
    AttentionInterface.register(NAME, packed_attention)
    AttentionMaskInterface.register(NAME, sdpa_mask)
    model.set_attn_implementation(NAME)
    _check(model)


@torch.no_grad()
def _check(model: Any) -> None:
    """Sequences that differ in their first half alone must not differ in the second."""
    embedding = model.get_input_embeddings()
    device, training, found = embedding.weight.device, model.training, []
    model.eval()
    for first in (0, 1):
        tokens = torch.tensor([[first, first, first, 0, 1, 2]], device=device) % embedding.num_embeddings
        more = packed_arguments((3, 3), device)
        found.append(model.base_model(input_ids=tokens, use_cache=False, **more).last_hidden_state[0, 3:])
    alone = model.base_model(input_ids=tokens[:, 3:], use_cache=False).last_hidden_state[0]
    model.train(training)
    error = max(float((x - alone).abs().max() / alone.abs().max().clamp(min=1e-6)) for x in found)
    if not error < (1e-4 if alone.dtype == torch.float32 else 0.05):
        raise ValueError(f"{type(model).__name__} does not keep packed sequences apart: set train.packed to false")


def packed_attention(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, dropout: float = 0.0,
    scaling: float | None = None, segments: Segments | None = None, **more: Any,
) -> tuple[Tensor, None]:  # fmt: skip
    """transformers' attention interface: (b, heads, t, d) queries, keys, values -> (b, t, heads, d)."""
    from transformers.integrations.sdpa_attention import sdpa_attention_forward as plain

    if segments is None:
        return plain(module, query, key, value, attention_mask, dropout, scaling, **more)
    kernel = _kernel() if query.is_cuda and query.dtype in (torch.float16, torch.bfloat16) and not dropout else None
    if kernel is not None:
        parts = (x[0].transpose(0, 1) for x in (query, key, value))  # (t, heads, d)
        longest, grouped = max(segments.lengths), query.shape[1] != key.shape[1]
        out = kernel(*parts, segments.bounds, segments.bounds, longest, longest, scale=scaling, window_size=(-1, 0),
                     enable_gqa=grouped)  # fmt: skip
        return out[None], None
    cut = (x.split(segments.lengths, dim=2) for x in (query, key, value))
    return torch.cat([plain(module, q, k, v, None, dropout, scaling)[0] for q, k, v in zip(*cut, strict=True)], 1), None


def _kernel() -> Any:
    """PyTorch's flash attention for variable lengths, from the release on that has grouped heads; else None."""
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return None
    return varlen_attn if "enable_gqa" in inspect.signature(varlen_attn).parameters else None
