"""The one trainer: builds what a cell names and lets the pipeline drive it to the end, or on from a crash."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch

from . import runlog
from .config import RunConfig
from .envs.paths import Paths, expert_paths
from .envs.registry import make_envs, train_tasks
from .files import RunLogError, atomic_write
from .learner import DivergedError, Learner, Reference
from .losses import SAMPLED
from .pipeline.course import Course
from .pipeline.virtual import Task, VirtualPipeline, Workers
from .policies.base import PolicyError
from .policies.hf import HFPolicy, load_model, load_tokenizer
from .policies.make import make_policy
from .policies.parity import Parity
from .prompts import make_renderer
from .provenance import identity
from .rollout import PlaySettings, play, score
from .rollouts import Direction, PrefixTurns, resolved_policy
from .runlog import RunLog, turn_row
from .selection import load_rule
from .timing import Stopwatch
from .transcripts import Transcripts
from .types import Rollout

Progress = Callable[[int, int, str], None]
"""(updates done, updates in all, a few words)"""


class Trainer:
    """All parts of one run. `run` returns when the run is over; kill it at any time and a new one goes on.

    What a folder without a resume point holds of this run is removed: it starts over, evaluations and all.
    """

    def __init__(self, config: RunConfig, run_dir: Path) -> None:
        torch.set_num_threads(config.threads)
        self.config, self.run_dir = config, run_dir
        self.watch = Stopwatch()
        with self.watch("startup"):
            runlog.require_same(run_dir, config)
            state = self._resume_point()
            self._build(config)
            if state is None:
                runlog.clear(run_dir)
            self.log = RunLog.open(run_dir, config)
            if state is not None:
                self._restore(state)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: Any) -> None:
        for policy in (self.student, self.teacher):
            policy.close()

    def _prepare(self, config: RunConfig) -> int:
        """Rule, prompts, rollout policy and expert paths; the number of token ids that the teacher's tokenizer defines.

        Where rollouts begin with an expert's actions, every training task must have a path.
        """
        self.rule = load_rule(config.method.rule, config.method.params)
        self.policy = resolved_policy(config.method.rollout)
        self.policy.check(config.env.name)
        tokenizer, teacher_tokenizer = load_tokenizer(config.student), load_tokenizer(config.teacher)
        defined = check_tokenizers(tokenizer, teacher_tokenizer)
        self.renderer = make_renderer(config.student, config.prompt, config.env.name, tokenizer)
        self.paths: Paths = {}
        if isinstance(self.policy, PrefixTurns):
            self.renderer.response("look", ())  # raises where the prompt has no words for an expert's action
            self.paths = expert_paths(config.env, train_tasks(config.env))
        self.transcripts = Transcripts(config.train.updates, tokenizer)
        self.parity = Parity(config)
        return defined

    def _build(self, config: RunConfig) -> None:
        defined = self._prepare(config)
        self.student, self.teacher = (
            make_policy(policy, self.renderer.ends, config.prompt.max_tokens)
            for policy in (config.student, config.teacher)
        )
        self.teacher_vocabulary = self.teacher.vocabulary if config.prompt.score_unknown_ids else defined
        # float32 whatever the rollout copy's type: bfloat16 weights would round small updates away
        master = load_model(config.student.model_copy(update={"dtype": "float32"}))
        loss = config.method.loss
        # the other losses compare distributions, so the learner asks the teacher itself
        reference = None if loss.name == SAMPLED else self.reference()
        self.learner = Learner(master, config.train, bf16=config.train.bf16, loss=loss, teacher=reference)
        self.envs = make_envs(config.env, config.pipeline.tasks_per_step * config.pipeline.runs_per_task)
        self.settings = PlaySettings(
            config.env.max_turns,
            config.prompt.max_prompt_tokens,
            config.prompt.max_response_tokens,
            config.rollout_temperature,
        )
        self.pipeline: Any = self._course(VirtualPipeline)

    def _course(self, kind: type[Course]) -> Course:
        """The run at its start."""
        course = kind(self.config, self.rule, train_tasks(self.config.env), self.policy)
        course.paths = self.paths
        return course

    def reference(self) -> Reference:
        """The teacher's whole distributions, which only a model in this process gives."""
        model = self.teacher.model if isinstance(self.teacher, HFPolicy) else load_model(self.config.teacher)
        return Reference(model, self.teacher_vocabulary)

    # what the pipeline drives ----------------------------------------------------------------------------------------

    def _explore(self, tasks: Sequence[Task], version: int, direction: Direction) -> tuple[list[Rollout], int]:
        rollouts = play(
            self.student, self.renderer, self.envs, tasks, version, self.settings, self.watch, direction, self.teacher
        )
        scored = score(self.teacher, rollouts, self.teacher_vocabulary, self.watch)
        self.transcripts.note(rollouts, version)
        self.parity.note(rollouts)
        return rollouts, scored

    def _learn(self, turns: Sequence[Any], version: int, weights: np.ndarray | None = None) -> dict[str, float]:
        with self.watch("learner"):
            stats = self.learner.update(turns, version, weights)
        self.parity.drift(stats["drift"], version)
        return {key: stats[key] for key in ("loss", "objective", "drift", "grad_norm", "computed_tokens")}

    def _publish(self) -> None:
        model, version = self.learner.model, self.learner.version
        self.student.load_weights(model.state_dict(), version)
        self.log.add("parity", self.parity.published(self.student, model, self.renderer.eos, version))

    def _save(self, version: int, explorer_step: int, time: float) -> None:
        write_checkpoint(self.run_dir, self.student.weights(), version, explorer_step, time)

    # the run ---------------------------------------------------------------------------------------------------------

    def run(self, progress: Progress) -> str:
        """Train to the end; the status that was logged, "done" or "diverged"."""
        workers = Workers(self._explore, self._learn, self._publish, self._save)
        updates = self.config.train.updates
        try:
            while not self.pipeline.finished:
                self.pipeline.run(workers, lambda row: self.log.add("updates", [row]), self.watch)
                done = self.pipeline.version
                if done % self.config.pipeline.save_every == 0 and not self.pipeline.finished:
                    self._snapshot()
                progress(done, updates, f"{self.pipeline.now:.0f} virtual s")
        except DivergedError as error:
            return self._finish("diverged", reason=str(error))
        return self._finish("done")

    def _finish(self, status: str, **details: Any) -> str:
        """The one way in which a run ends: every turn that arrived is logged, and no resume point stays."""
        self.pipeline.pool.finish(self.pipeline.version)
        self._close_turns()
        self._charge()
        if self.parity.alarms:
            details["alarms"] = self.parity.alarms
        if self.pipeline.failed_replays:
            details["failed_replays"] = self.pipeline.failed_replays
        self.log.finish(status, updates=self.pipeline.version, **self._seconds(), **details)
        runlog.remove(self.run_dir / "resume")
        return status

    def _seconds(self) -> dict[str, Any]:
        """What the run took, for status.json."""
        return {"virtual_seconds": self.pipeline.now}

    def _close_turns(self) -> None:
        task_of = self.pipeline.task_of
        closed = [*self.pipeline.pool.take_closed(), *self.pipeline.teacher_turns]
        self.pipeline.teacher_turns = []
        self.log.add("turns", [turn_row(turn, task_of[turn.rollout]) for turn in closed])
        self.log.add("transcripts", self.transcripts.take(closed))

    def _charge(self) -> None:
        for stage, seconds in self.watch.seconds.items():
            self.log.add_seconds(stage, seconds)
        self.watch.seconds.clear()

    # resume ----------------------------------------------------------------------------------------------------------

    def _snapshot(self) -> None:
        """A resume point: everything that the next event needs, and how far the log had come."""
        with self.watch("clock"):
            state = self._state() | self._weights_state()
            self._write_resume_point(state)

    def _state(self) -> dict[str, Any]:
        """Of all but the weights. What it says of the log is on disk."""
        self._close_turns()
        self._charge()
        self.log.flush()
        return {
            "pipeline": pickle.dumps(self.pipeline),
            "transcripts": self.transcripts.state_dict(),
            "parity": self.parity.state_dict(),
            "log": self.log.counts(),
            "checkpoints": [path.name for path in (self.run_dir / "checkpoints").glob("*")],
            "identity": identity(self.config),
        }

    def _weights_state(self) -> dict[str, Any]:
        return {"learner": self.learner.state_dict(), "published": self.student.weights()}

    def _load_weights_state(self, state: dict[str, Any]) -> None:
        self.learner.load_state_dict(state["learner"])
        self.student.load_weights(state["published"], self.pipeline.version)  # the learner may be one ahead

    def _write_resume_point(self, state: dict[str, Any]) -> None:
        folder = self.run_dir / "resume"
        folder.mkdir(exist_ok=True)
        atomic_write(folder / "state.pt", lambda beside: torch.save(state, beside))

    def _resume_point(self) -> dict[str, Any] | None:
        """The state that the last snapshot kept; None where there is none of this very run."""
        path = self.run_dir / "resume" / "state.pt"
        if not path.exists():
            return None
        try:
            # our own file: it holds Python objects besides tensors
            state: dict[str, Any] = torch.load(path, weights_only=False)
            if state.get("identity") != identity(self.config):
                return None
            state["pipeline"] = pickle.loads(state["pipeline"])
        except Exception as error:  # unpickling can raise anything
            # not started over by itself: hours of work may hang on this file
            raise RunLogError(f"{path} is corrupt; delete it and run this cell again from its start") from error
        return state

    def _restore(self, state: dict[str, Any]) -> None:
        for path in (self.run_dir / "checkpoints").glob("*"):
            if path.name not in state["checkpoints"]:  # later than the resume point: it is about to be made again
                path.unlink()
        self.pipeline = state["pipeline"]
        self.pipeline.policy = self.policy  # parameters that it has got since have a value here
        self._load_weights_state(state)
        if "transcripts" in state:  # resume points of before they were kept lack it
            self.transcripts.load_state_dict(state["transcripts"])
        if "parity" in state:
            self.parity.load_state_dict(state["parity"])
        self.log.truncate({name: rows for name, rows in state["log"].items() if name != "evals"})


