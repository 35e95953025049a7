"""The multi-turn loop: a policy plays tasks, a teacher scores the turns. Knows no queue and no clock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from .envs.base import Observation, Step, TextEnv
from .policies.base import Policy, Sample
from .prompts import Renderer
from .timing import Stopwatch
from .types import Rollout, RolloutId, StopReason, Turn


@dataclass(frozen=True, slots=True)
class PlaySettings:
    """How episodes are played. Limits are in turns and tokens."""

    max_turns: int
    max_prompt_tokens: int
    max_response_tokens: int
    temperature: float


@dataclass(slots=True)
class _Episode:
    """One task being played: its tokens so far and what is to be appended before the next response."""

    env: TextEnv
    renderer: Renderer
    settings: PlaySettings
    rollout: Rollout
    version: int
    draws: np.random.Generator
    tokens: list[int] = field(default_factory=list)
    fresh: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    allowed: tuple[str, ...] = ()
    over: bool = False

    def start(self) -> None:
        observation: Observation = self.env.reset(self.rollout.task)
        self.allowed = observation.allowed
        self._append(self.renderer.first(observation))

    def _append(self, new: np.ndarray) -> None:
        self.fresh = new
        self.tokens.extend(new.tolist())

    @property
    def prompt_truncated(self) -> bool:
        return len(self.tokens) > self.settings.max_prompt_tokens

    def respond(self, sample: Sample) -> None:
        """Record a sampled response, act on it, and append what the environment answers."""
        start = len(self.tokens)
        self.tokens.extend(sample.tokens.tolist())
        turn = self._turn(start, len(self.tokens))
        turn.student_logprobs = sample.logprobs
        turn.action_mask = np.ones(len(sample.tokens), dtype=bool)
        turn.response_truncated = sample.truncated
        turn.action = self.renderer.action(sample.tokens, self.allowed)
        self._step(turn, sample.truncated)

    def skip(self) -> None:
        """The prompt is past its limit: a turn without tokens and an empty action, a dead row."""
        limit = self.settings.max_prompt_tokens
        turn = self._turn(limit, limit)
        turn.prompt_truncated = True
        self._step(turn, False)

    def _turn(self, start: int, end: int) -> Turn:
        turn = Turn(
            rollout=self.rollout.id,
            index=len(self.rollout.turns),
            version=self.version,
            context=self.fresh,  # replaced by the whole sequence when the episode ends
            start=start,
            end=end,
            student_logprobs=None,
            teacher_logprobs=None,
            action_mask=None,
        )
        self.rollout.turns.append(turn)
        return turn

    def _step(self, turn: Turn, truncated: bool) -> None:
        step: Step = self.env.step(turn.action)
        turn.reward, turn.valid_action, turn.progress = step.reward, step.valid, step.progress
        self.rollout.reward += step.reward
        self.rollout.score = step.score
        self.allowed = step.allowed
        if step.success or step.done:
            self.rollout.success = step.success
            self._finish(StopReason.SUCCESS if step.success else StopReason.DONE)
        elif len(self.rollout.turns) >= self.settings.max_turns:
            self._finish(StopReason.PROMPT_LIMIT if turn.prompt_truncated else StopReason.TURN_LIMIT)
        elif not turn.prompt_truncated:
            self._append(self.renderer.follow(turn.action, step, truncated))

    def _finish(self, stop: StopReason) -> None:
        self.over = True
        self.rollout.stop = stop
        context = np.array(self.tokens, dtype=np.int64)
        for turn in self.rollout.turns:
            turn.context = context
            turn.rollout_turns = len(self.rollout.turns)
            turn.rollout_success = self.rollout.success


def play(
    policy: Policy,
    renderer: Renderer,
    envs: Sequence[TextEnv],
    tasks: Sequence[tuple[RolloutId, str, np.random.Generator]],
    version: int,
    settings: PlaySettings,
    watch: Stopwatch,
) -> list[Rollout]:
    """Play every (id, task, generator) to its end, all at once, one environment each; rollouts in the order given.

    Past `max_prompt_tokens` an episode goes on with empty actions until its turn limit, as a truncated prompt has no
    response to act on (ours; the paper says only that such turns exist).
    """
    episodes = [
        _Episode(env, renderer, settings, Rollout(name, task), version, draws)
        for env, (name, task, draws) in zip(envs, tasks, strict=True)
    ]
    with watch("environment"):
        for episode in episodes:
            episode.start()
    with watch("rollout"):
        session = policy.session(len(episodes))
        while live := [i for i, episode in enumerate(episodes) if not episode.over]:
            able = [i for i in live if not episodes[i].prompt_truncated]
            samples: dict[int, Sample] = {}
            if able:
                drawn = session.act(
                    able,
                    [episodes[i].fresh for i in able],
                    settings.temperature,
                    settings.max_response_tokens,
                    [episodes[i].draws for i in able],
                )
                samples = dict(zip(able, drawn, strict=True))
            with watch("environment"):
                for i in live:
                    if i in samples:
                        episodes[i].respond(samples[i])
                    else:
                        episodes[i].skip()
    return [episode.rollout for episode in episodes]


def score(teacher: Policy, rollouts: Sequence[Rollout], vocabulary: int, watch: Stopwatch) -> int:
    """Give every turn its teacher log-probs, one pass over each rollout; tokens scored.

    Token ids >= `vocabulary` are teacher-invalid: they are masked and scored as if they were token 0, so that a larger
    student vocabulary cannot index past the teacher's. It is what the teacher's tokenizer defines (ours) or, for raw
    scoring (`prompt.score_unknown_ids`), what its embedding holds.
    """
    contexts, spans, owners = [], [], []
    for rollout in rollouts:
        turns = [turn for turn in rollout.turns if turn.response_tokens]
        if turns:
            context = turns[0].context[: turns[-1].end]
            contexts.append(np.where(context < vocabulary, context, 0))
            spans.append([(turn.start, turn.end) for turn in turns])
            owners.append(turns)
    with watch("teacher"):
        scored = teacher.score(contexts, spans)
    for turns, arrays in zip(owners, scored, strict=True):
        for turn, logprobs in zip(turns, arrays, strict=True):
            turn.teacher_logprobs = logprobs
            turn.teacher_mask = turn.context[turn.start : turn.end] < vocabulary
    return sum(len(context) for context in contexts)
