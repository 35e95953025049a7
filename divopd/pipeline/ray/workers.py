"""What the actors do: they drive the one rollout loop, scorer, learner and evaluator that every pipeline has. Each
has a `setup` that does the heavy work, so that what is wrong comes back as what it is.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

from divopd.config import RunConfig
from divopd.evaluate import Evaluator, checkpoint_rows
from divopd.files import RunLogError, atomic_write
from divopd.learner import Learner, Reference
from divopd.losses import SAMPLED
from divopd.pipeline.course import Task
from divopd.pipeline.ray.environments import remote_envs
from divopd.pipeline.ray.nodes import Home
from divopd.pipeline.ray.proxies import OneAtATime, RemoteTeacher
from divopd.pipeline.ray.weights import Giver, Packed, Taken, Taker, is_direct, pack
from divopd.policies.base import Sample, Session
from divopd.policies.hf import load_model, load_tokenizer, tied_weights
from divopd.policies.make import make_policy
from divopd.policies.parity import Gap, Probes, gap
from divopd.prompts import make_renderer
from divopd.rollout import PlaySettings, play, score
from divopd.rollouts import Direction
from divopd.timing import Stopwatch
from divopd.types import Rollout, RolloutId, Turn

Seconds = dict[str, float]
"""Real seconds by stage of timings.json."""
Probe = tuple[Probes, list[list[np.ndarray]]]
"""What the learner has scored, and the log-probs that came of it."""


def check_in(config: RunConfig, home: Home, shares: bool = False) -> int:
    """The first thing any worker does; its process. `shares`: it needs the run's folder."""
    home.enter(shares)
    torch.set_num_threads(config.threads)
    return os.getpid()


def teacher_vocabulary(config: RunConfig, rows: int) -> int:
    """Token ids that the teacher can score; `rows`: of its embedding."""
    from divopd.train import check_tokenizers

    defined = check_tokenizers(load_tokenizer(config.student), load_tokenizer(config.teacher))
    return rows if config.prompt.score_unknown_ids else defined


@dataclass(frozen=True, slots=True)
class Played:
    """What an explorer's call gives: rollouts under the weights of `version`, and how these came if they just have."""

    rollouts: list[Rollout]
    seconds: Seconds
    version: int
    taken: Taken | None
    gap: Gap | None


class Explorer:
    """Plays tasks with a policy of its own, its environments in other processes. Threads may play at once (lanes)."""

    def setup(self, config: RunConfig, home: Home) -> int:
        pid = check_in(config, home)
        pipeline = config.pipeline
        self.renderer = make_renderer(config.student, config.prompt, config.env.name)
        self.policy = make_policy(config.student, self.renderer.ends, config.prompt.max_tokens)
        self.settings = PlaySettings(config.env.max_turns, config.prompt.max_prompt_tokens,
                                     config.prompt.max_response_tokens, config.rollout_temperature)  # fmt: skip
        count = pipeline.tasks_per_step * pipeline.runs_per_task
        self.envs = remote_envs(config.env, count, config.placement.environment_processes)
        # for one answer of the teacher; less than a call may take, or who waits would be taken for the one that hangs
        self.patience = config.placement.call_limit and config.placement.call_limit / 2
        self.taker = Taker(self.policy)
        self.stamp: Any = None  # of the weights that were asked for last
        self.held: Any = None  # of those that came
        self.lock = threading.Lock()
        return pid

    def play(
        self, tasks: Sequence[Task], lane: tuple[int, int], stamp: tuple[int, int], weights: Sequence[Any],
        direction: Direction, teacher: tuple[int, int, Any] | None = None, probe: Probe | None = None,
    ) -> Played:  # fmt: skip
        """Play these tasks, no more than lane i of n has environments, with the weights of `stamp`, (epoch, version).

        `weights` holds a reference to them, or a `Direct`, by which the next version may come, published meanwhile;
        `teacher`: number, life and handle of the scorer that acts for the teacher, where the direction may ask for it.
        Nothing may be under way here under another stamp. Weights that have just come are tried with `probe`, made
        under those of the stamp: the gap to the learner's log-probs.
        """
        taken, found = self._load(stamp, weights, probe)
        version = self.held[1]
        watch, (i, n) = Stopwatch(), lane
        policy: Any = self.policy if self.policy.concurrent or n == 1 else OneAtATime(self.policy, self.lock)
        envs = self.envs[i::n][: len(tasks)]
        helper: Any = RemoteTeacher(*teacher, tasks[0][0], self.patience) if teacher else None
        try:
            rollouts = play(policy, self.renderer, envs, tasks, version, self.settings, watch, direction, helper)
        finally:
            if helper is not None:
                helper.close()
        return Played(rollouts, dict(watch.seconds), version, taken, found)

    def leave(self) -> None:
        """End what runs behind the policy."""
        self.policy.close()

    def _load(
        self, stamp: tuple[int, int], weights: Sequence[Any], probe: Probe | None
    ) -> tuple[Taken | None, Gap | None]:
        with self.lock:
            if stamp in (self.stamp, self.held):
                return None, None
            taken = self.taker.take(weights[0], stamp[1])
            self.stamp, self.held = stamp, (stamp[0], taken.version)
            if probe is None or taken.version != stamp[1]:
                return taken, None
            (contexts, spans), learner = probe
            return taken, gap(self.policy.score(contexts, spans), learner)


