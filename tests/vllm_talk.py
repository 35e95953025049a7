"""What the tests of the vLLM back end share: an engine, conversations with it, and how far it is from transformers."""

from __future__ import annotations

import numpy as np
import torch

from divopd.config import EngineConfig, PolicyConfig
from divopd.policies.hf import HFPolicy, load_tokenizer
from divopd.policies.make import make_policy
from divopd.policies.parity import gap
from divopd.seeds import rng

GPU = torch.cuda.is_available()
EQUAL = 5e-3 if GPU else 5e-5  # nats: float32 rounding, for log-probs down to -20; GPU kernels round more
LIMIT = 256


STUDENT = PolicyConfig(
    path="models/alfworld/student-0.5m", backend="vllm", engine=EngineConfig(cache_gib=0.25, episodes=32)
)
"""A trained student with tied embeddings and heads of 32."""


def start(config: PolicyConfig = STUDENT):
    return make_policy(config, load_tokenizer(config).eos_token_id, LIMIT)


def perturbed(weights: dict[str, torch.Tensor], seed: int, size: float = 0.05) -> dict[str, torch.Tensor]:
    noise = torch.Generator().manual_seed(seed)
    weights = {name: tensor.cpu() for name, tensor in weights.items()}
    return {name: tensor + size * torch.randn(tensor.shape, generator=noise) for name, tensor in weights.items()}


def converse(policy, rows, name="", turns=4, leave=None, temperature=1.0, limit=4):
    """Random user turns; row `leave` drops out after two. Tokens, spans, log-probs and versions by row."""
    session = policy.session(max(rows) + 1)
    user, draws = {r: rng("user", r) for r in rows}, {r: rng("draw", r, name) for r in rows}
    tokens, spans, logprobs, versions = ({r: [] for r in rows} for _ in range(4))
    for turn in range(turns):
        live = [r for r in rows if r != leave or turn < 2]
        new = [user[r].integers(4, 300, int(user[r].integers(1, 7))) for r in live]
        samples = session.act(live, new, temperature, limit, [draws[r] for r in live])
        for r, fresh, sample in zip(live, new, samples, strict=True):
            tokens[r] += fresh.tolist()
            spans[r].append((len(tokens[r]), len(tokens[r]) + len(sample.tokens)))
            tokens[r] += sample.tokens.tolist()
            logprobs[r].append(sample.logprobs)
            versions[r].append(sample.version)
            assert sample.truncated == (sample.tokens[-1] != policy.eos)
            assert len(sample.tokens) <= limit and policy.eos not in sample.tokens[:-1].tolist()
    return tokens, spans, logprobs, versions


def largest_gap(policy: HFPolicy, spoken) -> float:
    tokens, spans, logprobs, _ = spoken
    scored = policy.score([np.array(tokens[r]) for r in tokens], [spans[r] for r in tokens])
    return gap(scored, [logprobs[r] for r in tokens]).maximum
