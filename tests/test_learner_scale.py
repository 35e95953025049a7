"""Packed rows, chunked log-probs and recomputed activations against the plain update, and the memory they spare."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from divopd.config import LossConfig, TrainConfig
from divopd.learner import Learner, MicroBatch, Reference, TokenLogprobs, merge_rows
from divopd.logprobs import by_chunks, picked
from divopd.losses import loss_names
from divopd.policies.hf import HFPolicy
from divopd.policies.parity import gap
from divopd.varlen import Segments, pack_attention, packed_attention
from test_learner import BATCH, VOCAB, apart, base_model, gradient, learner, rollout, same, tiny_qwen3

__all__ = ["base_model"]  # a fixture
LENGTHS = (7, 1, 12, 5)


def packed_row() -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens (1, 25) and the positions of sequences of LENGTHS tokens."""
    tokens = torch.randint(0, VOCAB, (1, sum(LENGTHS)), generator=torch.Generator().manual_seed(1))
    return tokens, torch.cat([torch.arange(n) for n in LENGTHS])[None]


def separate(model: Any, tokens: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        parts = [model.base_model(input_ids=x, use_cache=False).last_hidden_state for x in tokens.split(LENGTHS, 1)]
    return torch.cat(parts, 1)


def test_with_a_cache_transformers_lets_packed_sequences_see_each_other(base_model: Any) -> None:
    """The trap: right without a cache, silently wrong with one, and a cache is transformers' default."""
    tokens, positions = packed_row()
    model, wanted = base_model.eval(), separate(base_model.eval(), tokens)
    with torch.no_grad():
        right = model.base_model(input_ids=tokens, position_ids=positions, use_cache=False).last_hidden_state
        wrong = model.base_model(input_ids=tokens, position_ids=positions).last_hidden_state
    torch.testing.assert_close(right, wanted, rtol=1e-4, atol=1e-5)
    leak = (wrong - wanted).abs().amax(-1)[0]
    assert leak[: LENGTHS[0]].max() < 1e-5 and leak[LENGTHS[0] :].max() > 0.1  # all but the first see a stranger
    assert model.config.use_cache


@pytest.mark.parametrize("packed", [False, True])
def test_the_learner_never_asks_for_a_cache(base_model: Any, packed: bool) -> None:
    one, seen = learner(base_model, packed=packed, activation_checkpointing=True), []
    one.model.config.use_cache = True

    def watch(module: Any, args: Any, kwargs: dict[str, Any], out: Any) -> None:
        seen.append(kwargs["use_cache"])
        assert out.past_key_values is None

    one.model.base_model.register_forward_hook(watch, with_kwargs=True)
    one.update(BATCH)
    assert seen and not any(seen)


def tiny(kind: str, **more: Any) -> Any:
    import transformers

    torch.manual_seed(0)
    sizes = dict(vocab_size=VOCAB, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4)
    config = getattr(transformers, f"{kind}Config")(**sizes, num_key_value_heads=2, **more)
    return getattr(transformers, f"{kind}ForCausalLM")(config).eval()


@pytest.mark.parametrize("kind", ["Qwen2", "Qwen3", "Llama"])
def test_packed_sequences_see_themselves_alone(kind: str) -> None:
    model = tiny(kind)
    tokens, _ = packed_row()
    wanted = separate(model, tokens)
    plain = model(torch.stack([tokens[0, :7]] * 2), attention_mask=torch.tensor([[1] * 7, [0] * 3 + [1] * 4])).logits
    pack_attention(model)
    everywhere = torch.arange(sum(LENGTHS))
    with torch.no_grad():
        found = TokenLogprobs(model).hidden(tokens, torch.zeros_like(everywhere), everywhere, LENGTHS)
        masked = model(torch.stack([tokens[0, :7]] * 2), attention_mask=torch.tensor([[1] * 7, [0] * 3 + [1] * 4]))
        text = model.generate(tokens[:, :7], max_new_tokens=4, do_sample=False)
        model.set_attn_implementation("sdpa")
        assert torch.equal(text, model.generate(tokens[:, :7], max_new_tokens=4, do_sample=False))
    torch.testing.assert_close(found, wanted[0], rtol=1e-4, atol=1e-5)
    assert torch.equal(masked.logits, plain)  # calls without segments are what they were


def test_models_that_cannot_be_packed_are_refused(base_model: Any) -> None:
    sliding = tiny("Qwen2", use_sliding_window=True, sliding_window=4, max_window_layers=1)
    with pytest.raises(ValueError, match="Qwen2ForCausalLM has layers of .*sliding_attention: set train.packed to fal"):
        Learner(sliding, TrainConfig(packed=True))
    deaf = copy.deepcopy(base_model)
    for layer in deaf.model.layers:  # a model that does not hand keyword arguments down
        layer.self_attn.register_forward_pre_hook(
            lambda _, args, kwargs: (args, {k: v for k, v in kwargs.items() if k != "segments"}), with_kwargs=True
        )
    with pytest.raises(ValueError, match="does not keep packed sequences apart: set train.packed to false"):
        Learner(deaf, TrainConfig(packed=True))


def test_packed_rows_have_the_gradient_of_padded_ones(base_model: Any) -> None:
    turns = BATCH + apart(rollout(8, 3))
    padded, packed = gradient(learner(base_model), turns), gradient(learner(base_model, packed=True), turns)
    same(padded[1], packed[1])
    assert packed[0]["computed_tokens"] == sum(len(s.tokens) for s in merge_rows(turns)) < padded[0]["computed_tokens"]
    assert packed[0]["loss"] == pytest.approx(padded[0]["loss"], rel=1e-5)


def test_a_packed_micro_batch_by_hand() -> None:
    turns = rollout(0, 2)
    first, second = merge_rows([turns[0], *apart([turns[1]])])
    batch = MicroBatch.of([first, second], packed=True)
    n = len(first.tokens)
    assert batch.lengths == (n, len(second.tokens)) and batch.tokens.shape == (1, n + len(second.tokens))
    assert batch.predicts.tolist() == [*first.predicts, *(n + second.predicts)] and not batch.rows.any()
    assert (batch.tokens[0, batch.predicts[0]], batch.targets[0]) == (first.tokens[first.predicts[0]], first.targets[0])
    nothing = MicroBatch.of([], packed=True)
    assert nothing.tokens.tolist() == [[0]] and len(nothing.targets) == len(nothing.weights) == 0


@pytest.mark.parametrize("chunk", [1, 4, 1000])
def test_chunks_are_the_whole(chunk: int) -> None:
    """Values to the bit; gradients, which add up in another order, to rounding in float64."""
    torch.manual_seed(0)
    hidden, weight = torch.randn(10, 6, dtype=torch.float64), torch.randn(50, 6, dtype=torch.float64)
    targets, out = torch.randint(0, 50, (10,)), []
    for size in (None, chunk):
        leaves = [x.clone().requires_grad_() for x in (hidden, weight)]
        values = by_chunks(lambda h, t, w=leaves[1]: picked(h @ w.T, t), size, leaves[0], targets)
        (values * torch.arange(10)).sum().backward()
        out.append([values.detach(), *(x.grad for x in leaves)])
    for a, b in zip(*out, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", loss_names())
def test_every_loss_in_chunks(base_model: Any, name: str) -> None:
    """A teacher that knows 40 of 64 ids, a chunk of three positions, packed: the plain update."""

    def one(**change: Any) -> Learner:
        reference = Reference(tiny_qwen3(seed=3), 40)
        config = TrainConfig(learning_rate=1e-2, updates=10, **change)
        return Learner(copy.deepcopy(base_model), config, loss=LossConfig(name=name), teacher=reference)

    whole, parts = gradient(one(), BATCH), gradient(one(logit_chunk=3, packed=True), BATCH)
    same(whole[1], parts[1])
    for key in ("loss", "objective", "kl_per_token", "drift"):
        assert whole[0][key] == pytest.approx(parts[0][key], rel=1e-5)


def test_recomputed_activations_change_nothing_and_wake_no_dropout(base_model: Any) -> None:
    model = copy.deepcopy(base_model)
    for layer in model.model.layers:
        layer.self_attn.attention_dropout = 0.9
    again = Learner(model, TrainConfig(learning_rate=1e-2, activation_checkpointing=True))
    calls = {"body": 0, "layer": 0}
    for name, module in (("body", model.model), ("layer", model.model.layers[0].mlp)):
        module.register_forward_pre_hook(lambda *_, name=name: calls.update({name: calls[name] + 1}))
    found, wanted = gradient(again, BATCH), gradient(learner(base_model), BATCH)
    same(found[1], wanted[1], rtol=1e-6)
    assert found[0] == pytest.approx(wanted[0])
    assert calls["layer"] == 2 * calls["body"] > 0  # forward, and again in the backward pass


@pytest.mark.parametrize(
    "change", [{}, {"packed": True, "logit_chunk": 3, "activation_checkpointing": True}], ids=["plain", "everything"]
)
def test_it_scores_what_a_policy_scores(base_model: Any, change: dict[str, Any]) -> None:
    """The sampler is held against this after a sync: several spans a context, one of them empty."""
    contexts = [turn.context for turn in BATCH[:3]]
    spans = [[(1, 2), (4, 9)], [(3, 3), (5, 12)], [(2, len(contexts[2]))]]
    found = learner(base_model, **change).score(contexts, spans)
    wanted = HFPolicy(copy.deepcopy(base_model), 0).score(contexts, spans)
    assert [[len(span) for span in row] for row in found] == [[end - start for start, end in row] for row in spans]
    assert gap(found, wanted).maximum < 1e-5


def test_the_logits_of_a_batch_are_never_in_memory() -> None:
    """2,048 positions at a vocabulary of 150,000: their logits are 1.2 GB, held three times in plain training."""
    script = Path(__file__).resolve().parent.parent / "benchmarks" / "learner_scale.py"
    command = [sys.executable, str(script), "--positions", "2048", "--logits", "64"]
    exact = {**os.environ, "MALLOC_MMAP_THRESHOLD_": str(1 << 20)}  # freed blocks leave the process's memory
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=script.parent.parent, env=exact)
    assert 0 < json.loads(done.stdout)["bytes"] < 2048 * 150_000 * 4 / 4


def test_fields_at_their_defaults_leave_a_resolved_run_as_it_was() -> None:
    new = {"packed", "logit_chunk", "activation_checkpointing"}
    assert not new & TrainConfig().model_dump().keys()
    assert new < TrainConfig(packed=True, logit_chunk=7, activation_checkpointing=True).model_dump().keys()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="the flash kernel for variable lengths needs a GPU")
@pytest.mark.parametrize("groups", [1, 2])
def test_the_kernel_for_variable_lengths_is_the_loop(groups: int) -> None:
    torch.manual_seed(0)
    lengths = (130, 1, 64)
    q, k, v = (torch.randn(1, n, sum(lengths), 64, device="cuda") for n in (4, 4 // groups, 4 // groups))
    segments = Segments.of(lengths, q.device)
    out = []
    for dtype in (torch.float32, torch.bfloat16):
        leaves = [x.to(dtype).requires_grad_() for x in (q, k, v)]
        module = torch.nn.Module()
        module.num_key_value_groups = groups
        made = packed_attention(module, *leaves, None, scaling=0.125, segments=segments)[0]
        made.float().square().sum().backward()
        out.append([made.float(), *(x.grad.float() for x in leaves)])
    for a, b in zip(*out, strict=True):
        assert float((a - b).norm() / a.norm()) < 0.02
