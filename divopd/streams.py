"""Synthetic arrival streams: rollouts with the lengths, tokens and scores of an environment, played by no model.

A stream runs on the replay's own clock: an explorer step starts with the version published last, and the success rate
follows that version. Every draw has a name (seed, stream, explorer step), and the same draws serve all rules, so that
rules differ only by what they make of the stream. docs/replay.md says what each parameter was set to, and why.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, get_args

import numpy as np
from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, ValidationError

from divopd.config import PipelineConfig, Probability, Strict, TrainConfig
from divopd.pipeline.clock import CostModel, arrivals
from divopd.replay.source import Arrival, ReplayError, Rows, turns_of
from divopd.seeds import rng
from divopd.strict_yaml import YamlError, read_yaml_file
from divopd.types import DropReason, Rollout

__all__ = ["StreamSpec", "Synthetic", "read_stream"]


class Ramp(Strict):
    """Success rate of rollouts against the version that plays them: linear from `start` to `end`, then flat."""

    start: Probability
    end: Probability
    updates: PositiveInt  # updates until `end`

    def at(self, version: int) -> float:
        return self.start + (self.end - self.start) * min(version / self.updates, 1.0)


class Lengths(Strict):
    """Turns of a rollout that ends by itself: a negative binomial on `shortest` .. the turn limit, cut off there.

    Before the cut its mean is `mean` and its variance mean' + mean'^2 / `shape`, with mean' = mean - shortest.
    """

    mean: PositiveFloat
    shape: PositiveFloat
    shortest: PositiveInt = 1

    def cumulative(self, limit: int) -> np.ndarray:
        """(limit - shortest + 1,) distribution function."""
        k = np.arange(limit - self.shortest + 1)
        excess = max(self.mean - self.shortest, 1e-9)
        rate = math.log(excess / (excess + self.shape))
        log_p = [math.lgamma(i + self.shape) - math.lgamma(i + 1) + i * rate for i in k.tolist()]
        p = np.exp(np.array(log_p) - max(log_p))
        return np.cumsum(p) / p.sum()


class Tokens(Strict):
    """Prompt and response lengths. The chat grows: a turn's prompt holds all that went before it."""

    first_prompt: PositiveInt  # tokens of the first prompt
    observation: PositiveFloat  # mean tokens that an observation adds
    response: PositiveFloat  # mean response tokens of a turn
    rollout_sigma: NonNegativeFloat = 0.0  # spread of a rollout's observations: of the log of a common factor
    turn_sigma: NonNegativeFloat = 0.0  # of each observation, likewise
    response_sigma: NonNegativeFloat = 0.0  # of each response, likewise
    max_prompt: PositiveInt = 10_240  # past it turns are prompt-truncated: the dead rows
    max_response: PositiveInt = 512


class Scores(Strict):
    """Student and teacher log-probs of a turn of n response tokens.

    s(u) = n * per_token * d * f * ((1 + skew) * x - skew): d = 1 + early * exp(-turn / early_turns) by depth, f =
    `failure` in rollouts that fail, x log-normal with mean 1 and log-spread `sigma`. The student's negative
    log-likelihood is n * student_nll times a log-normal of spread `student_sigma`; the teacher's does not fall below 0.
    """

    per_token: PositiveFloat  # nats
    sigma: NonNegativeFloat
    skew: NonNegativeFloat = 0.0  # how far turns fall below zero
    early: NonNegativeFloat = 0.0
    early_turns: PositiveFloat = 3.0
    failure: PositiveFloat = 1.0
    student_nll: PositiveFloat = 0.3  # nats a token
    student_sigma: NonNegativeFloat = 0.8


class Queue(Strict):
    """The batch and the queue, as in a run's `train`."""

    batch_rows: PositiveInt = 64
    pool_factor: PositiveInt = 4
    max_staleness: NonNegativeInt = 2
    retention: NonNegativeInt = 8


