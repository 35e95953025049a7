"""Sizes of models: from config.json where the checkpoint is local, else from a table of the paper's models."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from divopd.config import PolicyConfig


@dataclass(frozen=True, slots=True)
class Shape:
    """A dense Qwen2 or Qwen3 model. `vocab`: rows of its embedding, padding included."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    ffn: int
    vocab: int
    tied: bool
    head_dim: int
    kind: str = "qwen2"  # or "qwen3", whose queries and keys are normed and whose projections have no bias

    @property
    def embedding(self) -> int:
        """Parameters of the input embedding, or of an output matrix of its own."""
        return self.vocab * self.hidden

    @property
    def block(self) -> int:
        """Parameters of one layer."""
        q, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        attention = self.hidden * (q + 2 * kv) + q * self.hidden
        extra = 2 * self.head_dim if self.kind == "qwen3" else q + 2 * kv
        return attention + extra + 3 * self.hidden * self.ffn + 2 * self.hidden

    @property
    def parameters(self) -> int:
        return self.layers * self.block + self.hidden + self.embedding * (1 if self.tied else 2)

    def flops(self, context: float = 0.0) -> float:
        """Of one token's forward pass with `context` tokens before it: two a weight that it meets, and attention.

        The output matrix counts: it is met by every token that is sampled, scored or trained.
        """
        met = self.layers * self.block + self.embedding
        return 2.0 * met + 4.0 * self.layers * self.heads * self.head_dim * context

    @property
    def kv_bytes(self) -> int:
        """Of one token's keys and values in bfloat16."""
        return 2 * 2 * self.layers * self.kv_heads * self.head_dim


# From the config.json that Qwen publishes with each model (Qwen2.5 and Qwen3 technical reports, tables of sizes).
_QWEN25_1B = Shape(1536, 28, 12, 2, 8960, 151_936, True, 128)
_QWEN25_3B = Shape(2048, 36, 16, 2, 11_008, 151_936, True, 128)
_QWEN25_7B = Shape(3584, 28, 28, 4, 18_944, 152_064, False, 128)
_QWEN3_1B = Shape(2048, 28, 16, 8, 6144, 151_936, True, 128, "qwen3")
_QWEN3_4B = Shape(2560, 36, 32, 8, 9728, 151_936, True, 128, "qwen3")
SHAPES = {
    "Qwen2.5-1.5B": _QWEN25_1B,
    "Qwen2.5-3B": _QWEN25_3B,
    "Qwen2.5-7B": _QWEN25_7B,
    "Qwen3-1.7B": _QWEN3_1B,
    "Qwen3-4B": _QWEN3_4B,
}
_IDS = {"fnlp/Embodied_R1-ScienceWorld": _QWEN25_7B}  # the paper calls it a 7B teacher of the Qwen2.5 family


def shape_of(policy: PolicyConfig) -> Shape | None:
    """The shape of a checkpoint; None for a hub id that is neither local nor in the table, and for a config.json that
    is damaged or does not say its sizes as Qwen does.
    """
    config = Path(policy.path) / "config.json"
    if config.is_file():
        try:
            return read_shape(json.loads(config.read_text(encoding="utf-8")))
        except (KeyError, TypeError, ValueError, ArithmeticError):
            return None
    if policy.path in _IDS:
        return _IDS[policy.path]
    return next((shape for name, shape in SHAPES.items() if name in policy.path), None)


def read_shape(config: dict[str, Any]) -> Shape:
    """From a config.json's content. Raises KeyError for a model that does not say its sizes as Qwen does."""
    heads, hidden = config["num_attention_heads"], config["hidden_size"]
    return Shape(
        hidden=hidden,
        layers=config["num_hidden_layers"],
        heads=heads,
        kv_heads=config.get("num_key_value_heads", heads),
        ffn=config["intermediate_size"],
        vocab=config["vocab_size"],
        tied=bool(config.get("tie_word_embeddings", False)),
        head_dim=config.get("head_dim") or hidden // heads,
        kind="qwen3" if config.get("model_type") == "qwen3" else "qwen2",
    )
