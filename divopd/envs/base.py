"""The one protocol every text environment follows, and the errors it may raise."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol, runtime_checkable


class EnvError(RuntimeError):
    """An environment cannot be built or a task cannot be loaded; the message names what is wrong and the mend."""


@dataclass(frozen=True, slots=True)
class Observation:
    """What an episode shows before its first turn.

    `text` is the environment's own first observation without the goal; `goal` is the task in words; `allowed` are the
    commands the environment accepts now (empty where listing them is not offered).
    """

    text: str
    goal: str
    allowed: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Step:
    """What one action did.

    `success` is read from one named field per environment, never from `done`. `valid`: the environment understood the
    action. `progress`: the turn was neither invalid nor a repeat of the previous action with unchanged allowed actions
    (paper section on teacher recovery). Step limits are counted by the caller, so `done` never means "too long".
    `score` is the environment's own measure of how far the episode has come (ScienceWorld: score / 100, -1 after a
    wrong focus; WebShop: the final reward), NaN where it has none.
    """

    text: str
    reward: float
    done: bool
    success: bool
    valid: bool
    progress: bool
    allowed: tuple[str, ...]
    score: float = math.nan


@runtime_checkable
class TextEnv(Protocol):
    """One episode at a time; reused for many episodes, closed once.

    `reset` raises `EnvError` for an unknown task. The same task and actions give the same text in every process.
    """

    name: str

    def reset(self, task: str) -> Observation: ...

    def step(self, action: str) -> Step: ...

    def close(self) -> None: ...
