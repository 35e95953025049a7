"""One update on a tiny Qwen3: merged rows, dead rows, micro-batches and resume against what they must equal."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch

from divopd.config import TrainConfig
from divopd.learner import DivergedError, Learner, TokenLogprobs, merge_rows, micro_batches
from divopd.objective import batch_loss
from divopd.types import Turn

VOCAB = 64


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def tiny_qwen3(tied: bool = False, seed: int = 0) -> Any:
    """Two layers, 32 wide, two heads on one key-value head."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(seed)
    sizes = dict(vocab_size=VOCAB, hidden_size=32, intermediate_size=48, num_hidden_layers=2, head_dim=16)
    config = Qwen3Config(**sizes, num_attention_heads=2, num_key_value_heads=1, tie_word_embeddings=tied)
    return Qwen3ForCausalLM(config)


@pytest.fixture(scope="module")
def base_model() -> Any:
    return tiny_qwen3()


def learner(base_model: Any, **change: Any) -> Learner:
    return Learner(copy.deepcopy(base_model), TrainConfig(**({"learning_rate": 1e-2} | change)))


def rollout(number: int, n: int, dead: tuple[int, ...] = ()) -> list[Turn]:
    """n turns of 4-6 response tokens over one growing chat, some tokens masked."""
    rng = np.random.default_rng(number)
    context, turns, end = rng.integers(0, VOCAB, 12 + 12 * n), [], 5
    for index in range(n):
        start = end + int(rng.integers(2, 6))
        end = start + int(rng.integers(4, 7))
        scores = -3 * rng.random((2, end - start)).astype(np.float32)
        mask = rng.random(end - start) < 0.8
        mask[0] = True
        turn = Turn((0, number, 0), index, 0, context, start, end, scores[0], scores[1], mask)
        turn.prompt_truncated = index in dead
        turns.append(turn)
    return turns


def apart(turns: list[Turn]) -> list[Turn]:
    """The same rows, each with a context of its own: nothing merges."""
    out = []
    for turn in turns:
        one = copy.copy(turn)
        one.context = turn.context[: turn.end].copy()
        out.append(one)
    return out


def gradient(one: Learner, turns: list[Turn]) -> tuple[dict[str, float], list[torch.Tensor]]:
    """Statistics and the gradient of an update, before clipping."""
    kept: list[torch.Tensor] = []
    hook = one.optimizer.register_step_pre_hook(lambda *_: kept.extend(p.grad.clone() for p in one.parameters))
    stats = one.update(turns)
    hook.remove()
    scale = max(1.0, stats["grad_norm"] / one.config.grad_clip)
    return stats, [g * scale for g in kept]


def same(left: list[torch.Tensor], right: list[torch.Tensor], rtol: float = 1e-4, atol: float = 1e-6) -> None:
    assert len(left) == len(right)
    for a, b in zip(left, right, strict=True):
        torch.testing.assert_close(a, b, rtol=rtol, atol=atol)


BATCH = rollout(0, 4)[1:] + rollout(1, 5, dead=(2,)) + rollout(2, 1) + rollout(3, 2, dead=(0, 1))


def test_merged_rows_have_the_gradient_of_separate_rows(base_model: Any) -> None:
    merged, separate = gradient(learner(base_model), BATCH), gradient(learner(base_model), apart(BATCH))
    same(merged[1], separate[1])
    for key in ("loss", "objective", "kl_per_token", "drift", "grad_norm", "row_tokens", "valid_tokens", "rows"):
        assert merged[0][key] == pytest.approx(separate[0][key], rel=1e-5), key
    assert (merged[0]["sequences"], separate[0]["sequences"]) == (3, 8)
    assert merged[0]["computed_tokens"] < separate[0]["computed_tokens"] / 2


def test_loss_is_the_padded_objective_over_plain_logits(base_model: Any) -> None:
    """Against the objective written on a full (rows, tokens, vocabulary) forward pass, one row at a time."""
    width = max(t.response_tokens for t in BATCH)
    student, teacher = torch.zeros(len(BATCH), width), torch.zeros(len(BATCH), width)
    valid = torch.zeros(len(BATCH), width, dtype=torch.bool)
    model = copy.deepcopy(base_model).eval()
    rows = []
    for i, turn in enumerate(BATCH):
        logits = model(torch.from_numpy(turn.context[: turn.end])[None], use_cache=False).logits[0].log_softmax(-1)
        where = torch.arange(turn.start, turn.end)
        picked = logits[where - 1, torch.from_numpy(turn.context[turn.start : turn.end])]
        rows.append(torch.nn.functional.pad(picked, (0, width - len(picked))))
        valid[i, : len(picked)] = torch.from_numpy(turn.valid_mask())
        teacher[i, : len(picked)] = torch.from_numpy(turn.teacher_logprobs)
    student = torch.stack(rows)
    loss = batch_loss(student, student.detach(), teacher, valid)
    loss.backward()
    stats, grads = gradient(learner(base_model), BATCH)
    same(grads, [p.grad for p in model.parameters()])
    assert stats["loss"] == pytest.approx(loss.item(), rel=1e-5)
    assert stats["kl_per_token"] == pytest.approx((student - teacher)[valid].mean().item(), rel=1e-5)
    assert stats["objective"] == pytest.approx(stats["loss"] * len(BATCH) / stats["live_rows"])


