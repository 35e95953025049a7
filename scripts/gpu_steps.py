"""The steps of gpu_check: what is measured, on models of which shapes."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from divopd.blank import byte_tokenizer, write_model
from divopd.config import PolicyConfig, TrainConfig
from divopd.plan.shapes import SHAPES, Shape
from divopd.types import Turn

PARITY = {"bfloat16": 0.15, "float32": 1e-3}  # largest gap of a token's log-prob, nats
TINY = {  # heads of 32: the smallest that vLLM's CPU build has
    "tiny-student": Shape(64, 2, 2, 1, 128, 320, False, 32),
    "tiny-teacher": Shape(96, 2, 3, 1, 192, 352, False, 32),
}


class Size:
    """What is measured, and how much of it."""

    def __init__(self, tiny: bool) -> None:
        self.tiny = tiny
        self.shapes = TINY if tiny else SHAPES
        self.student, self.teacher = ("tiny-student", "tiny-teacher") if tiny else ("Qwen2.5-1.5B", "Qwen2.5-7B")
        self.learners = (self.student,) if tiny else (self.student, "Qwen2.5-3B")
        self.dtype: Any = "float32" if tiny else "bfloat16"
        self.tokenizer_ids = 300 if tiny else 151_665  # Qwen2.5's tokenizer defines so many
        self.prompt, self.response, self.episodes = (48, 8, 4) if tiny else (2048, 128, 64)
        self.contexts, self.context = (4, 96) if tiny else (16, 6000)


def models(size: Size, work: Path) -> dict[str, Any]:
    """Student and teacher of random weights, one tokenizer, vocabularies padded to two sizes as Qwen's are."""
    tokenizer = byte_tokenizer(size.tokenizer_ids)
    for seed, name in enumerate((size.student, size.teacher)):
        write_model(work / name, size.shapes[name], tokenizer, seed, size.dtype)
    return {}


def rollout(size: Size, work: Path) -> dict[str, Any]:
    """The student: log-probs of vLLM against transformers, before and after a weight transfer; tokens a second."""
    from divopd.policies.hf import HFPolicy, load_model

    config = PolicyConfig(path=str(work / size.student), dtype=size.dtype)
    plain = HFPolicy(load_model(config), eos(work / size.student))
    policy, skipped = _engine(config, size, 0.5)
    out: dict[str, Any] = {}
    if policy is None:
        policy = plain
        out["checks"] = {"vllm": skipped, "parity": f"skipped: {skipped}"}
    else:
        before = _parity(policy, plain, size)
        weights = {name: tensor + 0.01 * tensor.std() for name, tensor in plain.model.state_dict().items()}
        plain.load_weights(weights)
        sync = _timed(lambda: policy.load_weights(weights, 1))
        out["checks"] = {"parity": before, "parity_after_sync": _parity(policy, plain, size), "sync_seconds": sync}
        out["sync_seconds"] = sync
        plain.model.to("cpu")
    prompts = _tokens(size, size.episodes, size.prompt)
    seconds = _timed(lambda: policy.session(size.episodes).act(range(size.episodes), prompts, 1.0, 1, _draws(size)))
    both = _timed(
        lambda: policy.session(size.episodes).act(range(size.episodes), prompts, 1.0, size.response, _draws(size))
    )
    out["model"] = size.student
    out["rates"] = {
        "prefill": size.episodes * size.prompt / seconds,
        # vLLM finds the prompts in its cache the second time, transformers does not
        "decode": size.episodes * size.response / (both if skipped == "" else max(both - seconds, 1e-9)),
        "decode_episodes": size.episodes,
    }
    if policy is not plain:
        policy.close()
    return out


