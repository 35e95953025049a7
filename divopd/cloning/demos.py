"""Demonstrations: episodes by the expert or by a policy, every turn labelled with what the expert would have done.

The expert sees observations alone, so it can label any state, those that weak students reach included (DAgger, Ross et
al. 2011). A label is a distribution over allowed actions, not one action: a model fitted to it is not over-confident.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from ..envs.base import TextEnv
from ..policies.base import Policy
from ..prompts import Renderer
from ..seeds import rng

Encode = Callable[[str, tuple[str, ...]], tuple[int, ...]]
"""The response tokens that stand for a command among the allowed ones."""


class Labeller(Protocol):
    """An expert that follows an episode from outside and says what it would do now."""

    def reset(self, goal: str, observation: str) -> None: ...

    def observe(self, action: str, observation: str) -> None: ...

    def distribution(self, allowed: tuple[str, ...]) -> dict[str, float]: ...


@dataclass(slots=True)
class Demo:
    """One episode as tokens, with a label for each response token.

    `labels[j]` belongs to the prediction of token `positions[j]`: (token ids, probabilities) of what the expert would
    say there, given the response's tokens before it.
    """

    task: str
    tokens: np.ndarray
    positions: list[int] = field(default_factory=list)
    labels: list[tuple[np.ndarray, np.ndarray]] = field(default_factory=list)
    success: bool = False
    turns: int = 0


@dataclass(slots=True)
class _Play:
    env: TextEnv
    expert: Labeller
    actor: Labeller
    demo: Demo
    draws: np.random.Generator
    tokens: list[int]
    fresh: np.ndarray
    allowed: tuple[str, ...]
    over: bool = False


def _label(demo: Demo, start: int, response: Sequence[int], options: dict[tuple[int, ...], float]) -> None:
    """Soft targets of one response, token by token: the expert's distribution conditioned on the tokens before."""
    for depth in range(len(response)):
        mass: dict[int, float] = {}
        for sequence, weight in options.items():
            if len(sequence) > depth and sequence[:depth] == tuple(response[:depth]):
                mass[sequence[depth]] = mass.get(sequence[depth], 0.0) + weight
        total = sum(mass.values())
        if total <= 0:
            return  # the actor went where the expert has no opinion
        demo.positions.append(start + depth)
        demo.labels.append((np.array(list(mass)), np.array(list(mass.values())) / total))


def collect(
    envs: Sequence[TextEnv],
    make_expert: Callable[[], Labeller],
    renderer: Renderer,
    tasks: Sequence[str],
    encode: Encode,
    seed: tuple[object, ...],
    *,
    make_actor: Callable[[], Labeller] | None = None,
    policy: Policy | None = None,
    policy_turns: int = 10_000,
    mistakes: float = 0.0,
    temperature: float = 1.0,
    max_turns: int = 30,
    response_tokens: int = 8,
) -> list[Demo]:
    """Play each task once; `encode(command, allowed)` gives the response tokens that stand for a command.

    A policy, if given, acts for the first `policy_turns` turns; else, and after that, the actor's distribution (the
    expert's own, if there is no other) is sampled, with probability `mistakes` a uniform allowed action instead.
    """
    plays = []
    for env, task in zip(envs, tasks, strict=False):
        observation, expert = env.reset(task), make_expert()
        actor = make_actor() if make_actor else expert
        for follower in {id(expert): expert, id(actor): actor}.values():
            follower.reset(observation.goal, observation.text)
        fresh, draws = renderer.first(observation), rng(*seed, task)
        plays.append(_Play(env, expert, actor, Demo(task, fresh), draws, fresh.tolist(), fresh, observation.allowed))
    session = policy.session(len(plays)) if policy else None
    for turn in range(max_turns):
        live = [i for i, play in enumerate(plays) if not play.over]
        if not live:
            break
        sampled: dict[int, Any] = {}
        if session and turn < policy_turns:
            fresh_tokens = [plays[i].fresh for i in live]
            draws_of = [plays[i].draws for i in live]
            sampled = dict(
                zip(live, session.act(live, fresh_tokens, temperature, response_tokens, draws_of), strict=True)
            )
        for i in live:
            _advance(plays[i], renderer, encode, sampled.get(i), mistakes)
    for play in plays:
        play.demo.tokens = np.array(play.tokens, dtype=np.int64)
    return [play.demo for play in plays]


def _advance(play: _Play, renderer: Renderer, encode: Encode, sample: Any, slip: float) -> None:
    """One turn: label it, act, show the answer."""
    opinion = play.expert.distribution(play.allowed)
    if sample is not None:
        response, truncated = sample.tokens.tolist(), sample.truncated
        action = renderer.action(sample.tokens, play.allowed)
    else:
        wish = opinion if play.actor is play.expert else play.actor.distribution(play.allowed)
        names = list(wish)
        weights = np.array([wish[name] for name in names])
        wild = play.draws.random() < slip
        action = names[play.draws.integers(len(names))] if wild else names[_draw(play.draws, weights)]
        response, truncated = list(encode(action, play.allowed)), False
    options: dict[tuple[int, ...], float] = {}
    for command, weight in opinion.items():
        key = encode(command, play.allowed)
        options[key] = options.get(key, 0.0) + weight
    _label(play.demo, len(play.tokens), response, options)
    step = play.env.step(action)
    play.expert.observe(action, step.text)
    if play.actor is not play.expert:
        play.actor.observe(action, step.text)
    play.allowed = step.allowed
    play.tokens.extend(response)
    play.demo.turns += 1
    play.over = step.done or step.success
    play.demo.success = step.success
    if not play.over:
        play.fresh = renderer.follow(action, step, truncated)
        play.tokens.extend(play.fresh.tolist())


def _draw(draws: np.random.Generator, weights: np.ndarray) -> int:
    edges = np.cumsum(weights / weights.sum())
    return min(int(np.searchsorted(edges, draws.random(), side="right")), len(weights) - 1)
