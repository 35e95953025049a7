"""Guided-OPD: fading teacher turns."""

from __future__ import annotations

import math
from typing import Any

from divopd.config import Probability
from divopd.rollouts._base import Moment, TeacherTurns
from divopd.seeds import rng
from divopd.types import Rollout


class Guided(TeacherTurns):
    """Each turn is the teacher's with a probability that falls to zero on a cosine over the run's first updates.

    p(q) = `start` * (1 + cos(pi * x)) / 2 with x = min(1, q / (`until` * updates)), q the version that the explorer
    plays with. Source: Guided-OPD (arXiv 2606.15912), of which only the abstract could be read: teacher and student
    turns mixed within a rollout, the teacher's probability on a curriculum that decays to zero. Ours: the cosine's
    start 0.5 and its end after half of the updates; independent draws, one a turn; temperature 0.4; and teacher turns
    get no loss, as under recovery (a public reproduction trains them with cross-entropy).
    """

    start: Probability = 0.5
    until: Probability = 0.5  # share of the run's updates after which no turn is the teacher's

    def probability(self, moment: Moment) -> float:
        """Of a teacher turn at this explorer step."""
        end = self.until * moment.updates
        return self.start * (1 + math.cos(math.pi * moment.version / end)) / 2 if moment.version < end else 0.0

    def teacher_acts(self, rollout: Rollout, moment: Moment, state: Any) -> bool:
        draw = rng(moment.seed, "guided", *rollout.id, len(rollout.turns)).random()
        return bool(draw < self.probability(moment))