class Scorer:
    """The frozen teacher: scores finished rollouts, and acts where a rollout policy asks it to."""

    def setup(self, config: RunConfig, home: Home) -> int:
        pid = check_in(config, home)
        ends = make_renderer(config.student, config.prompt, config.env.name).ends
        self.policy = make_policy(config.teacher, ends, config.prompt.max_tokens)
        self.vocabulary = teacher_vocabulary(config, self.policy.vocabulary)
        self.sessions: dict[RolloutId, Session] = {}
        return pid

    def score(self, rollouts: list[Rollout]) -> tuple[list[Rollout], int, Seconds]:
        """The same rollouts with the teacher's log-probs, and the tokens that this took."""
        watch = Stopwatch()
        tokens = score(self.policy, rollouts, self.vocabulary, watch)
        return rollouts, tokens, dict(watch.seconds)

    def open(self, key: RolloutId, episodes: int) -> None:
        """A session for a lane, named by its first episode."""
        self.sessions[key] = self.policy.session(episodes)

    def act(self, key: RolloutId, *args: Any) -> tuple[list[Sample], Any]:
        """Samples, and the generators as they are now. `args`: of `Session.act`."""
        return self.sessions[key].act(*args), args[4]

    def close(self, key: RolloutId) -> None:
        """A lane is over."""
        self.sessions.pop(key, None)

    def leave(self) -> None:
        """End what runs behind the policy."""
        self.policy.close()


class Rank(Giver):
    """One rank of the learner. All are called with the same arguments; alone it is the learner of the virtual clock."""

    def address(self) -> str:
        """Where the others meet this one."""
        import ray

        with socket.socket() as free:
            free.bind(("", 0))
            return f"tcp://{ray.util.get_node_ip_address()}:{free.getsockname()[1]}"

    def setup(self, config: RunConfig, home: Home, rank: int, world: int, address: str, saved: str | None) -> int:
        """Start from the student, or from what `save` left in `saved`; its process."""
        pid = check_in(config, home, shares=True)
        self.config, self.rank, self.world = config, rank, world
        loss, reference = config.method.loss, None
        if loss.name != SAMPLED:
            teacher = load_model(config.teacher)
            rows = teacher.get_input_embeddings().num_embeddings
            reference = Reference(teacher, teacher_vocabulary(config, rows))
        master = config.student.model_copy(update={"dtype": "float32"})
        if world == 1:
            model, make = load_model(master), Learner
        else:
            from divopd.sharded import ShardedLearner, join, load_master

            join(rank, world, address)
            model, make = load_master(config.student), ShardedLearner
        self.learner: Any = make(model, config.train, bf16=config.train.bf16, loss=loss, teacher=reference)
        if saved is not None:
            self._load(Path(saved))
        self.device = self.learner.device
        return pid

    def update(
        self, turns: Sequence[Turn], version: int, weights: np.ndarray | None, probes: Probes | None = None
    ) -> tuple[Any, float, Any]:
        """Statistics and real seconds of one step, log-probs of the probes after it."""
        begin = time.perf_counter()
        stats = self.learner.update(turns, version, weights)
        seconds = time.perf_counter() - begin
        scored = None if probes is None else self.learner.score(*probes)
        return stats, seconds, scored

    def publish(self) -> tuple[None, Packed | None]:
        """Give the weights to the explorers. Returned: that it is done; of rank 0, by way of the store, the weights."""
        dtype = getattr(torch, self.config.student.dtype)
        weights = self._weights(dtype)
        if self.rank:
            for _ in weights:  # each step is collective
                pass
            return None, None
        if is_direct(self.config):
            self.put(weights, dtype, self.learner.version)
            return None, None
        return None, pack(weights, dtype)

    def save(self, saved: str) -> None:
        """Weights, optimizer and version into a folder, whole or not at all."""
        folder = Path(saved)
        if self.world > 1:
            self.learner.save(folder)
            return
        folder.mkdir(parents=True, exist_ok=True)
        atomic_write(folder / "learner.pt", lambda beside: torch.save(self.learner.state_dict(), beside))

    def _load(self, folder: Path) -> None:
        if self.world > 1:
            self.learner.load(folder)
            return
        try:
            state = torch.load(folder / "learner.pt", weights_only=False)  # our own file
        except Exception as error:  # unpickling can raise anything
            mend = f"delete {folder.parent} and run this cell again from its start"
            raise RunLogError(f"{folder / 'learner.pt'} is missing or corrupt; {mend}") from error
        self.learner.load_state_dict(state)

    def _weights(self, dtype: torch.dtype) -> Iterable[tuple[str, torch.Tensor]]:
        if self.world > 1:
            return cast(Iterable[tuple[str, torch.Tensor]], self.learner.gathered_weights(dtype, tied=False))
        tied = tied_weights(self.learner.model)
        return ((name, tensor) for name, tensor in self.learner.model.state_dict().items() if name not in tied)


class Examiner:
    """Plays checkpoints on the fixed panel, apart from the learner's clock."""

    def setup(self, config: RunConfig, home: Home) -> int:
        pid = check_in(config, home, shares=True)
        self.evaluator = Evaluator(config)
        return pid

    def evaluate(self, path: str) -> tuple[list[dict[str, Any]], float]:
        """Rows of evals.parquet of one checkpoint, and real seconds."""
        begin = time.perf_counter()
        rows = checkpoint_rows(self.evaluator, Path(path))
        return rows, time.perf_counter() - begin

    def leave(self) -> None:
        """End what runs behind the policy."""
        self.evaluator.policy.close()