class StreamSpec(Strict):
    """A synthetic stream: experiments/streams/<name>.yaml."""

    name: str
    description: str = ""
    paper_setting: str | None = None  # the paper's setting that it stands for
    updates: PositiveInt = 250
    cap: PositiveInt | None = None  # k of rules that have one
    max_turns: PositiveInt = 30
    success: Ramp
    success_turns: Lengths
    failure_stop: Probability = 0.0  # share of failures that end by themselves; the others end at the turn limit
    failure_turns: Lengths | None = None  # their lengths
    dead_share: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.0  # turns without a scored token, besides the truncated
    tokens: Tokens
    scores: Scores
    pipeline: PipelineConfig = PipelineConfig()
    queue: Queue = Queue()

    def with_load(self, load: float) -> StreamSpec:
        """The same stream with its explorers as fast as `load` (arrival / drain) asks for at the first step."""
        return self.model_copy(update={"pipeline": self.pipeline.model_copy(update={"load": load})})


def read_stream(path: Path) -> StreamSpec:
    """A stream file. Raises ReplayError, in one line that names file and key."""
    try:
        content = read_yaml_file(path)
    except OSError as error:
        raise ReplayError(f"{path}: {error.strerror or error}") from error
    except YamlError as error:
        raise ReplayError(f"{path}: {error}") from error
    if isinstance(content, dict) and "arrives" in content:
        raise ReplayError(f"{path}: arrives stands under pipeline, as in a suite: write pipeline.arrives")
    try:
        spec = StreamSpec.model_validate(content)
    except ValidationError as error:
        raise ReplayError(f"{path}: {_explain(error)}") from None
    if spec.failure_stop > 0 and spec.failure_turns is None:
        raise ReplayError(f"{path}: failure_stop is {spec.failure_stop}, so failure_turns must say how long they are")
    for key in ("success_turns", "failure_turns"):
        lengths = getattr(spec, key)
        if lengths is not None and lengths.shortest > spec.max_turns:
            raise ReplayError(f"{path}: {key}.shortest = {lengths.shortest} is past max_turns = {spec.max_turns}")
    return spec


def _explain(error: ValidationError) -> str:
    first = error.errors()[0]
    key = ".".join(str(part) for part in first["loc"])
    if first["type"] != "extra_forbidden":
        return f"{key or 'the file'}: {first['msg']}"
    model: Any = StreamSpec
    for part in first["loc"][:-1]:
        annotation = model.model_fields[part].annotation
        model = next(kind for kind in (annotation, *get_args(annotation)) if hasattr(kind, "model_fields"))
    known = sorted(model.model_fields)
    near = difflib.get_close_matches(str(first["loc"][-1]), known, n=1)
    return f"unknown key {key!r}; " + (f"did you mean {near[0]!r}?" if near else f"valid: {', '.join(known)}")