def test_dead_rows_stay_in_the_denominator(base_model: Any) -> None:
    live = rollout(0, 3)
    alone, diluted = gradient(learner(base_model), live), gradient(learner(base_model), live + rollout(5, 3, (0, 1, 2)))
    same([g / 2 for g in alone[1]], diluted[1])
    assert diluted[0]["loss"] == pytest.approx(alone[0]["loss"] / 2)
    assert diluted[0]["objective"] == pytest.approx(alone[0]["objective"])


def test_a_batch_of_dead_rows_is_a_step_without_a_gradient(base_model: Any) -> None:
    one = learner(base_model, weight_decay=0.0)
    before = copy.deepcopy(one.model.state_dict())
    stats = one.update(rollout(5, 2, (0, 1)))
    assert stats["loss"] == stats["grad_norm"] == stats["computed_tokens"] == 0 and np.isnan(stats["kl_per_token"])
    assert one.version == 1 and all(torch.equal(v, before[k]) for k, v in one.model.state_dict().items())
    with pytest.raises(ValueError, match="at least one turn"):
        one.update([])


@pytest.mark.parametrize("limit", [1, 40, 100])
def test_micro_batches_add_up_to_one_batch(base_model: Any, limit: int) -> None:
    whole, parts = learner(base_model), learner(base_model, micro_batch_tokens=limit)
    same(gradient(whole, BATCH)[1], gradient(parts, BATCH)[1])


def test_micro_batches_hold_the_limit_and_lose_nothing() -> None:
    lengths = [5, 100, 90, 70, 8, 8, 7, 300]
    batches = micro_batches(lengths, 200)
    assert batches == [[7], [1, 2], [3], [4, 5, 6], [0]]
    assert sorted(i for b in batches for i in b) == list(range(len(lengths)))


def test_sequences_end_at_the_last_token_that_predicts() -> None:
    turns = rollout(0, 4)
    (sequence,) = merge_rows([turns[2], turns[0]])
    last = turns[2].start + np.flatnonzero(turns[2].action_mask)[-1]
    assert len(sequence.tokens) == last
    assert (sequence.targets == turns[0].context[sequence.predicts + 1]).all()
    assert sequence.weights.sum() == pytest.approx(1.0)
    other = [copy.copy(t) for t in turns]
    for turn in other:
        turn.rollout = (0, 99, 0)  # an equal context, or even the same one, of another rollout does not merge
    assert len(merge_rows(turns + other)) == 2


def test_the_step_raises_what_the_teacher_prefers(base_model: Any) -> None:
    one, turns = learner(base_model), rollout(7, 3)
    for turn in turns:
        turn.teacher_logprobs = np.full(turn.response_tokens, -1.0, np.float32)
    losses = [one.update(turns)["kl_per_token"] for _ in range(30)]
    assert losses[0] < -2  # an untrained student: log(1 / 64) against -1
    assert losses[-1] > losses[0] + 2
    assert one.version == 30


def test_log_probs_are_those_of_the_generating_policy(base_model: Any) -> None:
    """r = 1: what was cached under these very weights is found again."""
    turns = rollout(3, 3)
    with torch.no_grad():
        logits = base_model.eval()(torch.from_numpy(turns[0].context)[None]).logits[0].log_softmax(-1).numpy()
    for turn in turns:
        where = np.arange(turn.start, turn.end)
        turn.student_logprobs = logits[where - 1, turn.context[where]]
    assert learner(base_model).update(turns)["drift"] < 1e-5


def test_resume_is_exact(base_model: Any) -> None:
    straight, first = learner(base_model), learner(base_model)
    for version in range(2):
        straight.update(BATCH, version)
        first.update(BATCH, version)
    second = learner(base_model)
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    assert second.version == 2
    assert straight.update(BATCH) == second.update(BATCH)
    for a, b in zip(straight.parameters, second.parameters, strict=True):
        assert torch.equal(a, b)


def test_divergence_is_one_line_and_takes_no_step(base_model: Any) -> None:
    one = learner(base_model)
    before = [p.detach().clone() for p in one.parameters]
    bad = rollout(0, 2)
    bad[0].teacher_logprobs = np.full(bad[0].response_tokens, -1e38, np.float32)
    with pytest.raises(DivergedError, match=r"^update 7: loss .*; the step was not taken$"):
        one.update(bad, 7)
    assert one.version == 0 and all(torch.equal(a, b) for a, b in zip(before, one.parameters, strict=True))


def test_a_step_to_weights_that_are_not_finite_is_divergence(base_model: Any) -> None:
    one = learner(base_model, learning_rate=1e30, weight_decay=1e30)
    with pytest.raises(DivergedError, match=r"^update 0: weights are not finite after the step"):
        one.update(rollout(0, 2))


def test_bf16_computes_nearly_the_same(base_model: Any) -> None:
    exact = learner(base_model).update(BATCH)
    rough = Learner(copy.deepcopy(base_model), TrainConfig(), bf16=True).update(BATCH)
    assert rough["loss"] == pytest.approx(exact["loss"], abs=0.02)
    assert rough["grad_norm"] == pytest.approx(exact["grad_norm"], rel=0.05)


def test_models_it_cannot_train_are_refused(base_model: Any) -> None:
    with pytest.raises(ValueError, match="float32"):
        Learner(copy.deepcopy(base_model).bfloat16(), TrainConfig())
    scaled = copy.deepcopy(base_model)
    scaled.config.final_logit_softcapping = 30.0
    with pytest.raises(ValueError, match="final_logit_softcapping"):
        TokenLogprobs(scaled)
