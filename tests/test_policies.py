"""The persistent cache changes nothing: sampling turn by turn gives the log-probs of one pass over the whole."""

from __future__ import annotations

import copy
import shutil

import numpy as np
import pytest
import torch

from divopd.config import PolicyConfig
from divopd.policies.base import PolicyError
from divopd.policies.hf import HFPolicy, load_model
from divopd.policies.lean import fits
from divopd.seeds import rng


@pytest.fixture(scope="module")
def policy(tiny_models, tokenizer):
    return HFPolicy(load_model(PolicyConfig(path=str(tiny_models / "student"))), tokenizer.eos_token_id)


def converse(policy, rows, turns=5, leave=None, temperature=1.0):
    """Random user turns; row `leave` drops out after two turns. Tokens, spans and log-probs by row."""
    session = policy.session(max(rows) + 1)
    user, draws = {r: rng("user", r) for r in rows}, {r: rng("draw", r) for r in rows}
    tokens, spans, logprobs = ({r: [] for r in rows} for _ in range(3))
    for turn in range(turns):
        live = [r for r in rows if r != leave or turn < 2]
        new = [user[r].integers(4, 300, int(user[r].integers(1, 7))) for r in live]
        out = session.act(live, new, temperature, 4, [draws[r] for r in live])
        for r, fresh, sample in zip(live, new, out, strict=True):
            tokens[r] += fresh.tolist()
            spans[r].append((len(tokens[r]), len(tokens[r]) + len(sample.tokens)))
            tokens[r] += sample.tokens.tolist()
            logprobs[r].append(sample.logprobs)
            assert sample.truncated == (sample.tokens[-1] != policy.eos)
    return tokens, spans, logprobs


def test_session_agrees_with_scoring(policy):
    rows = list(range(6))
    tokens, spans, logprobs = converse(policy, rows, leave=2)
    scored = policy.score([np.array(tokens[r]) for r in rows], [spans[r] for r in rows])
    for r in rows:
        assert len(scored[r]) == len(logprobs[r])
        for ours, once in zip(logprobs[r], scored[r], strict=True):
            np.testing.assert_allclose(ours, once, atol=2e-5)


def test_sampling_does_not_depend_on_the_batch(policy):
    alone = converse(policy, [3])[0][3]
    together = converse(policy, [0, 1, 3, 4])[0][3]
    # rows of the cache are numbered from 0 to max(rows); the session is told which are played
    assert alone == together


def test_scores_are_log_softmax_of_the_model(policy):
    context = np.array([5, 9, 20, 33, 7])
    with torch.no_grad():
        logits = policy.model(torch.from_numpy(context)[None]).logits[0]
    want = torch.log_softmax(logits.float(), -1)
    [[got]] = policy.score([context], [[(2, 5)]])
    np.testing.assert_allclose(got, [want[i - 1, context[i]] for i in (2, 3, 4)], atol=1e-5)


def test_scoring_in_small_batches_is_the_same(policy):
    contexts = [rng("c", i).integers(4, 300, 5 + 3 * i) for i in range(7)]
    spans = [[(2, 4), (4, len(c))] for c in contexts]
    whole = policy.score(contexts, spans)
    small = HFPolicy(policy.model, policy.eos, score_batch_tokens=30).score(contexts, spans)
    for a, b in zip(whole, small, strict=True):
        for x, y in zip(a, b, strict=True):
            np.testing.assert_allclose(x, y, atol=1e-5)


@pytest.mark.parametrize("name, kv_heads", [("student", None), ("teacher", None), ("student", 1)])
def test_lean_decoder_is_the_model(tiny_models, name, kv_heads):
    """Appended in chunks of 1 to 40 tokens, past the cache's first room, with holes, and after rows have left."""
    model = load_model(PolicyConfig(path=str(tiny_models / name)))
    if kv_heads:
        config = copy.deepcopy(model.config)
        config.num_key_value_heads, config.tie_word_embeddings = kv_heads, False
        torch.manual_seed(3)
        model = type(model)._from_config(config).float().eval()
    for parameter in model.parameters():  # norms of 1 would hide where their scale goes
        if parameter.dim() == 1:
            torch.nn.init.uniform_(parameter.data, 0.5, 1.5)
    assert fits(model)
    policy = HFPolicy(model, 1)
    session, draw = policy.session(5), rng("lean")
    texts: list[list[int]] = [[] for _ in range(5)]
    rows = list(range(5))
    for turn in range(12):
        if turn == 6:
            rows = [0, 2, 4]
            session._keep(rows)
        chunks = [draw.integers(4, 300, int(draw.integers(turn == 0, 40))).tolist() for _ in rows]
        for row, chunk in zip(rows, chunks, strict=True):
            texts[row] += chunk
        with torch.no_grad():
            ours = session._extend(chunks)
            theirs = torch.stack([model(torch.tensor([texts[row]])).logits[0, -1] for row in rows])
        filled = [i for i, chunk in enumerate(chunks) if chunk]  # an empty chunk's logits are asked for by nobody
        torch.testing.assert_close(ours[filled], theirs[filled], atol=2e-5, rtol=2e-5)


