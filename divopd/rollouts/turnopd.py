"""TurnOPD's depth: as deep as turns still teach."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from pydantic import PositiveInt

from divopd.config import Probability
from divopd.rollouts._base import Moment, RolloutPolicy
from divopd.types import Actor, Rollout, RolloutId

Probe = tuple[tuple[float, ...], bool]
"""Student - teacher log-prob a token of each turn (NaN where it has none), and whether the rollout succeeded."""


class AdaptiveDepth(RolloutPolicy):
    """Rollouts end at the depth to which probes, which are played out, still find divergence to learn from or success.

    Source: TurnOPD (arXiv 2607.05804), of which only the abstract could be read: a depth budget from probe-based turn
    statistics, because tail turns give weak and noisy KL; its other half is the loss reduction `blended`. Everything
    exact is ours. Probes: the first `probes` tasks of each explorer step (tasks come in random order), and all of the
    first step. The statistics are those of the last `window` steps. Signal of depth t: the share of probes that reach
    it times max(0, m - e), m the mean over them of the turn's student - teacher log-prob a token, e its standard error
    (one probe alone gives no signal). Horizon: the least depth that holds `share` of the signal and in which `share` of
    the probes' successes had ended, at least `min_turns`; the environment's limit while there is no signal.
    """

    probes: PositiveInt = 2
    window: PositiveInt = 8
    share: Probability = 0.9
    min_turns: PositiveInt = 2

    def initial_state(self) -> tuple[tuple[Probe, ...], ...]:
        """Probes by explorer step, the newest last."""
        return ()

    def depth(self, moment: Moment, state: Any) -> int:
        probes = [probe for step in state for probe in step]
        reach = depth_of_share(depth_signal(probes), self.share)
        wins = np.bincount(np.array([len(gaps) - 1 for gaps, success in probes if success], dtype=np.int64))
        wanted = max(self.min_turns, reach, depth_of_share(wins, self.share)) if reach else moment.max_turns
        return min(wanted, moment.max_turns)

    def limit(self, rollout: RolloutId, moment: Moment, state: Any) -> int:
        return moment.max_turns if rollout[1] < self.probes else self.depth(moment, state)

    def observe(self, rollouts: Sequence[Rollout], moment: Moment, state: Any) -> Any:
        new = tuple((turn_gaps(r), r.success) for r in rollouts if moment.step == 0 or r.id[1] < self.probes)
        return (*state, new)[-self.window :]


def turn_gaps(rollout: Rollout) -> tuple[float, ...]:
    """Mean student - teacher log-prob (nats) over each turn's valid tokens; NaN for a turn that has none."""
    out = []
    for turn in rollout.turns:
        mask, student, teacher = turn.valid_mask(), turn.student_logprobs, turn.teacher_logprobs
        if turn.actor is Actor.STUDENT and mask.any() and student is not None and teacher is not None:
            out.append(float((student[mask] - teacher[mask]).mean(dtype=np.float64)))
        else:
            out.append(float("nan"))
    return tuple(out)


def depth_signal(probes: Iterable[Probe]) -> np.ndarray:
    """(depths,) share of probes that have a gap at this depth, times its mean less its standard error, if positive."""
    gaps = [np.array(gap) for gap, _ in probes]
    signal = np.zeros(max(map(len, gaps), default=0))
    for t in range(len(signal)):
        found = np.array([gap[t] for gap in gaps if len(gap) > t and np.isfinite(gap[t])])
        if len(found) > 1:
            error = found.std(ddof=1) / np.sqrt(len(found))
            signal[t] = len(found) / len(gaps) * max(0.0, found.mean() - error)
    return signal


def depth_of_share(values: np.ndarray, share: float) -> int:
    """The least depth whose `values` before it hold this share of their sum; 0 where the sum is 0."""
    total = values.sum()
    return int(np.argmax(np.cumsum(values) >= share * total * (1 - 1e-12))) + 1 if total > 0 else 0
