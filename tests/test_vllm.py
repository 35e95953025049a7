"""The vLLM back end against transformers', for real: `make vllm-test`, as it needs packages of its own."""

from __future__ import annotations

import importlib.util
import multiprocessing
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from divopd.config import EngineConfig, EnvConfig, PolicyConfig
from divopd.policies.base import PolicyError
from divopd.policies.hf import HFPolicy, load_model, load_tokenizer
from divopd.policies.make import make_policy
from divopd.policies.parity import gap, student_spans
from divopd.seeds import rng

if importlib.util.find_spec("vllm") is None:
    pytest.skip("vllm is not installed here: `make vllm-test` runs these tests", allow_module_level=True)
pytestmark = pytest.mark.slow

GPU = torch.cuda.is_available()
EQUAL = 5e-3 if GPU else 5e-5  # nats: float32 rounding, for log-probs down to -20; GPU kernels round more
LIMIT = 256


@pytest.fixture(scope="module")
def config() -> PolicyConfig:
    """A trained student with tied embeddings and heads of 32."""
    engine = EngineConfig(cache_gib=0.25, episodes=32)
    return PolicyConfig(path="models/alfworld/student-0.5m", backend="vllm", engine=engine)


@pytest.fixture(scope="module")
def policy(config):
    made = make_policy(config, load_tokenizer(config).eos_token_id, LIMIT)
    yield made
    made.close()


@pytest.fixture
def reference(config, policy) -> HFPolicy:
    """Transformers with the checkpoint's weights, which the engine gets back as well."""
    twin = HFPolicy(load_model(config), policy.eos)
    policy.load_weights(twin.weights())
    return twin


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


@pytest.mark.parametrize("temperature", [1.0, 0.4])
def test_sampled_log_probs_are_transformers(policy, reference, temperature):
    """Turn by turn with a prefix cache, whatever the temperature: the log-probs are the model's own."""
    assert largest_gap(reference, converse(policy, range(6), leave=2, temperature=temperature)) < EQUAL


def test_scores_are_transformers_and_of_the_spans_alone(policy, reference):
    contexts = [rng("context", i).integers(4, 300, 20 + 30 * i) for i in range(5)]
    spans = [[(1, 4), (4, 4), (9, len(c))] for c in contexts[:-1]] + [[]]
    ours, theirs = policy.score(contexts, spans), reference.score(contexts, spans)
    assert [[len(a) for a in row] for row in ours] == [[end - start for start, end in row] for row in spans]
    assert gap(ours, theirs).maximum < EQUAL


def test_a_draw_makes_the_response_whatever_else_runs(policy, reference):
    together = converse(policy, [0, 1, 3, 4])[0]
    assert converse(policy, [0, 1, 3, 4])[0] == together
    assert converse(policy, [3])[0][3] == together[3]
    assert converse(policy, [3], name="other")[0][3] != together[3]


def test_samples_follow_the_distribution(policy, reference):
    """600 draws at 0.4: frequencies of the likeliest tokens within 4 standard errors."""
    n, prompt = 600, rng("prompt").integers(4, 300, 12)
    with torch.no_grad():
        logits = reference.model(torch.from_numpy(prompt)[None].to(reference.device)).logits[0, -1].float()
    want = torch.softmax(logits / 0.4, -1).cpu().numpy()
    out = policy.session(n).act(range(n), [prompt] * n, 0.4, 1, [rng("d", i) for i in range(n)])
    counts = np.bincount([int(s.tokens[0]) for s in out], minlength=len(want)) / n
    for token in np.argsort(-want)[:4]:
        assert abs(counts[token] - want[token]) <= 4 * np.sqrt(want[token] * (1 - want[token]) / n) + 1e-9


def test_new_weights_reach_every_layer_and_the_tied_head(policy, reference):
    """Same prompts before and after, so that a prefix cache of the old weights would show."""
    before = converse(policy, range(4))
    weights = perturbed(reference.weights(), 0)
    policy.load_weights(weights, 7)
    after = converse(policy, range(4))
    assert largest_gap(reference, before) < EQUAL < 0.05 < largest_gap(reference, after)
    reference.load_weights(weights)
    assert largest_gap(reference, after) < EQUAL
    assert {version for row in after[3].values() for version in row} == {7}
    assert {version for row in before[3].values() for version in row} == {None}
    for name, tensor in policy.weights().items():
        torch.testing.assert_close(tensor, weights[name].cpu())