class Synthetic:
    """A stream under way: rollouts made as the replay's clock asks for them. For one replay."""

    def __init__(self, spec: StreamSpec, seed: int = 0) -> None:
        self.spec, self.seed, self.name = spec, seed, spec.name
        self.train = TrainConfig(updates=spec.updates, **spec.queue.model_dump())
        self.pipeline = spec.pipeline
        self.explorers = spec.pipeline.steps_in_flight
        self.costs = CostModel(spec.pipeline)
        self.rows = Rows()
        kinds = {True: spec.success_turns, False: spec.failure_turns or spec.success_turns}
        self._lengths = {won: (lengths, lengths.cumulative(spec.max_turns)) for won, lengths in kinds.items()}

    def recorded(self) -> Sequence[tuple[float, Arrival]]:
        return ()

    def explore(self, step: int, version: int, now: float) -> tuple[Sequence[tuple[float, Arrival]], float]:
        """One explorer step, timed by the cost model of a run; its load is aimed at with the first step."""
        block, lengths = self.block(step, version)
        added = self.rows.add(block)
        ends = (added.start + np.cumsum(lengths)).tolist()
        pieces = [range(a, b) for a, b in zip([added.start, *ends], ends, strict=False)]
        played = [turns_of(self.rows, rows) for rows in pieces]
        rollouts = [Rollout(turns[0].rollout, "", [*turns]) for turns in played]
        if step == 0:
            self.costs.aim(rollouts, self.train)
        seconds = [self.costs.generation(rollout) + self.costs.scoring(rollout) for rollout in rollouts]
        parts = [(now + after, [played[i] for i in numbers]) for after, numbers in arrivals(self.pipeline, seconds)]
        return [(time, Arrival(turns, now, version)) for time, turns in parts], now + max(seconds)

    def block(self, step: int, version: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """Columns of an explorer step's turns, rollout after rollout, and (rollouts,) turns of each."""
        spec, runs = self.spec, self.spec.pipeline.runs_per_task
        n = spec.pipeline.tasks_per_step * runs
        draws = rng(self.seed, "stream", spec.name, step)
        luck, stops, when = draws.random((3, n))
        # every rollout draws for all its possible turns: an outcome changes no other rollout's draws
        dead = draws.random((n, spec.max_turns)) < spec.dead_share
        normal = draws.standard_normal((4, n, spec.max_turns))
        own = draws.standard_normal(n)
        success = luck < spec.success.at(version)
        lengths = self._turns(success, stops < spec.failure_stop, when)
        prompt, response, truncated = self._tokens(own, normal[0], normal[1])
        here = np.arange(spec.max_turns) < lengths[:, None]
        turn = np.broadcast_to(np.arange(spec.max_turns), here.shape)
        valid = ~(dead | truncated)
        gap, student = self._scores(response, turn, success, normal[2], normal[3])
        reason = np.where(truncated, DropReason.PROMPT_TRUNCATED.value, DropReason.NO_VALID_TOKEN.value).astype(object)
        reason[valid] = ""
        number = np.broadcast_to(np.arange(n)[:, None], here.shape)
        columns = {
            "turn": turn, "prompt_tokens": prompt, "response_tokens": response,
            "valid_tokens": np.where(valid, response, 0), "disagreement": np.where(valid, gap, np.nan),
            "student_nll": np.where(valid, student, np.nan), "teacher_nll": np.where(valid, student + gap, np.nan),
            "reward": (success[:, None] & (turn == lengths[:, None] - 1)).astype(float),
            "success": np.broadcast_to(success[:, None], here.shape),
            "rollout_turns": np.broadcast_to(lengths[:, None], here.shape), "valid": valid, "reason": reason,
        }  # fmt: skip
        block = {name: values[here] for name, values in columns.items()}
        number = number[here]
        block["rollout"] = np.stack([np.full(len(number), step), number // runs, number % runs], axis=1)
        return block, lengths

    def _turns(self, success: np.ndarray, stops: np.ndarray, when: np.ndarray) -> np.ndarray:
        lengths = np.full(len(success), self.spec.max_turns)
        for won, which in ((True, success), (False, ~success & stops)):
            if which.any():
                spec, cumulative = self._lengths[won]
                lengths[which] = spec.shortest + np.searchsorted(cumulative, when[which])
        return np.minimum(lengths, self.spec.max_turns)

    def _tokens(self, own: np.ndarray, seen: np.ndarray, said: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(n, max_turns) prompt and response tokens, and where the prompt is truncated: from there on, for good."""
        t = self.spec.tokens
        observed = t.observation * _lognormal(own[:, None], t.rollout_sigma) * _lognormal(seen, t.turn_sigma)
        response = np.clip(np.rint(t.response * _lognormal(said, t.response_sigma)), 1, t.max_response)
        added = np.cumsum(np.rint(observed) + response, axis=1)
        prompt = t.first_prompt + np.concatenate([np.zeros((len(own), 1)), added[:, :-1]], axis=1)
        truncated = prompt > t.max_prompt
        prompt = np.minimum(prompt, t.max_prompt).astype(np.int64)
        return prompt, np.where(truncated, 0, response).astype(np.int64), truncated

    def _scores(
        self, response: np.ndarray, turn: np.ndarray, success: np.ndarray, gaps: np.ndarray, levels: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """(n, max_turns) s(u) and the student's negative log-likelihood, nats."""
        s = self.spec.scores
        depth = 1.0 + s.early * np.exp(-turn / s.early_turns)
        level = np.where(success, 1.0, s.failure)[:, None]
        student = response * s.student_nll * _lognormal(levels, s.student_sigma)
        gap = response * s.per_token * depth * level * ((1.0 + s.skew) * _lognormal(gaps, s.sigma) - s.skew)
        return np.maximum(gap, -student), student


def _lognormal(normal: np.ndarray, sigma: float) -> np.ndarray:
    """Log-normal of mean 1."""
    return np.exp(sigma * normal - sigma**2 / 2)
