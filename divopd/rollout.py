"""The multi-turn loop: a policy plays tasks, a teacher scores the turns, or acts on some. Knows no queue, no clock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from .envs.base import Observation, Step, TextEnv
from .policies.base import Policy, Sample
from .prompts import Past, Renderer
from .rollouts import Direction, PrefixTurns, TeacherTurns
from .seeds import rng
from .timing import Stopwatch
from .types import Actor, Rollout, RolloutId, StopReason, Turn, by_context


@dataclass(frozen=True, slots=True)
class PlaySettings:
    """How episodes are played. Limits are in turns and tokens."""

    max_turns: int
    max_prompt_tokens: int
    max_response_tokens: int
    temperature: float


_UNKNOWN = np.zeros(0, dtype=np.int64)


@dataclass(slots=True)
class _Episode:
    """One task being played: its tokens so far, the last of them a prompt for whoever acts next.

    Where prompts rewrite history, the tokens are those of the turn about to be played alone.
    """

    env: TextEnv
    renderer: Renderer
    settings: PlaySettings
    rollout: Rollout
    version: int
    limit: int  # turns
    tokens: list[int] = field(default_factory=list)
    allowed: tuple[str, ...] = ()
    over: bool = False
    past: Past | None = None  # where prompts rewrite history

    def start(self) -> None:
        observation: Observation = self.env.reset(self.rollout.task)
        self.allowed = observation.allowed
        if self.renderer.rewrites:
            self.past = Past(observation.goal, observation.text)
        self.tokens.extend(self.renderer.first(observation).tolist())

    @property
    def prompt_truncated(self) -> bool:
        return len(self.tokens) > self.settings.max_prompt_tokens

    def respond(self, sample: Sample, actor: Actor) -> None:
        """Record a sampled response, act on it, and append what the environment answers.

        A teacher's turn has the teacher's log-probs and no token that may train.
        """
        turn = self._say(sample.tokens, actor)
        if actor is Actor.STUDENT:
            if sample.version is not None:  # new weights may have come in mid-episode
                turn.version = sample.version
            turn.student_logprobs = sample.logprobs
            turn.action_mask = np.ones(len(sample.tokens), dtype=bool)
        else:
            turn.teacher_logprobs = sample.logprobs
        turn.response_truncated = sample.truncated
        turn.action = self.renderer.action(sample.tokens, self.allowed)
        self._step(turn, int(sample.tokens[-1]) != self.renderer.eos)

    def skip(self) -> None:
        """The prompt is past its limit: a turn without tokens and an empty action, a dead row."""
        limit = self.settings.max_prompt_tokens
        turn = self._turn(limit, limit)
        turn.prompt_truncated = True
        self._step(turn, False)

    def demonstrate(self, actions: Sequence[str]) -> None:
        """Play an expert's actions, each in the words that the student has for it.

        It ends early, and `failed_replay` says why, where an action has no such words or is not understood: the student
        goes on from there; and where an action ends the episode, which leaves the student no turn.
        """
        for action in actions:
            said = self.renderer.response(action, self.allowed)
            if self.prompt_truncated:
                limit = self.settings.max_prompt_tokens
                turn = self._turn(limit, limit)
                turn.actor, turn.prompt_truncated = Actor.EXPERT, True
            elif (meant := self.renderer.action(said, self.allowed)) != action:
                self.rollout.failed_replay = f"{action!r} reads {meant!r} in the prompt's style"
                return
            else:
                turn = self._say(said, Actor.EXPERT)
            turn.action = action
            self._step(turn, False)
            if self.over or not turn.valid_action:
                what = "ended the episode" if self.over else "was not understood"
                self.rollout.failed_replay = f"{action!r} {what}"
                return

    def _say(self, tokens: np.ndarray, actor: Actor) -> Turn:
        """A turn with this response."""
        start = len(self.tokens)
        self.tokens.extend(tokens.tolist())
        turn = self._turn(start, len(self.tokens))
        turn.actor = actor
        return turn

    def _turn(self, start: int, end: int) -> Turn:
        turn = Turn(
            rollout=self.rollout.id,
            index=len(self.rollout.turns),
            version=self.version,
            context=_UNKNOWN,  # replaced by the whole sequence when the episode ends
            start=start,
            end=end,
            student_logprobs=None,
            teacher_logprobs=None,
            action_mask=None,
        )
        self.rollout.turns.append(turn)
        return turn

    def _step(self, turn: Turn, unclosed: bool) -> None:
        step: Step = self.env.step(turn.action)
        turn.reward, turn.valid_action, turn.progress = step.reward, step.valid, step.progress
        self.rollout.reward += step.reward
        self.rollout.score = step.score
        self.allowed = step.allowed
        if self.past is not None:  # the next prompt shares no token with this one
            turn.context = np.array(self.tokens, dtype=np.int64)
        if step.success or step.done:
            self.rollout.success = step.success
            self._finish(StopReason.SUCCESS if step.success else StopReason.DONE)
        elif len(self.rollout.turns) >= self.limit:
            self._finish(StopReason.PROMPT_LIMIT if turn.prompt_truncated else StopReason.TURN_LIMIT)
        elif self.past is not None:
            self.past.add(turn.action, step.text)
            self.tokens = self.renderer.again(self.past, step.allowed).tolist()
        elif not turn.prompt_truncated:
            self.tokens.extend(self.renderer.follow(turn.action, step, unclosed).tolist())

    def _finish(self, stop: StopReason) -> None:
        self.over = True
        self.rollout.stop = stop
        context = np.array(self.tokens, dtype=np.int64)
        for turn in self.rollout.turns:
            if self.past is None:
                turn.context = context
            turn.rollout_turns = len(self.rollout.turns)
            turn.rollout_success = self.rollout.success


class _Seat:
    """One policy at the table: a session that is told what others said before it acts."""

    def __init__(self, policy: Policy, temperature: float, draws: Sequence[np.random.Generator]) -> None:
        self.policy, self.session = policy, policy.session(len(draws))
        self.temperature, self.draws = temperature, draws
        self.heard = [0] * len(draws)  # tokens of each episode that the session knows, its own last response included

    def act(self, rows: Sequence[int], episodes: Sequence[_Episode], idle: Sequence[int]) -> dict[int, Sample]:
        """A response for each of `rows`, all sampled at once. Episodes in neither are over."""
        if not rows:
            return {}
        limit, draws = episodes[0].settings.max_response_tokens, [self.draws[i] for i in rows]
        if episodes[0].renderer.rewrites:  # prompts that share nothing with those before them: nothing to keep
            prompts = [np.array(episodes[i].tokens, dtype=np.int64) for i in rows]
            session = self.policy.session(len(rows))
            samples = session.act(range(len(rows)), prompts, self.temperature, limit, draws)
            return dict(zip(rows, samples, strict=True))
        unheard = [np.array(episodes[i].tokens[self.heard[i] :], dtype=np.int64) for i in rows]
        samples = self.session.act(rows, unheard, self.temperature, limit, draws, idle)
        for i, sample in zip(rows, samples, strict=True):
            self.heard[i] = len(episodes[i].tokens) + len(sample.tokens)
        return dict(zip(rows, samples, strict=True))


def play(
    policy: Policy,
    renderer: Renderer,
    envs: Sequence[TextEnv],
    tasks: Sequence[tuple[RolloutId, str, np.random.Generator]],
    version: int,
    settings: PlaySettings,
    watch: Stopwatch,
    direction: Direction | None = None,
    teacher: Policy | None = None,
) -> list[Rollout]:
    """Play every (id, task, generator) to its end, all at once, one environment each; rollouts in the order given.

    Past `max_prompt_tokens` an episode goes on with empty actions until its turn limit, as a truncated prompt has no
    response to act on (ours; the paper says only that such turns exist). `direction` may cut rollouts short and hand
    turns to the `teacher`, whose turns stay in the context of those after them, as do the expert actions that a rollout
    may begin with; without it the student plays alone.
    """
    episodes = [
        _Episode(env, renderer, settings, Rollout(name, task), version, direction.limit(name) if direction else
                 settings.max_turns)
        for env, (name, task, _) in zip(envs, tasks, strict=True)
    ]  # fmt: skip
    with watch("environment"):
        for episode in episodes:
            episode.start()
            if direction and isinstance(direction.policy, PrefixTurns):
                episode.demonstrate(direction.prefixes[episode.rollout.id])
    student = _Seat(policy, settings.temperature, [draws for _, _, draws in tasks])
    helper: _Seat | None = None
    with watch("rollout"):
        while live := [i for i, episode in enumerate(episodes) if not episode.over]:
            able = [i for i in live if not episodes[i].prompt_truncated]
            taught = [i for i in able if direction and direction.teacher_acts(episodes[i].rollout)]
            alone = [i for i in able if i not in taught]
            samples = {i: (sample, Actor.STUDENT) for i, sample in student.act(alone, episodes, taught).items()}
            if taught:
                with watch("teacher_generation"):
                    helper = helper or _teacher_seat(teacher, direction, tasks)
                    samples |= {i: (s, Actor.TEACHER) for i, s in helper.act(taught, episodes, alone).items()}
            with watch("environment"):
                for i in live:
                    if i in samples:
                        episodes[i].respond(*samples[i])
                    else:
                        episodes[i].skip()
    return [episode.rollout for episode in episodes]


def _teacher_seat(
    teacher: Policy | None,
    direction: Direction | None,
    tasks: Sequence[tuple[RolloutId, str, np.random.Generator]],
) -> _Seat:
    """The teacher's own draws, so that a takeover leaves the student's alone."""
    assert teacher is not None and direction is not None and isinstance(direction.policy, TeacherTurns)
    draws = [rng(direction.moment.seed, "teacher", *name) for name, _, _ in tasks]
    return _Seat(teacher, direction.policy.teacher_temperature, draws)


def score(teacher: Policy, rollouts: Sequence[Rollout], vocabulary: int, watch: Stopwatch) -> int:
    """Give every student turn its teacher log-probs, one pass over each rollout's context or contexts; tokens scored.

    Token ids >= `vocabulary` are teacher-invalid: they are masked and scored as if they were token 0, so that a larger
    student vocabulary cannot index past the teacher's. It is what the teacher's tokenizer defines (ours) or, for raw
    scoring (`prompt.score_unknown_ids`), what its embedding holds.
    """
    contexts, spans, owners = [], [], []
    for rollout in rollouts:
        mine = [turn for turn in rollout.turns if turn.response_tokens and turn.actor is Actor.STUDENT]
        for turns in by_context(mine):
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
