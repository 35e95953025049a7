"""Which back end holds a policy's weights. vLLM is imported only where a configuration names it."""

from __future__ import annotations

from ..config import PolicyConfig
from .base import Policy


def make_policy(config: PolicyConfig, eos: int, tokens: int) -> Policy:
    """The policy that a configuration names, its checkpoint loaded.

    `eos` ends a response; `tokens` is the longest sequence (prompt and response) that will be sampled or scored, which
    vLLM must know beforehand. Raises `PolicyError` where the checkpoint cannot be loaded or vLLM is not installed.
    """
    if config.backend == "vllm":
        from .vllm import VLLMPolicy

        return VLLMPolicy(config, eos, tokens)
    from .hf import HFPolicy, load_model

    return HFPolicy(load_model(config), eos)