def teacher(size: Size, work: Path) -> dict[str, Any]:
    """The teacher: tokens a second of scoring whole rollouts."""
    from divopd.policies.hf import HFPolicy, load_model

    config = PolicyConfig(path=str(work / size.teacher), dtype=size.dtype)
    policy, skipped = _engine(config, size, 0.85)
    scorer: Any = policy or HFPolicy(load_model(config), eos(work / size.teacher))
    contexts = _tokens(size, size.contexts, size.context)
    spans = [[(at, at + size.response) for at in range(size.response, size.context, 3 * size.response)]] * len(contexts)
    spans = [[(start, min(end, size.context)) for start, end in row] for row in spans]
    scorer.score(contexts[:1], spans[:1])  # what starts with the first call is not scoring
    seconds = _timed(lambda: scorer.score(contexts[1:], spans[1:]))
    if policy is not None:
        policy.close()
    return {"model": size.teacher, "rates": {"score": size.context * (len(contexts) - 1) / seconds},
            "checks": {"scorer": "vllm" if policy is not None else f"transformers ({skipped})"}}  # fmt: skip


def learner(size: Size, work: Path, name: str) -> dict[str, Any]:
    """The learner: tokens a second and peak memory of a step as experiments/paper.yaml computes it."""
    import torch
    from transformers import AutoModelForCausalLM

    from divopd.blank import model_config
    from divopd.learner import Learner

    gpu = torch.cuda.is_available()
    torch.manual_seed(0)
    with torch.device("cuda" if gpu else "cpu"):
        config = model_config(size.shapes[name], byte_tokenizer(size.tokenizer_ids))
        model: Any = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="sdpa")
    train = TrainConfig(bf16=True, packed=True, logit_chunk=1024, activation_checkpointing=True)
    steps = Learner(model, train, bf16=True)
    steps.update(_turns(size))
    stats: dict[str, float] = {}
    seconds = _timed(lambda: stats.update(steps.update(_turns(size))))
    peak = torch.cuda.max_memory_allocated() / 2**30 if gpu else None
    checks = {f"learner_peak_gib_{name}": peak, f"learner_step_seconds_{name}": seconds}
    return {"model": name, "rates": {"train": stats["computed_tokens"] / seconds}, "checks": checks}


def cell(size: Size, work: Path) -> dict[str, Any]:
    """Two updates of a whole run: Ray actors, the real environment, templates, transfer of weights."""
    vllm = _vllm_missing() == ""
    engine = {"episodes": 8, "gpu_memory": 0.2, "cache_gib": 0.25}
    policy = {"path": str(work / size.student), "dtype": size.dtype}
    policy |= {"backend": "vllm", "engine": engine} if vllm and not size.tiny else {}
    panel = work / "panel.txt"
    panel.write_text("gen/eval/0\n")
    share = 0.0 if size.tiny else 0.3
    run = {
        "suite": "gpu_check", "setting": "short", "method": {"name": "divopd", "rule": "divopd"},
        "student": policy, "teacher": policy,
        "env": {"train_tasks": "gen/train/0:4", "eval_panel": str(panel), "max_turns": 4,
                "cache_dir": str(work / "games")},
        "prompt": {"style": "chat", "template": "alfworld", "max_response_tokens": 4 if size.tiny else 64,
                   "max_prompt_tokens": 10_240},
        "train": {"updates": 2, "batch_rows": 8, "bf16": not size.tiny, "packed": True, "logit_chunk": 512,
                  "activation_checkpointing": True},
        "pipeline": {"kind": "ray", "tasks_per_step": 4, "save_every": 2},
        "placement": {kind: {"count": 1, "cpus": 0.3, "gpus": share} for kind in ("explorers", "scorers", "learners")}
        | {"evaluators": {"count": 0}},
        "evaluation": {"every_updates": 2, "episodes": 1, "batch": 1},
    }  # fmt: skip
    (work / "cell.yaml").write_text(yaml.safe_dump(run))
    command = [sys.executable, "-m", "divopd.cli", "train", "--config", str(work / "cell.yaml"), "--out",
               str(work / "results"), "--progress", "none"]  # fmt: skip
    seconds = _timed(lambda: subprocess.run(command, check=True, stdout=sys.stderr))
    [status] = (work / "results").rglob("status.json")
    taken = {f"ray_cell_weights_{how}": value for how, value in json.loads(status.read_text())["weights"].items()}
    return {"checks": {"ray_cell_seconds": seconds, "ray_cell_backend": policy.get("backend", "hf"), **taken}}


