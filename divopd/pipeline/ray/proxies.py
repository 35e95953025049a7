"""Policies that stand for others: one that several threads share, and one that another process holds."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

from divopd.policies.base import EngineLostError, Policy, Sample, Session
from divopd.types import RolloutId


class TeacherLostError(RuntimeError):
    """The scorer that acted for the teacher died, or does not answer: the episodes are played again."""

    def __init__(self, scorer: int, life: int) -> None:
        super().__init__(scorer, life)
        self.scorer, self.life = scorer, life


class OneAtATime:
    """A policy that serves one thread at a time, shared by several."""

    concurrent = True

    def __init__(self, policy: Policy, lock: threading.Lock) -> None:
        self.policy, self.lock = policy, lock

    def session(self, episodes: int) -> Session:
        inner, lock = self.policy.session(episodes), self.lock

        class Locked:
            def act(self, *args: Any) -> list[Sample]:
                with lock:
                    return inner.act(*args)

        return Locked()


class RemoteTeacher:
    """The teacher's seat at the table, held by a scorer. Its draws are made there, and go on here.

    An answer that takes longer than `limit` seconds is a TeacherLostError, as the scorer's death is.
    """

    def __init__(self, scorer: int, life: int, actor: Any, key: RolloutId, limit: float | None) -> None:
        self.scorer, self.life, self.actor, self.key, self.limit = scorer, life, actor, key, limit

    def session(self, episodes: int) -> RemoteTeacher:
        self._ask("open", self.key, episodes)
        return self

    def act(
        self, rows: Sequence[int], new_tokens: Sequence[np.ndarray], temperature: float, max_tokens: int,
        draws: Sequence[np.random.Generator], idle: Sequence[int] = (),
    ) -> list[Sample]:  # fmt: skip
        samples, after = self._ask("act", self.key, rows, new_tokens, temperature, max_tokens, draws, idle)
        for draw, drawn in zip(draws, after, strict=True):
            draw.bit_generator.state = drawn.bit_generator.state
        return samples

    def close(self) -> None:
        """The episodes are over; nobody waits."""
        self.actor.close.remote(self.key)

    def _ask(self, method: str, *args: Any) -> Any:
        import ray

        try:
            return ray.get(getattr(self.actor, method).remote(*args), timeout=self.limit)
        except ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, EngineLostError):
                raise TeacherLostError(self.scorer, self.life) from error
            raise
        except ray.exceptions.RayError as error:
            raise TeacherLostError(self.scorer, self.life) from error
