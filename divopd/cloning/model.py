"""Small Qwen3 models with embeddings that know what an entity name is made of."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import torch

_ENTITY = re.compile(r"([a-z]+) ([0-9]+)")


@dataclass(frozen=True, slots=True)
class ModelSize:
    """Width, depth and heads of a Qwen3 model with tied embeddings."""

    hidden: int
    layers: int
    heads: int
    ffn: int
    kv_heads: int  # one a head: a single shared one is too narrow to copy names


def new_model(size: ModelSize, tokenizer: Any, seed: int) -> Any:
    """A fresh float32 model for this tokenizer.

    The embedding of "drawer 2" starts as that of "drawer" plus one for the number 2, so that names of one type, and the
    type's own word in the goal, are neighbours from the start; nothing ties them afterwards.
    """
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=size.hidden,
        intermediate_size=size.ffn,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        num_key_value_heads=size.kv_heads,
        head_dim=size.hidden // size.heads,
        max_position_embeddings=2048,
        rope_parameters={"rope_type": "default", "rope_theta": 1e6},  # copying is by content, not by distance
        tie_word_embeddings=True,
        use_sliding_window=False,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
    )
    model: Any = Qwen3ForCausalLM(config)
    _structure(model.get_input_embeddings().weight, tokenizer.get_vocab())
    return model


@torch.no_grad()
def _structure(embedding: torch.Tensor, vocabulary: dict[str, int]) -> None:
    numbers: dict[str, torch.Tensor] = {}
    types: dict[str, torch.Tensor] = {}
    for name, index in sorted(vocabulary.items(), key=lambda item: item[1]):
        if found := _ENTITY.fullmatch(name):
            kind, number = found.groups()
            if kind not in types:
                types[kind] = embedding[vocabulary[kind]].clone() if kind in vocabulary else embedding[index].clone()
            if number not in numbers:
                numbers[number] = torch.randn_like(embedding[index]) * embedding[index].std()
            embedding[index] = types[kind] + numbers[number]
