"""Untrained models of any shape, and a tokenizer made on the spot: for checks of speed and parity without downloads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from divopd.plan.shapes import Shape

END, TEXT_END, START = "<|im_end|>", "<|endoftext|>", "<|im_start|>"
_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)


def byte_tokenizer(size: int = 259, extra: tuple[str, ...] = ()) -> Any:
    """A tokenizer of bytes in ChatML, with names for as many ids as a model's vocabulary needs.

    Ids: 256 bytes, then `size` - 259 - len(`extra`) words that no text contains and a model may sample, then the three
    marks of ChatML, then the `extra` special tokens.
    """
    from tokenizers import Tokenizer, decoders, pre_tokenizers
    from tokenizers.models import BPE
    from transformers import PreTrainedTokenizerFast

    special = [TEXT_END, START, END, *extra]
    bytes_ = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = [f"w{number}" for number in range(size - len(bytes_) - len(special))]
    tokenizer = Tokenizer(BPE(vocab={name: i for i, name in enumerate(bytes_ + words)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(special)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END, pad_token=TEXT_END)
    fast.chat_template = _TEMPLATE
    return fast


def model_config(shape: Shape, tokenizer: Any, positions: int = 32_768) -> Any:
    """A transformers configuration of this shape."""
    from transformers import Qwen2Config, Qwen3Config

    kind = Qwen3Config if shape.kind == "qwen3" else Qwen2Config
    own: dict[str, Any] = {"head_dim": shape.head_dim} if shape.kind == "qwen3" else {}
    return kind(
        vocab_size=shape.vocab,
        hidden_size=shape.hidden,
        intermediate_size=shape.ffn,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        max_position_embeddings=positions,
        rope_parameters={"rope_type": "default", "rope_theta": 1e6},
        tie_word_embeddings=shape.tied,
        use_sliding_window=False,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
        **own,
    )


def write_model(folder: Path, shape: Shape, tokenizer: Any, seed: int, dtype: str = "float32") -> None:
    """A checkpoint of random weights, with its tokenizer; made on the GPU where there is one, for speed."""
    import torch
    from transformers import AutoModelForCausalLM

    torch.manual_seed(seed)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    with torch.device(device):
        model: Any = AutoModelForCausalLM.from_config(model_config(shape, tokenizer), dtype=getattr(torch, dtype))
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
