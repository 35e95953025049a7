"""A small model and a pool of eleven turns, three of them dead, for the tests of the audit."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch

from divopd.candidates import gate
from divopd.config import TrainConfig
from divopd.learner import Learner
from divopd.types import Turn

VOCAB = 64


@pytest.fixture(scope="module")
def model() -> Any:
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    sizes = dict(vocab_size=VOCAB, hidden_size=16, intermediate_size=24, num_hidden_layers=2, head_dim=8)
    return Qwen3ForCausalLM(
        Qwen3Config(**sizes, num_attention_heads=2, num_key_value_heads=1, tie_word_embeddings=True)
    )


@pytest.fixture
def learner(model: Any) -> Learner:
    return Learner(copy.deepcopy(model), TrainConfig(grad_clip=1e9, learning_rate=1e-9))


def rollout(number: int, n: int, dead: tuple[int, ...] = ()) -> list[Turn]:
    """n turns of 2-4 response tokens over one growing chat, some tokens masked; arrival in order of number."""
    rng = np.random.default_rng(number)
    context, turns, end = rng.integers(0, VOCAB, 8 + 8 * n), [], 3
    for index in range(n):
        start = end + int(rng.integers(1, 4))
        end = start + int(rng.integers(2, 5))
        scores = -3 * rng.random((2, end - start)).astype(np.float32)
        mask = rng.random(end - start) < 0.8
        mask[0] = True
        turn = Turn((0, number, 0), index, 0, context, start, end, scores[0], scores[1], mask)
        turn.prompt_truncated, turn.arrival, turn.first_seen = index in dead, 10 * number + index, 0
        turns.append(turn)
    return turns


POOL = rollout(0, 3) + rollout(1, 4, dead=(1,)) + rollout(2, 2) + rollout(3, 2, dead=(0, 1))
LIVE = [i for i, turn in enumerate(POOL) if gate(turn) is None]