def test_lean_decoder_leaves_other_models_alone(tiny_models):
    model = load_model(PolicyConfig(path=str(tiny_models / "student")))
    for key, value in {
        "model_type": "qwen2",
        "attention_bias": True,
        "hidden_act": "gelu",
        "hidden_size": 1024,
    }.items():
        other = copy.copy(model)
        other.config = copy.deepcopy(model.config)
        setattr(other.config, key, value)
        assert not fits(other), key
    assert not fits(model.bfloat16())


def test_samples_follow_the_distribution(policy):
    """One prompt, 4,000 draws: frequencies of the likeliest tokens within 4 standard errors; sharper when colder."""
    n, prompt = 4000, np.array([5, 9, 20])
    with torch.no_grad():
        logits = policy.model(torch.from_numpy(prompt)[None]).logits[0, -1].float()
    for temperature in (1.0, 0.4):
        want = torch.softmax(logits / temperature, -1).numpy()
        out = policy.session(n).act(
            range(n), [prompt] * n, temperature, 1, [rng("d", temperature, i) for i in range(n)]
        )
        counts = np.bincount([int(s.tokens[0]) for s in out], minlength=len(want)) / n
        for token in np.argsort(-want)[:5]:
            assert abs(counts[token] - want[token]) < 4 * np.sqrt(want[token] * (1 - want[token]) / n)


def test_missing_checkpoint_is_named():
    with pytest.raises(PolicyError, match=r"models/none is missing.*make models"):
        load_model(PolicyConfig(path="models/none"))


def test_a_truncated_checkpoint_is_named(tiny_models, tmp_path):
    shutil.copytree(tiny_models / "student", tmp_path / "cut")
    file = tmp_path / "cut" / "model.safetensors"
    file.write_bytes(file.read_bytes()[:1000])
    with pytest.raises(PolicyError, match="cut is cut short or damaged.*restore it"):
        load_model(PolicyConfig(path=str(tmp_path / "cut")))


def test_weights_that_do_not_fit_are_refused(policy):
    weights = dict(policy.model.state_dict())
    norm = weights.pop("model.norm.weight")
    with pytest.raises(PolicyError, match=r"lacks model\.norm\.weight$"):
        policy.load_weights(weights)
    with pytest.raises(PolicyError, match="has model.more"):
        policy.load_weights(weights | {"model.norm.weight": norm, "model.more": norm})
    with pytest.raises(PolicyError, match="do not fit.*size mismatch") as caught:
        policy.load_weights(weights | {"model.norm.weight": norm[:-1]})
    assert "\n" not in str(caught.value)


def test_the_head_sees_only_what_is_scored(policy):
    seen = []
    head = policy.model.get_output_embeddings()
    hook = head.register_forward_hook(lambda _, inputs, output: seen.append(inputs[0].shape[:-1].numel()))
    first, second = policy.score([np.arange(4, 40), np.arange(4, 20)], [[(3, 5), (9, 10)], []])
    hook.remove()
    assert (seen, [len(part) for part in first], second) == ([3], [2, 1], [])


def test_load_weights_takes_effect_and_keeps_the_tie(policy, tiny_models):
    fresh = HFPolicy(load_model(PolicyConfig(path=str(tiny_models / "teacher"))), policy.eos)
    context, spans = np.array([5, 9, 20, 33]), [(1, 4)]
    before = fresh.score([context], [spans])[0][0]
    fresh.load_weights({k: v for k, v in policy.model.state_dict().items() if k != "lm_head.weight"})
    after = fresh.score([context], [spans])[0][0]
    np.testing.assert_array_equal(after, policy.score([context], [spans])[0][0])
    assert not np.allclose(before, after)
