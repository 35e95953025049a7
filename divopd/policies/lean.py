"""Decoding for small Qwen3 models on a CPU: the transformers model's own arithmetic in a third of its calls.

A model of a few million parameters spends most of a decoding step on starting operations, not on arithmetic. Here the
projections that share an input are one matrix, a norm's scale lies in the matrix after it, and short queries attend
without the flash kernel, which pads them. Log-probs equal transformers' to rounding (tests/test_policies.py). Every
other model, and every GPU, runs transformers' own forward pass.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F


def fits(model: Any) -> bool:
    """Whether `LeanDecoder` computes this model: dense, narrow Qwen3 in float32 on a CPU, full attention throughout."""
    config, first = model.config, next(model.parameters())
    return (
        config.model_type == "qwen3"
        and first.device.type == "cpu"
        and first.dtype == torch.float32
        and config.hidden_size <= 512
        and config.hidden_act == "silu"
        and not config.attention_bias
        and set(config.layer_types) == {"full_attention"}
        and config.rope_parameters.get("rope_type") == "default"
    )


class _Layer:
    """One block's weights: those that share an input joined, and a norm's scale in the matrix that follows it."""

    def __init__(self, block: Any, heads: int, kv_heads: int) -> None:
        attention, mlp = block.self_attn, block.mlp
        joined = torch.cat([attention.q_proj.weight, attention.k_proj.weight, attention.v_proj.weight])
        self.qkv = (joined * block.input_layernorm.weight).T.contiguous()
        self.qk_norm = torch.cat(
            [attention.q_norm.weight.expand(heads, -1), attention.k_norm.weight.expand(kv_heads, -1)]
        )
        self.out = attention.o_proj.weight.T.contiguous()
        joined = torch.cat([mlp.gate_proj.weight, mlp.up_proj.weight])
        self.up = (joined * block.post_attention_layernorm.weight).T.contiguous()
        self.down = mlp.down_proj.weight.T.contiguous()


class LeanCache:
    """Keys and values of all layers, (2, layers, rows, kv heads, tokens, width), with room to spare."""

    def __init__(self, layers: int, kv_heads: int, width: int) -> None:
        self.length = 0
        self._shape = (layers, kv_heads, width)
        self._room: Tensor | None = None

    def grow(self, rows: int, tokens: int) -> None:
        """Make place for so many tokens more. The first call says how many rows there are."""
        layers, kv_heads, width = self._shape
        room, self.length = self._room, self.length + tokens
        if room is None or self.length > room.shape[-2]:
            self._room = torch.empty((2, layers, rows, kv_heads, max(256, 2 * self.length), width))
            if room is not None:
                self._room[..., : room.shape[-2], :] = room

    def put(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Write a layer's newest (rows, kv heads, tokens, width); its keys and values so far."""
        assert self._room is not None  # `grow` comes first
        new = slice(self.length - keys.shape[-2], self.length)
        self._room[0, layer, :, :, new], self._room[1, layer, :, :, new] = keys, values
        return self._room[0, layer, :, :, : self.length], self._room[1, layer, :, :, : self.length]

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep these rows, in rising order. They move down in place: a new room would cost more than the copying."""
        if self._room is None:
            return
        for to, row in enumerate(indices.tolist()):
            if to != row:
                self._room[:, :, to, :, : self.length] = self._room[:, :, row, :, : self.length]
        self._room = self._room[:, :, : len(indices)]


class LeanDecoder:
    """A model's weights, laid out for decoding; a copy, so make one after the weights have changed."""

    def __init__(self, model: Any) -> None:
        config = model.config
        self.heads, self.kv_heads, self.width = (
            config.num_attention_heads,
            config.num_key_value_heads,
            config.head_dim,
        )
        self.eps = config.rms_norm_eps
        body = model.base_model
        self.embedding = body.embed_tokens.weight
        self.head = (model.get_output_embeddings().weight * body.norm.weight).T.contiguous()
        self.layers = [_Layer(block, self.heads, self.kv_heads) for block in body.layers]
        powers = torch.arange(0, self.width, 2, dtype=torch.float32) / self.width
        self.frequencies = 1.0 / config.rope_parameters["rope_theta"] ** powers

    def cache(self) -> LeanCache:
        return LeanCache(len(self.layers), self.kv_heads, self.width)

    def extend(self, cache: LeanCache, ids: Tensor, mask: Tensor, positions: Tensor, last: Tensor) -> Tensor:
        """Append int64 (rows, w) ids; float32 logits (rows, vocabulary) after column `last[row]`.

        `mask`: (rows, tokens so far and new), 1 for a token that may be seen; `positions`: (rows, w).
        """
        rows, w = ids.shape
        cache.grow(rows, w)
        cos, sin = self._rotation(positions)
        bias = _bias(mask, w)
        hidden = self.embedding[ids.flatten()]  # (rows * w, hidden)
        for number, layer in enumerate(self.layers):
            joined = torch.mm(self._norm(hidden), layer.qkv).view(rows, w, -1, self.width)
            hidden = torch.addmm(hidden, self._attend(number, layer, joined, cache, cos, sin, bias), layer.out)
            gate, up = torch.mm(self._norm(hidden), layer.up).chunk(2, dim=-1)
            hidden = torch.addmm(hidden, F.silu(gate).mul_(up), layer.down)
        return torch.mm(self._norm(hidden[torch.arange(rows) * w + last]), self.head)

    def _attend(
        self, number: int, layer: _Layer, joined: Tensor, cache: LeanCache, cos: Tensor, sin: Tensor, bias: Tensor
    ) -> Tensor:
        """`joined`: queries, keys and values, (rows, w, heads, width). Returns (rows * w, hidden) before `out`."""
        rows, w, _, width = joined.shape
        both, values = joined.split([self.heads + self.kv_heads, self.kv_heads], dim=2)
        both = self._norm(both).mul_(layer.qk_norm)
        turned = torch.cat([both[..., width // 2 :], both[..., : width // 2]], dim=-1)  # the sign is in `sin`
        both = both.mul_(cos).addcmul_(turned, sin)
        query, key = both.transpose(1, 2).split([self.heads, self.kv_heads], dim=1)
        keys, vals = cache.put(number, key, values.transpose(1, 2))
        if self.heads != self.kv_heads:
            groups = self.heads // self.kv_heads
            keys, vals = keys.repeat_interleave(groups, dim=1), vals.repeat_interleave(groups, dim=1)
        keys, vals, query = (x.reshape(rows * self.heads, -1, width) for x in (keys, vals, query))
        scores = torch.bmm(query, keys.transpose(1, 2)).view(rows, self.heads, w, -1)
        shares = torch.softmax(scores.mul_(width**-0.5).add_(bias), dim=-1).view(rows * self.heads, w, -1)
        mixed = torch.bmm(shares, vals).view(rows, self.heads, w, width)
        return mixed.transpose(1, 2).reshape(rows * w, -1)

    def _norm(self, x: Tensor) -> Tensor:
        """Root mean square norm over the last axis, its scale left to what follows."""
        size = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        return x * size.square_().mul_(1.0 / x.shape[-1]).add_(self.eps).rsqrt_()

    def _rotation(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Cosine and signed sine, (rows, w, 1, width)."""
        angles = positions[:, :, None].float() * self.frequencies
        cos, sin = angles.cos(), angles.sin()
        return torch.cat([cos, cos], dim=-1)[:, :, None], torch.cat([-sin, sin], dim=-1)[:, :, None]


def _bias(mask: Tensor, w: int) -> Tensor:
    """(rows, 1, w, tokens): 0 where a new token sees a token, a huge negative number where it does not."""
    total = mask.shape[1]
    causal = torch.ones((w, total), dtype=torch.bool).tril(diagonal=total - w)
    return torch.where(causal & mask.bool()[:, None, :], 0.0, -1e30)[:, None]
