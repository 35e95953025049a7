"""The vLLM back end against transformers', for real: `make vllm-test`, as it needs packages of its own."""

from __future__ import annotations

import importlib.util
import multiprocessing
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from divopd.config import EnvConfig
from divopd.policies.base import PolicyError
from divopd.policies.hf import HFPolicy, load_model, load_tokenizer
from divopd.policies.parity import gap, student_spans
from divopd.seeds import rng
from vllm_talk import EQUAL, STUDENT, converse, largest_gap, start

if importlib.util.find_spec("vllm") is None:
    pytest.skip("vllm is not installed here: `make vllm-test` runs these tests", allow_module_level=True)
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def policy():
    made = start()
    yield made
    made.close()


@pytest.fixture
def reference(policy) -> HFPolicy:
    """Transformers with the checkpoint's weights, which the engine gets back as well."""
    twin = HFPolicy(load_model(STUDENT), policy.eos)
    policy.load_weights(twin.weights())
    return twin


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


def test_a_cell_trains_and_its_syncs_are_probed(tiny_cell, tmp_path):
    from divopd.runlog import read_table
    from divopd.train import train

    cell = tiny_cell(
        student=STUDENT.model_dump(),
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