def write_checkpoint(
    run_dir: Path, weights: Mapping[str, torch.Tensor], version: int, explorer_step: int, time: float
) -> Path:
    """Keep published weights, without tied copies, for `divopd evaluate`."""
    from safetensors.torch import save_file

    folder = run_dir / "checkpoints"
    folder.mkdir(exist_ok=True)
    facts = {"version": str(version), "explorer_step": str(explorer_step), "time": repr(time)}
    path = folder / f"v{version:05d}-e{explorer_step:05d}.safetensors"
    atomic_write(path, lambda beside: save_file(dict(weights), beside, metadata=facts))
    return path


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


def train(config: RunConfig, run_dir: Path, progress: Progress, replace: bool = False) -> str:
    """Run one cell into `run_dir`, from its last resume point if there is one; "done" or "diverged".

    `replace`: another run that is there makes room. Raises RunLogError where it may not or is under way.
    """
    with runlog.writing(run_dir, config, replace):
        return _train(config, run_dir, progress)


def _train(config: RunConfig, run_dir: Path, progress: Progress) -> str:
    if (run_dir / "status.json").exists():
        runlog.remove(run_dir / "resume")  # killed between the two
        return str(runlog.read_json(run_dir, "status.json")["status"])
    if config.pipeline.kind == "ray":
        from .pipeline.ray.trainer import RayTrainer

        with RayTrainer(config, run_dir) as trainer:
            return trainer.run(progress)
    with Trainer(config, run_dir) as alone:
        return alone.run(progress)
