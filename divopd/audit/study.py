"""One audit from a rebuilt moment: gradients, what the teacher makes of each turn, and every rule measured on them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager

from divopd.audit.gradients import EXACT_FLOATS, SKETCH_DIM, CountSketch, exact, row_gradients
from divopd.audit.measure import Audit, audit
from divopd.audit.rebuild import Moment
from divopd.audit.rescue import rescued
from divopd.seeds import seed as named_seed
from divopd.selection import Rule
from divopd.train import Progress

Bar = Callable[[str, str], AbstractContextManager[Progress]]
"""(stage, unit) -> what shows its progress"""


def study(
    moment: Moment, rules: Mapping[str, Rule], seeds: int, sketch: int | None, whole: bool, rescue: int, bar: Bar
) -> Audit:
    """Measure the rules on the moment's pool; `seeds` draws of those that draw.

    `sketch`: numbers that gradients are projected to, by default only where they would not fit. `whole`: beside the
    sampled loss's gradients those over the vocabulary. `rescue`: times that the teacher plays on from each turn.
    """
    run, config = moment.run, moment.config
    size = sum(p.numel() for p in moment.learner.parameters) * len(moment.turns)
    dim = sketch or (SKETCH_DIM if size > EXACT_FLOATS else None)
    projection = CountSketch(dim) if dim else None
    with bar("gradients", "turn") as progress:
        found = row_gradients(moment.learner, moment.turns, projection, progress)
    truth = won = None
    if whole:
        learner = exact(moment.learner, run.reference())
        with bar("gradients over the vocabulary", "turn") as progress:
            truth = row_gradients(learner, moment.turns, projection, progress)
    if rescue:
        with bar("teacher plays on", "episode") as progress:
            won = rescued(moment, rescue, progress)
    numbers = [named_seed(config.seed + i, "rule") for i in range(seeds)]
    return audit(moment.turns, moment.update, config.train.batch_rows, found, rules, numbers, truth, won)