def eos(folder: Path) -> int:
    return int(json.loads((folder / "config.json").read_text())["eos_token_id"])


def _vllm_missing() -> str:
    """Why vLLM cannot be used here; empty where it can."""
    from divopd.policies.base import PolicyError
    from divopd.policies.vllm_engine import import_vllm

    try:
        import_vllm()
    except PolicyError as error:
        return str(error)
    return ""


def _engine(config: PolicyConfig, size: Size, share: float) -> tuple[Any, str]:
    if reason := _vllm_missing():
        return None, reason
    from divopd.policies.make import make_policy

    engine = {"gpu_memory": share, "episodes": size.episodes, "cache_gib": 0.25}
    longest = max(size.context, size.prompt + size.response) + 1
    chosen = PolicyConfig.model_validate(config.model_dump() | {"backend": "vllm", "engine": engine})
    return make_policy(chosen, eos(Path(config.path)), longest), ""


def _parity(policy: Any, plain: Any, size: Size) -> dict[str, float]:
    """Gap of sampled tokens' log-probs, as sampled and as scored, against transformers on the same tokens."""
    prompts = _tokens(size, 4, size.prompt)
    samples = policy.session(4).act(range(4), prompts, 1.0, size.response, _draws(size)[:4])
    contexts = [np.concatenate([p, s.tokens]) for p, s in zip(prompts, samples, strict=True)]
    spans = [[(len(p), len(c))] for p, c in zip(prompts, contexts, strict=True)]
    want = np.concatenate([row[0] for row in plain.score(contexts, spans)])
    scored = np.concatenate([row[0] for row in policy.score(contexts, spans)])
    gaps = {"sampled": np.abs(np.concatenate([s.logprobs for s in samples]) - want), "scored": np.abs(scored - want)}
    out = {
        f"{name}_{what}": float(f(gap))
        for name, gap in gaps.items()
        for what, f in (("max", np.max), ("mean", np.mean))
    }
    if max(out["sampled_max"], out["scored_max"]) > PARITY[size.dtype]:
        raise SystemExit(f"log-probs of vLLM and transformers differ: {out}")
    return out


def _tokens(size: Size, rows: int, length: int) -> list[np.ndarray]:
    draws = np.random.default_rng(rows * length)
    return [draws.integers(0, size.tokenizer_ids - 3, length) for _ in range(rows)]


def _draws(size: Size) -> list[np.random.Generator]:
    return [np.random.default_rng(i) for i in range(size.episodes)]


def _turns(size: Size) -> list[Turn]:
    """64 rows, four of each of sixteen rollouts, spread over contexts of `size.context` tokens."""
    turns = []
    for number, context in enumerate(_tokens(size, 16, size.context)):
        for index, part in enumerate((0.25, 0.5, 0.75, 1.0)):
            end = int(size.context * part)
            scores = np.full((2, size.response), -2.0, dtype=np.float32)
            scores[1] -= 0.5
            turns.append(Turn((0, number, 0), index, 0, context, end - size.response, end, scores[0], scores[1],
                              np.ones(size.response, dtype=bool)))  # fmt: skip
    return turns


def _timed(work: Callable[[], Any]) -> float:
    import torch

    start = time.perf_counter()
    work()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - start


STEPS: dict[str, Callable[[Size, Path], list[dict[str, Any]]]] = {
    "models": lambda size, work: [models(size, work)],
    "rollout": lambda size, work: [rollout(size, work)],
    "teacher": lambda size, work: [teacher(size, work)],
    **{f"learner{i}": (lambda size, work, i=i: [learner(size, work, size.learners[i])]) for i in range(2)},
    "cell": lambda size, work: [cell(size, work)],
}
