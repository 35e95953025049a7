"""Which back end holds a policy's weights. vLLM is imported only where a configuration names it."""

from __future__ import annotations

from collections.abc import Sequence

from ..config import PolicyConfig
from .base import Policy


def make_policy(config: PolicyConfig, ends: int | Sequence[int], tokens: int) -> Policy:
    """The policy that a configuration names, its checkpoint loaded.

    Any of `ends` ends a response; `tokens` is the longest sequence (prompt and response) that will be sampled or
    scored, which vLLM must know beforehand. Raises `PolicyError` where the checkpoint cannot be loaded or vLLM is not
    installed.
    """
    if config.backend == "vllm":
        from .vllm import VLLMPolicy

        return VLLMPolicy(config, ends, tokens)
    from .hf import HFPolicy, load_model

    return HFPolicy(load_model(config), ends)
