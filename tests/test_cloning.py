"""How the small checkpoints are made: labels, renaming, the optimizer, and a whole recipe in miniature."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest
import torch

from divopd.cloning.demos import Demo, _label, collect
from divopd.cloning.recipe import Recipe, RecipeSpec
from divopd.cloning.tokenizer import build_tokenizer
from divopd.cloning.train import Muon, Renumber, batches, loss_of, tensors
from divopd.config import EnvConfig, PolicyConfig, PromptConfig
from divopd.envs.alfworld.compact import compact_action
from divopd.envs.alfworld.expert import Expert
from divopd.envs.alfworld.plugin import words
from divopd.envs.registry import make_envs
from divopd.policies.hf import load_model, load_tokenizer
from divopd.prompts import Renderer, make_style
from divopd.seeds import rng


def test_labels_are_conditioned_on_what_was_said():
    """Options: (1, 5, 9) 60 %, (1, 6, 9) 20 %, (2, 5, 9) 20 %. Said: 2, 5, 9 -> first token 80/20, then certain."""
    demo, options = Demo("t", np.zeros(0)), {(1, 5, 9): 0.6, (1, 6, 9): 0.2, (2, 5, 9): 0.2}
    _label(demo, 10, [2, 5, 9], options)
    assert demo.positions == [10, 11, 12]
    first = dict(zip(*demo.labels[0], strict=True))
    assert first == pytest.approx({1: 0.8, 2: 0.2})
    assert [dict(zip(*label, strict=True)) for label in demo.labels[1:]] == [{5: 1.0}, {9: 1.0}]


def test_no_label_where_the_expert_has_no_opinion():
    demo = Demo("t", np.zeros(0))
    _label(demo, 3, [7, 5], {(1, 5): 0.5, (2, 5): 0.5})
    assert demo.positions == [3] and len(demo.labels) == 1


def test_renaming_is_a_bijection_within_types(tokenizer):
    vocabulary = tokenizer.get_vocab()
    names = {index: name for name, index in vocabulary.items()}
    renumber = Renumber(vocabulary)
    tables = [renumber.draw(rng("r", i)) for i in range(20)]
    for table in tables:
        assert sorted(table) == list(range(len(vocabulary)))
        for old, new in enumerate(table):
            assert names[old].rstrip("0123456789") == names[new].rstrip("0123456789")
            if not names[old][-1].isdigit():
                assert old == new
    assert len({tuple(table) for table in tables}) == 20


def test_every_word_of_a_game_is_in_the_vocabulary(game_cache):
    tokenizer = build_tokenizer(*words())
    renderer = Renderer(tokenizer, make_style(PromptConfig(), "alfworld"))
    env = make_envs(EnvConfig(cache_dir=str(game_cache)), 1)[0]
    for i in range(24):
        assert tokenizer.unk_token_id not in renderer.first(env.reset(f"gen/train/{i}"))
    for name in words()[1]:
        assert len(tokenizer.encode(name)) == 1


def test_collected_labels_are_the_experts(tokenizer, game_cache):
    """Replaying an episode, every label is the expert's distribution over short actions at that point."""
    env = make_envs(EnvConfig(cache_dir=str(game_cache)), 1)[0]
    renderer = Renderer(tokenizer, make_style(PromptConfig(), "alfworld"))

    def encode(command, allowed=()):
        return (*tokenizer.encode(compact_action(command)), renderer.eos)

    [demo] = collect([env], Expert, renderer, ["gen/train/1"], encode, ("seed",), mistakes=0.3, max_turns=12)
    expert, observation = Expert(), env.reset("gen/train/1")
    expert.reset(observation.goal, observation.text)
    tokens, allowed, at = renderer.first(observation).tolist(), observation.allowed, 0
    for _ in range(demo.turns):
        want: dict[int, float] = {}
        for command, weight in expert.distribution(allowed).items():
            want[encode(command)[0]] = want.get(encode(command)[0], 0.0) + weight
        assert demo.positions[at] == len(tokens)
        assert dict(zip(*demo.labels[at], strict=True)) == pytest.approx(want)
        end = demo.tokens.tolist().index(renderer.eos, len(tokens))
        response = demo.tokens[len(tokens) : end + 1]
        at += len(response)
        step = env.step(renderer.action(response, allowed))
        expert.observe(renderer.action(response, allowed), step.text)
        allowed = step.allowed
        tokens += [*response.tolist(), *renderer.follow("", step, False).tolist()]
    assert at == len(demo.positions)