def test_without_an_explicit_head_it_would_be_stale(policy, reference):
    """The trap itself, so that a vLLM without it can be told: the head alone stays what it was."""
    from divopd.policies.vllm_weights import weight_file

    weights = perturbed(reference.weights(), 1)
    with weight_file(weights) as path:
        policy.engine.swap(lambda: policy.engine.rpc("take_file", path, {}), "8")
    reference.load_weights(weights)
    assert largest_gap(reference, converse(policy, range(4))) > 0.05
    policy.load_weights(weights, 8)
    assert largest_gap(reference, converse(policy, range(4))) < EQUAL


@pytest.mark.skipif(not GPU, reason="weights go from GPU memory to GPU memory")
def test_weights_on_the_engines_gpu_go_by_ipc(policy, reference):
    weights = {name: tensor.cuda() for name, tensor in perturbed(policy.weights(), 2).items()}
    policy.load_weights(weights, 9)
    assert policy._sender is not None and policy._sender.backend == "ipc"
    reference.load_weights(weights)
    spoken = converse(policy, range(4))
    assert largest_gap(reference, spoken) < EQUAL and spoken[3][0][0] == 9


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="weights go from one GPU to another")
def test_weights_on_another_gpu_go_by_nccl(config):
    engine = config.engine.model_copy(update={"transfer": "nccl"})
    there = make_policy(config.model_copy(update={"engine": engine}), 3, LIMIT)
    try:
        weights = {name: tensor.to("cuda:1") for name, tensor in perturbed(there.weights(), 3).items()}
        there.load_weights(weights, 1)
        twin = HFPolicy(load_model(config), 3)
        twin.load_weights(weights)
        assert largest_gap(twin, converse(there, range(4))) < EQUAL
    finally:
        there.close()


def play_and_swap(policy, reference, loads: int) -> tuple[list, list[dict[str, torch.Tensor]]]:
    """Eight threads converse while the weights change; what they said, and the weights by version."""
    weights = [reference.weights()] + [perturbed(reference.weights(), 10 + i) for i in range(loads)]
    weights = [{name: tensor.clone() for name, tensor in each.items()} for each in weights]
    policy.load_weights(weights[0], 0)
    with ThreadPoolExecutor(8) as threads:
        spoken = [threads.submit(converse, policy, [r], turns=12, limit=8) for r in range(8)]
        for version in range(1, loads + 1):
            policy.load_weights(weights[version], version)
        return [future.result() for future in spoken], weights


def scored_by(reference: HFPolicy, weights: list[dict[str, torch.Tensor]], spoken) -> list[list[np.ndarray]]:
    """Of one thread's episode: for each version, the log-probs of its spans."""
    [row] = spoken[0]
    out = []
    for version in weights:
        reference.load_weights(version)
        out.append(reference.score([np.array(spoken[0][row])], [spoken[1][row]])[0])
    return out


def test_threads_go_on_while_weights_change_and_no_response_mixes_them(policy, reference):
    said, weights = play_and_swap(policy, reference, 3)
    seen = set()
    for spoken in said:
        [row] = spoken[0]
        scored = scored_by(reference, weights, spoken)
        for turn, (logprobs, version) in enumerate(zip(spoken[2][row], spoken[3][row], strict=True)):
            np.testing.assert_allclose(logprobs, scored[version][turn], atol=EQUAL)
            seen.add(version)
        assert spoken[3][row] == sorted(spoken[3][row])
    assert len(seen) > 1


def test_kept_requests_are_labelled_with_the_weights_they_began_under(policy, reference):
    policy.engine.keep = True
    try:
        said, weights = play_and_swap(policy, reference, 3)
    finally:
        policy.engine.keep = False
    for spoken in said:
        [row] = spoken[0]
        scored = scored_by(reference, weights, spoken)
        for turn, (logprobs, version) in enumerate(zip(spoken[2][row], spoken[3][row], strict=True)):
            gaps = np.abs(np.stack([logprobs - each[turn] for each in scored]))
            assert gaps[version, 0] < EQUAL  # the label is the first token's
            assert (gaps[version:].min(0) < EQUAL).all()  # later tokens are of the same weights or newer ones


