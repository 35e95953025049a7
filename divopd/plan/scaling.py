"""What limits a cell at some number of GPUs: its stage rates on the virtual clock, over its synthetic stream."""

from __future__ import annotations

from dataclasses import dataclass

from divopd.config import PipelineConfig, RunConfig
from divopd.plan.costs import Flow, Layout, flow
from divopd.plan.rates import PAPER_LAYOUT, StageRates
from divopd.plan.rollouts import RolloutStats, stream_of
from divopd.replay.engine import Replay, ReplayError
from divopd.selection import load_rule
from divopd.streams import Synthetic

UPDATES = 40  # that are played: enough for the queue to settle


@dataclass(frozen=True, slots=True)
class Scaled:
    """A cell at `gpus`: busy shares are of the stage's own GPUs; `stale` of arrived turns; times in seconds, wall.

    `load` is arrival / drain: turns that arrive a second over rows that a busy learner takes a second.
    """

    gpus: int
    layout: Layout
    update_seconds: float
    episode_seconds: float
    teacher_busy: float
    learner_busy: float
    load: float
    mean_age: float
    stale: float
    limit: str
    hours: float  # GPU-hours of the whole training


def layout_of(gpus: int) -> Layout:
    """The paper's 4 + 2 + 2 at any size; below one GPU a stage, the stages share what there is."""
    return Layout(*(gpus * part / sum(PAPER_LAYOUT) for part in PAPER_LAYOUT))


def steps_in_flight(cell: RunConfig, layout: Layout) -> int:
    """Explorer steps at once: the cell's on up to 4 rollout GPUs, the paper's, and more in proportion."""
    return cell.pipeline.steps_in_flight * max(1, round(layout.rollout / PAPER_LAYOUT[0]))


def episodes_a_gpu(cell: RunConfig, layout: Layout) -> float:
    """Episodes at once on one rollout GPU: each step is spread over its share of them."""
    episodes = cell.pipeline.tasks_per_step * cell.pipeline.runs_per_task
    return steps_in_flight(cell, layout) * episodes / max(layout.rollout, 1.0)


def scale(cell: RunConfig, stats: RolloutStats, rates: StageRates, gpus: int) -> Scaled:
    """Play the cell's rule over its stream at these rates, which hold for `episodes_a_gpu` of the layout.

    The paper's rates hold for its own layout: with more episodes a GPU their turns take longer in proportion.
    """
    layout = layout_of(gpus)
    pace = flow(cell, stats, rates, layout)
    slow = 1.0 / min(1.0, layout.rollout)  # of a stage that has a part of a GPU
    crowd = max(1.0, episodes_a_gpu(cell, layout) / rates.episodes)
    behind = max(1.0, pace.teach / pace.explore)  # a teacher that does not keep up holds back what arrives
    pipeline = PipelineConfig(
        tasks_per_step=cell.pipeline.tasks_per_step,
        runs_per_task=cell.pipeline.runs_per_task,
        steps_in_flight=steps_in_flight(cell, layout),
        arrives=cell.pipeline.arrives,
        order=cell.pipeline.order,
        sync=cell.pipeline.sync,
        turn_seconds=rates.turn_seconds * slow * crowd,
        response_token_seconds=rates.token_seconds * slow,
        teacher_token_seconds=behind / (rates.score * min(1.0, layout.teacher)),
        update_seconds=pace.learn,  # of B rows on average; the rows of one batch differ
        update_token_seconds=0.0,
    )
    spec = stream_of(cell).model_copy(update={"pipeline": pipeline})
    episode = stats.turns * (pipeline.turn_seconds + stats.response * pipeline.response_token_seconds)
    rule = load_rule(cell.method.rule, cell.method.params)
    try:
        done = Replay(Synthetic(spec, cell.seed), rule, UPDATES).run().summary()
    except ReplayError:
        nan = float("nan")
        return Scaled(gpus, layout, nan, episode, nan, nan, nan, nan, 1.0, "staleness: no batch ever fills", nan)
    seconds = done["virtual_seconds"] / done["updates"]
    busy, scored = done["learner_seconds"] / seconds, done["arrived_turns"] / stats.turns * stats.end
    return Scaled(
        gpus=gpus,
        layout=layout,
        update_seconds=seconds,
        episode_seconds=episode,
        teacher_busy=scored / done["virtual_seconds"] / (layout.teacher * rates.score),
        learner_busy=busy,
        load=done["load"],
        mean_age=done["mean_age"],
        stale=done["stale_rows"] / done["arrived_turns"],
        limit=_limit(pace, busy, done["load"]),
        hours=cell.train.updates * seconds * gpus / 3600,
    )


def _limit(pace: Flow, busy: float, load: float) -> str:
    """A learner that waits although enough arrives waits for turns that are not stale."""
    if busy > 0.9:
        return "learner"
    if pace.teach > 1.01 * pace.explore:
        return "teacher"
    return "staleness" if load >= 1.0 else "explorers"
