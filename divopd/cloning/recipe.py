"""The recipe of the small checkpoints, stage by stage; every stage is kept, so that a second call goes on.

tokenizer -> expert demonstrations -> teacher -> (DAgger: its own and a student's states, labelled) -> teacher
                                   -> students, cloned briefly
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import Field, PositiveFloat, PositiveInt

from ..config import EnvConfig, PolicyConfig, PromptConfig, Strict
from ..envs.registry import make_envs, plugin, train_tasks
from ..names import Name
from ..policies.hf import HFPolicy, load_model, load_tokenizer
from ..prompts import Renderer, make_style
from ..provenance import file_hash
from ..seeds import rng, seed
from ..suite import read_yaml
from ..worker_pool import WorkerPool
from .demos import Demo, Labeller, collect
from .model import ModelSize, new_model
from .tokenizer import build_tokenizer
from .train import clone

Say = Callable[[str], None]
Unit = tuple[int, int, tuple[str, ...]]
"""(play, turns of the policy, tasks)"""
Habits = tuple[float, ...]
_SIDE_BY_SIDE = 32


class StageSpec(Strict):
    """More demonstrations, then steps on all so far (`forget`: on these alone).

    `actor` plays: the expert, the novice with the model's habits, the model so far (`self`), or another model's stage
    ("student/stage0"). `labels` is whose distribution is learned.
    """

    actor: str = "expert"
    labels: Literal["expert", "novice"] = "expert"
    forget: bool = False
    tasks: str = ""  # "" adds no data
    plays: PositiveInt = 1  # episodes a task
    policy_turns: list[PositiveInt] = [10_000]  # a policy's turns before the expert takes over, by turns over the tasks
    mistakes: float = Field(0.0, ge=0.0, le=1.0)
    steps: int = Field(0, ge=0)
    learning_rate: PositiveFloat = 1e-3


class ModelSpec(Strict):
    """One checkpoint: its shape and stages."""

    hidden: PositiveInt
    layers: PositiveInt
    heads: PositiveInt
    ffn: PositiveInt
    habits: Habits = ()  # of its novice: the shares that the environment's `players` takes
    start: str = ""  # another model's stage whose weights it begins with ("": fresh ones)
    ship: bool = True  # False: only a step on the way
    stages: list[StageSpec]


class RecipeSpec(Strict):
    """A recipe file: models of one environment, which share tokenizer and demonstrations."""

    env: EnvConfig
    seed: int = 0
    workers: PositiveInt = 2
    batch_tokens: PositiveInt = 4096
    response_tokens: PositiveInt = 8  # the most that a playing policy says in one turn
    models: dict[Name, ModelSpec]


def read_recipe(path: Path) -> RecipeSpec:
    """A recipe file. Raises SuiteError for a missing or malformed file, ValidationError for its content."""
    return RecipeSpec.model_validate(read_yaml(path))


class Recipe:
    """Makes the checkpoints of one recipe in `out`; demonstrations and unfinished stages lie in `work`."""

    def __init__(self, spec: RecipeSpec, out: Path, work: Path, say: Say) -> None:
        self.spec, self.out, self.work, self.say = spec, out, work, say
        work.mkdir(parents=True, exist_ok=True)
        self.tokenizer = build_tokenizer(*plugin(spec.env.name).words())
        self.tokenizer.save_pretrained(work / "tokenizer")

    def make(self, name: str) -> None:
        """All stages of one model, then its checkpoint in bfloat16, if it ships."""
        torch.set_num_threads(1)
        model_spec = self.spec.models[name]
        size = ModelSize(model_spec.hidden, model_spec.layers, model_spec.heads, model_spec.ffn, model_spec.heads)
        model = new_model(size, self.tokenizer, seed(self.spec.seed, "init", name) % 2**31)
        if model_spec.start:
            model = load_model(PolicyConfig(path=str(self.work / model_spec.start)))
        demos: list[Demo] = []
        for number, stage in enumerate(model_spec.stages):
            kept = self.work / name / f"stage{number}"
            if stage.forget:
                demos = []
            if stage.tasks:
                demos += self._demos(stage, model_spec.habits, self.work / name / f"stage{number - 1}")
            if (kept / "model.safetensors").exists():
                model = load_model(PolicyConfig(path=str(kept)))
                continue
            if stage.steps:
                self.say(f"{name}: stage {number}, {len(demos)} episodes, {stage.steps} steps")
                clone(
                    model,
                    demos,
                    self.tokenizer,
                    steps=stage.steps,
                    learning_rate=stage.learning_rate,
                    draws=rng(self.spec.seed, "clone", name, number),
                    tokens=self.spec.batch_tokens,
                    report=lambda step, loss: self.say(f"{name}: step {step}, KL to the expert {loss:.3f} a token"),
                )
            self._save(model, kept)
        if model_spec.ship:
            self._save(model.to(torch.bfloat16), self.out / name)

    def write_hashes(self) -> None:
        """SHA256SUMS of all checkpoints, as `sha256sum --check` reads it."""
        files = sorted(path for path in self.out.rglob("*") if path.is_file() and path.name != "SHA256SUMS")
        lines = [f"{file_hash(path)}  {path.relative_to(self.out).as_posix()}\n" for path in files]
        (self.out / "SHA256SUMS").write_text("".join(lines))

    def _save(self, model: Any, folder: Path) -> None:
        model.save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)

    def _demos(self, stage: StageSpec, habits: Habits, checkpoint: Path) -> list[Demo]:
        """A stage's episodes, by `workers` processes; expert episodes are shared by all models of the recipe."""
        actor = f"{checkpoint.parent.name}/{checkpoint.name}" if stage.actor == "self" else stage.actor
        path = "" if actor in ("expert", "novice") else str(self.work / actor)
        env = self.spec.env
        rooms = (env.name, env.source, env.max_turns, sorted(env.size.items()))
        how: tuple[object, ...] = (actor, stage.tasks, stage.plays, stage.policy_turns, stage.mistakes, self.spec.seed)
        how += rooms
        if "novice" in (stage.actor, stage.labels):
            how = (*how, habits, stage.actor, stage.labels)
        key = f"{seed(*how):016x}"
        kept = self.work / f"demos-{key}.pkl"
        if not kept.exists():
            units = _units(stage, train_tasks(self.spec.env.model_copy(update={"train_tasks": stage.tasks})))
            shares = [units[i :: self.spec.workers] for i in range(self.spec.workers)]
            words = str(self.work / "tokenizer")
            with WorkerPool(self.spec.workers, "spawn") as pool:
                jobs = [
                    pool.submit(_play_share, self.spec, words, stage, habits, actor, path, share) for share in shares
                ]
                played = {unit: got for share, job in zip(shares, jobs, strict=True) for unit, got in job.result()}
            demos = [demo for unit in units for demo in played[unit]]
            won = sum(demo.success for demo in demos) / len(demos)
            turns = sum(demo.turns for demo in demos) / len(demos)
            self.say(f"{len(demos)} episodes by {stage.actor} on {stage.tasks}: success {won:.1%}, {turns:.1f} turns")
            kept.write_bytes(pickle.dumps(demos))
        return list(pickle.loads(kept.read_bytes()))