def test_episodes_in_threads_are_the_rollouts_of_the_other_back_end(policy, reference, game_cache):
    """The rollout loop on one-episode sessions in threads: contexts and spans fit the log-probs that came back."""
    from divopd.config import PromptConfig
    from divopd.envs.registry import make_envs
    from divopd.prompts import Renderer, make_style
    from divopd.rollout import PlaySettings, play
    from divopd.timing import Stopwatch

    renderer = Renderer(load_tokenizer(policy.config), make_style(PromptConfig(), "alfworld"))
    envs = make_envs(EnvConfig(cache_dir=str(game_cache)), 4)
    limits = PlaySettings(8, 160, 4, 1.0)

    playing = threading.Lock()  # TextWorld's parsers serve one thread at a time; the engine serves all

    class InTurn:
        def __init__(self, env) -> None:
            self.env = env

        def reset(self, task: str):
            with playing:
                return self.env.reset(task)

        def step(self, action: str):
            with playing:
                return self.env.step(action)

    def one(i: int):
        task = [((0, i, 0), f"gen/train/{i}", rng("threads", i))]
        return play(policy, renderer, [InTurn(envs[i])], task, 0, limits, Stopwatch())[0]

    with ThreadPoolExecutor(4) as threads:
        rollouts = list(threads.map(one, range(4)))
    assert [rollout.task for rollout in rollouts] == [f"gen/train/{i}" for i in range(4)]
    contexts, spans, logprobs = student_spans(rollouts)
    assert gap(reference.score(contexts, spans), logprobs).maximum < EQUAL
    again = one(2)
    assert again.turns[0].context.tolist() == rollouts[2].turns[0].context.tolist()


def test_what_cannot_be_is_said_in_a_line(policy):
    draw, session = [rng("x")], policy.session(1)
    with pytest.raises(PolicyError, match=r"250 tokens and 8 more do not fit the engine's 257"):
        session.act([0], [np.full(250, 5)], 1.0, 8, draw)
    with pytest.raises(PolicyError, match="empty prompt"):
        session.act([0], [np.zeros(0, dtype=int)], 1.0, 8, draw)
    with pytest.raises(PolicyError, match="token id 99999 is outside the model's vocabulary of 314"):
        session.act([0], [np.array([5, 99999])], 1.0, 8, draw)
    with pytest.raises(PolicyError, match="cannot score tokens 0 to 3 of a context of 5 tokens"):
        policy.score([np.arange(4, 9)], [[(0, 3)]])
    with pytest.raises(PolicyError, match="cannot score tokens 1 to 9 of a context of 5 tokens"):
        policy.score([np.arange(4, 9)], [[(1, 9)]])
    with pytest.raises(PolicyError, match="lacks model.norm.weight"):
        policy.load_weights({k: v for k, v in policy.weights().items() if k != "model.norm.weight"})
    assert len(session.act([0], [np.array([5, 9, 20])], 1.0, 2, draw)) == 1  # and nothing of it stuck


def test_a_cell_trains_and_its_syncs_are_probed(tiny_cell, config, tmp_path):
    from divopd.runlog import read_table
    from divopd.train import train

    cell = tiny_cell(
        student=config.model_dump(),
        teacher={"path": "models/alfworld/teacher"},
        prompt={"max_prompt_tokens": 160, "max_response_tokens": 4},
        train={"updates": 2, "batch_rows": 8, "learning_rate": 1e-3},
    )
    assert train(cell, tmp_path / "run", lambda *_: None) == "done"
    rows = read_table(tmp_path / "run", "parity").to_pylist()
    assert [row["version"] for row in rows] == [1, 2] and all(0 < row["max_gap"] < EQUAL for row in rows)
    versions = {turn["version"] for turn in read_table(tmp_path / "run", "turns").to_pylist()}
    assert 0 in versions <= {0, 1, 2}
    assert (tmp_path / "run" / "checkpoints").is_dir() and "alarms" not in (
        tmp_path / "run" / "status.json"
    ).read_text()


def test_a_dead_engine_is_an_error_and_not_a_hang(policy):
    """Last in this file: nothing is left of the engine afterwards."""
    cores = [process for process in multiprocessing.active_children() if "EngineCore" in process.name]
    assert cores
    for process in cores:
        process.kill()
    with pytest.raises(PolicyError, match="the vLLM engine failed"):
        for _ in range(50):
            policy.session(1).act([0], [np.array([5, 9, 20])], 1.0, 4, [rng("x")])
    with pytest.raises(PolicyError, match="the vLLM engine failed"):
        policy.score([np.array([5, 9, 20])], [[(1, 3)]])
