"""The one trainer: builds what a cell names and lets the pipeline drive it to the end, or on from a crash."""

from __future__ import annotations

import io
import os
import pickle
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from .config import RunConfig
from .envs.registry import make_envs, train_tasks
from .learner import DivergedError, Learner
from .pipeline.virtual import Task, VirtualPipeline, Workers
from .policies.base import PolicyError
from .policies.hf import HFPolicy, load_model, load_tokenizer
from .prompts import Renderer, make_style
from .rollout import PlaySettings, play, score
from .runlog import RunLog, turn_row
from .selection import load_rule
from .timing import Stopwatch
from .types import Rollout

Progress = Callable[[int, int, str], None]
"""(updates done, updates in all, a few words)"""


class Trainer:
    """All parts of one run. `run` returns when the run is over; kill it at any time and a new one goes on."""

    def __init__(self, config: RunConfig, run_dir: Path) -> None:
        torch.set_num_threads(config.threads)
        self.config, self.run_dir = config, run_dir
        self.rule = load_rule(config.method.rule, config.method.params)
        tokenizer, teacher_tokenizer = load_tokenizer(config.student), load_tokenizer(config.teacher)
        defined = check_tokenizers(tokenizer, teacher_tokenizer)
        self.renderer = Renderer(tokenizer, make_style(config.prompt, config.env.name))
        self.student = HFPolicy(load_model(config.student), self.renderer.eos)
        self.teacher = HFPolicy(load_model(config.teacher), self.renderer.eos)
        raw = self.teacher.model.get_input_embeddings().num_embeddings
        self.teacher_vocabulary = raw if config.prompt.score_unknown_ids else defined
        # float32 whatever the rollout copy's type: bfloat16 weights would round small updates away
        master = load_model(config.student.model_copy(update={"dtype": "float32"}))
        self.learner = Learner(master, config.train, bf16=config.train.bf16)
        self.envs = make_envs(config.env, config.pipeline.tasks_per_step * config.pipeline.runs_per_task)
        self.settings = PlaySettings(
            config.env.max_turns,
            config.prompt.max_prompt_tokens,
            config.prompt.max_response_tokens,
            config.rollout_temperature,
        )
        self.watch = Stopwatch()
        self.log = RunLog.open(run_dir, config)
        self.pipeline = VirtualPipeline(config, self.rule, train_tasks(config.env))
        self._restore()

    # what the pipeline drives ----------------------------------------------------------------------------------------

    def _explore(self, tasks: Sequence[Task], version: int) -> tuple[list[Rollout], int]:
        rollouts = play(self.student, self.renderer, self.envs, tasks, version, self.settings, self.watch)
        return rollouts, score(self.teacher, rollouts, self.teacher_vocabulary, self.watch)

    def _learn(self, turns: Sequence[Any], version: int) -> dict[str, float]:
        with self.watch("learner"):
            stats = self.learner.update(turns, version)
        return {key: stats[key] for key in ("loss", "objective", "drift", "grad_norm", "computed_tokens")}

    def _publish(self) -> None:
        self.student.load_weights(self.learner.model.state_dict())

    def _save(self, version: int, explorer_step: int, time: float) -> None:
        from safetensors.torch import save_file

        folder = self.run_dir / "checkpoints"
        folder.mkdir(exist_ok=True)
        path = folder / f"v{version:05d}-e{explorer_step:05d}.safetensors"
        beside = path.with_suffix(".tmp")
        tied = self.student.model.config.tie_word_embeddings
        weights = {k: v for k, v in self.student.model.state_dict().items() if not (tied and k == "lm_head.weight")}
        facts = {"version": str(version), "explorer_step": str(explorer_step), "time": repr(time)}
        save_file(weights, beside, metadata=facts)
        os.replace(beside, path)

    # the run ---------------------------------------------------------------------------------------------------------

    def run(self, progress: Progress) -> str:
        """Train to the end; the status that was logged, "done" or "diverged"."""
        workers = Workers(self._explore, self._learn, self._publish, self._save)
        updates = self.config.train.updates
        rows: list[dict[str, Any]] = []
        try:
            while not self.pipeline.finished:
                self.pipeline.run(workers, rows.append, self.watch)
                self.log.add("updates", [rows.pop()])
                done = self.pipeline.version
                if done % self.config.pipeline.save_every == 0 and not self.pipeline.finished:
                    self._snapshot()
                progress(done, updates, f"{self.pipeline.now:.0f} virtual s")
        except DivergedError as error:
            self._close_turns()
            self.log.finish("diverged", reason=str(error), updates=self.pipeline.version)
            return "diverged"
        self._close_turns()
        self._charge()
        self.log.finish("done", updates=updates, virtual_seconds=self.pipeline.now)
        return "done"

    def _close_turns(self) -> None:
        task_of = self.pipeline.task_of
        self.log.add("turns", [turn_row(turn, task_of[turn.rollout]) for turn in self.pipeline.pool.take_closed()])

    def _charge(self) -> None:
        for stage, seconds in self.watch.seconds.items():
            self.log.add_seconds(stage, seconds)
        self.watch.seconds.clear()

    # resume ----------------------------------------------------------------------------------------------------------

    def _snapshot(self) -> None:
        """A resume point: everything that the next event needs, and how far the log had come."""
        with self.watch("clock"):
            self._close_turns()
            self._charge()
            self.log.flush()
            state = {
                "pipeline": pickle.dumps(self.pipeline),
                "learner": self.learner.state_dict(),
                "published": self.student.model.state_dict(),
                "log": self.log.counts(),
            }
            buffer = io.BytesIO()
            torch.save(state, buffer)
            folder = self.run_dir / "resume"
            folder.mkdir(exist_ok=True)
            (folder / "state.tmp").write_bytes(buffer.getvalue())
            os.replace(folder / "state.tmp", folder / "state.pt")

    def _restore(self) -> None:
        path = self.run_dir / "resume" / "state.pt"
        if not path.exists():
            self.log.truncate({"turns": 0, "updates": 0})
            return
        # our own file: it holds Python objects besides tensors
        state = torch.load(path, weights_only=False)
        self.pipeline = pickle.loads(state["pipeline"])
        self.learner.load_state_dict(state["learner"])
        self.student.load_weights(state["published"])
        self.log.truncate({name: state["log"][name] for name in ("turns", "updates")})


def check_tokenizers(student: Any, teacher: Any) -> int:
    """The number of token ids that the teacher's tokenizer defines. Raises `PolicyError` where shared ids differ."""
    ours, theirs = student.get_vocab(), teacher.get_vocab()
    names = {index: name for name, index in theirs.items()}
    wrong = [name for name, index in ours.items() if index in names and names[index] != name]
    if wrong:
        raise PolicyError(
            f"student and teacher tokenizers differ ({len(wrong)} ids, such as {wrong[0]!r}): on-policy distillation "
            "needs one vocabulary; choose models of one family"
        )
    return max(names) + 1


def train(config: RunConfig, run_dir: Path, progress: Progress) -> str:
    """Run one cell into `run_dir`, from its last resume point if there is one; "done" or "diverged"."""
    if (run_dir / "status.json").exists():
        import json

        return str(json.loads((run_dir / "status.json").read_text())["status"])
    return Trainer(config, run_dir).run(progress)