def _units(stage: StageSpec, tasks: Sequence[str]) -> list[Unit]:
    """What is played side by side, whoever plays it: batches do not depend on the number of workers."""
    kinds = len(stage.policy_turns)
    return [
        (play, turns, tuple(tasks[i : min(i + _SIDE_BY_SIDE * kinds, len(tasks)) : kinds]))
        for play in range(stage.plays)
        for kind, turns in enumerate(stage.policy_turns)
        for i in range(kind, len(tasks), _SIDE_BY_SIDE * kinds)
    ]


def _play_share(
    spec: RecipeSpec,
    tokenizer_path: str,
    stage: StageSpec,
    habits: Habits,
    actor: str,
    path: str,
    units: Sequence[Unit],
) -> list[tuple[Unit, list[Demo]]]:
    """Play some units in a process of its own."""
    torch.set_num_threads(1)
    tokenizer = load_tokenizer(PolicyConfig(path=tokenizer_path))
    renderer = Renderer(tokenizer, make_style(PromptConfig(), spec.env.name))
    policy = HFPolicy(load_model(PolicyConfig(path=path)), renderer.eos) if path else None
    envs = make_envs(spec.env, _SIDE_BY_SIDE)
    env_kind = plugin(spec.env.name)
    make: dict[str, Callable[[], Labeller]] = env_kind.players(habits)
    known: dict[str, tuple[int, ...]] = {}

    def encode(command: str, allowed: tuple[str, ...]) -> tuple[int, ...]:
        text = env_kind.short(command, allowed)
        if text not in known:
            known[text] = (*tokenizer.encode(text, add_special_tokens=False), renderer.eos)
        return known[text]

    return [
        (
            unit,
            collect(
                envs,
                make[stage.labels],
                renderer,
                unit[2],
                encode,
                (spec.seed, "demos", actor, stage.mistakes, unit[0]),
                make_actor=make.get(stage.actor),
                policy=policy,
                policy_turns=unit[1],
                mistakes=stage.mistakes,
                max_turns=spec.env.max_turns,
                response_tokens=spec.response_tokens,
            ),
        )
        for unit in units
    ]