def test_batches_hold_every_demo_once_within_the_limit():
    demos = [Demo(str(i), np.zeros(5 + i % 37, dtype=np.int64)) for i in range(700)]
    got = list(batches(demos, 100, rng("b")))
    assert sorted(int(d.task) for b in got for d in b) == list(range(700))
    assert all(len(b) * max(len(d.tokens) for d in b) <= 100 for b in got)


def test_loss_is_the_divergence_from_label_to_model(tokenizer, tiny_models):
    model = load_model(PolicyConfig(path=str(tiny_models / "student")))
    tokens = np.array([5, 9, 20, 33, 3])
    demo = Demo("t", tokens, [3, 4], [(np.array([33, 40]), np.array([0.25, 0.75])), (np.array([3]), np.array([1.0]))])

    class Same(Renumber):
        def draw(self, draws):
            return np.arange(self.size)

    ids, flat, targets = tensors([demo], Same(tokenizer.get_vocab()), rng("x"), 0)
    with torch.no_grad():
        logs = torch.log_softmax(model(torch.from_numpy(tokens)[None]).logits[0], -1)
        want = 0.25 * (np.log(0.25) - logs[2, 33]) + 0.75 * (np.log(0.75) - logs[2, 40]) - logs[3, 3]
        assert float(loss_of(model, ids, flat, targets)) == pytest.approx(float(want) / 2, rel=1e-4)


def test_muon_steps_are_near_orthogonal():
    torch.manual_seed(0)
    matrix = torch.nn.Parameter(torch.zeros(12, 30))
    matrix.grad = torch.randn(12, 30) @ torch.diag(torch.logspace(0, 2, 30))
    Muon([matrix], lr=1.0).step()
    values = torch.linalg.svdvals(matrix.detach())
    assert float(values.min()) > 0.5 and float(values.max()) < 1.3
    assert float((matrix.detach() * matrix.grad).sum()) < 0  # downhill


@pytest.mark.slow
def test_a_recipe_in_miniature(tmp_path: Path, game_cache):
    """Two models, DAgger included; a second call makes the same bytes from what is kept."""
    content = {
        "env": {"cache_dir": str(game_cache), "max_turns": 6},
        "workers": 1,
        "batch_tokens": 256,
        "models": {
            "pupil": {"hidden": 32, "layers": 1, "heads": 2, "ffn": 48, "stages": [{"tasks": "gen/c/0:3", "steps": 2}]},
            "teacher": {
                "hidden": 32,
                "layers": 1,
                "heads": 2,
                "ffn": 48,
                "stages": [
                    {"tasks": "gen/c/0:3", "plays": 2, "mistakes": 0.5, "steps": 2},
                    {"actor": "pupil/stage0", "tasks": "gen/c/0:2", "policy_turns": [3], "steps": 2},
                ],
            },
        },
    }
    spec, lines = RecipeSpec.model_validate(content), []
    for out in ("a", "b"):
        recipe = Recipe(spec, tmp_path / out, tmp_path / "work", lines.append)
        for name in spec.models:
            recipe.make(name)
        recipe.write_hashes()
    assert sum("episodes by" in line for line in lines) == 3
    sums = [line.split("  ") for line in (tmp_path / "a" / "SHA256SUMS").read_text().splitlines()]
    assert {name for _, name in sums} >= {"teacher/model.safetensors", "pupil/tokenizer.json"}
    for digest, name in sums:
        assert hashlib.sha256((tmp_path / "a" / name).read_bytes()).hexdigest() == digest
    assert (tmp_path / "a" / "SHA256SUMS").read_text() == (tmp_path / "b" / "SHA256SUMS").read_text()
    model = load_model(PolicyConfig(path=str(tmp_path / "a" / "teacher")))
    assert model.config.num_hidden_layers == 1 and next(model.parameters()).dtype == torch.float32
    assert load_tokenizer(PolicyConfig(path=str(tmp_path / "a" / "teacher"))).eos_token == "<end>"
