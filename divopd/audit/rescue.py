"""Would the teacher win from here? It plays on, to the end, from the state in which a queued turn was played.

A large disagreement says that the teacher would act otherwise, not that acting otherwise still helps. This measures the
second (ours).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from divopd.audit.rebuild import Moment
from divopd.policies.base import Sample
from divopd.rollout import play
from divopd.rollouts import Direction, TeacherTurns
from divopd.rollouts import Moment as Step
from divopd.seeds import rng
from divopd.timing import Stopwatch
from divopd.train import Progress
from divopd.types import Rollout, RolloutId, Turn


class _HandOver(TeacherTurns):
    """The teacher acts from a turn on; the state says from which, by rollout."""

    def teacher_acts(self, rollout: Rollout, moment: Step, state: dict[RolloutId, int]) -> bool:
        return len(rollout.turns) >= state[rollout.id]


@dataclass(frozen=True, slots=True)
class _Recorded:
    """A policy that gives recorded responses again, an episode's turns in order."""

    turns: Sequence[Sequence[Turn]]

    def session(self, episodes: int) -> _Again:
        return _Again([iter(turns) for turns in self.turns])


class _Again:
    def __init__(self, turns: list) -> None:
        self.turns = turns

    def act(self, rows: Sequence[int], *_: object) -> list[Sample]:
        return [_sample(next(self.turns[row])) for row in rows]


def _sample(turn: Turn) -> Sample:
    assert turn.student_logprobs is not None  # a turn without tokens is never asked for
    return Sample(turn.context[turn.start : turn.end], turn.student_logprobs, turn.response_truncated)


def rescued(moment: Moment, draws: int, progress: Progress) -> np.ndarray:
    """float64 (n,): for each turn of the pool, the share of `draws` in which the teacher wins from its state on.

    NaN where the turn has no prompt to act on (a dead row) or the rollout's earlier turns are not all the student's.
    """
    before = _earlier(moment)
    wanted = [i for i, turns in enumerate(before) if turns is not None]
    jobs = [(i, draw) for i in wanted for draw in range(draws)]
    wins = np.full(len(moment.turns), np.nan)
    wins[wanted] = 0.0
    for begin in range(0, len(jobs), len(moment.run.envs)):
        part = jobs[begin : begin + len(moment.run.envs)]
        for (i, _), rollout in zip(part, _play_on(moment, part, before), strict=True):
            wins[i] += rollout.success / draws
        progress(begin + len(part), len(jobs), "")
    return wins


def _earlier(moment: Moment) -> list[list[Turn] | None]:
    """The turns before each of the pool's turns, if they are all there."""
    rollouts: dict[RolloutId, dict[int, Turn]] = {}
    for turn in moment.seen:
        rollouts.setdefault(turn.rollout, {})[turn.index] = turn
    out: list[list[Turn] | None] = []
    for turn in moment.turns:
        have = rollouts[turn.rollout]
        whole = not turn.prompt_truncated and all(index in have for index in range(turn.index))
        out.append([have[index] for index in range(turn.index)] if whole else None)
    return out


def _play_on(moment: Moment, jobs: Sequence[tuple[int, int]], before: Sequence[list[Turn] | None]) -> list[Rollout]:
    """For each of these (turn, draw) the recorded turns again, then the teacher to the end."""
    run, config = moment.run, moment.config
    starts = [before[i] or [] for i, _ in jobs]
    names: list[RolloutId] = [(0, i, draw) for i, draw in jobs]
    state = {name: len(turns) for name, turns in zip(names, starts, strict=True)}
    seed = config.seed + moment.update
    tasks = [
        (name, run.pipeline.task_of[moment.turns[i].rollout], rng(seed, "unused", *name))
        for name, (i, _) in zip(names, jobs, strict=True)
    ]
    step = Step(0, moment.update, config.train.updates, config.env.max_turns, seed)
    envs, again = run.envs[: len(jobs)], _Recorded(starts)
    return play(
        again,  # type: ignore[arg-type] # it neither scores nor takes weights: play asks for neither
        run.renderer, envs, tasks, moment.update, run.settings, Stopwatch(), Direction(_HandOver(), step, state),
        run.teacher,
    )  # fmt: skip
