"""Explorer steps under Ray, without Ray: what is played when, and how what comes back enters the queue."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from divopd.pipeline.ray.steps import RayCourse
from divopd.selection import load_rule
from divopd.types import Rollout
from test_pipeline import cell, rollout_of

LENGTHS = {"a": 2, "b": 4, "c": 2}


def course(**pipeline: Any) -> RayCourse:
    config = cell(kind="ray", tasks_per_step=3, **pipeline)
    places = config.placement.model_copy(update={"backpressure": False})
    return RayCourse(config.model_copy(update={"placement": places}), load_rule("vanilla"), list(LENGTHS))


def quiet(*_: Any) -> None:
    pass


def begin(run: RayCourse) -> list[Rollout] | None:
    """The next step, played: None where it may not start."""
    work = run.next_tasks(quiet, 0)
    return work and [rollout_of(name, task, run.version, LENGTHS[task]) for name, task, _ in work[1]]


def entered(run: RayCourse) -> list[Any]:
    """Rollouts in the order in which they joined the queue."""
    return list(dict.fromkeys(turn.rollout for turn in run.pool.all_turns))


@pytest.mark.parametrize("order", ["ended", "task"])
def test_a_step_is_held_until_it_is_whole(order: str) -> None:
    """Also past a resume point; its explorers may have died, and what they had not done is what is played again."""
    run = course(order=order)
    played = begin(run)
    assert played is not None and begin(run) is None  # one step in flight
    run.now = 1.0
    for rollout in (played[2], played[0]):
        run.arrive(rollout)
    assert run.pool.arrived == 0 and run.rollouts == 0
    run = pickle.loads(pickle.dumps(run))
    again = begin(run)
    assert again is not None and [rollout.id for rollout in again] == [played[1].id]
    run.now = 2.0
    run.arrive(again[0])
    ids = [rollout.id for rollout in played]
    assert entered(run) == (ids if order == "task" else [ids[2], ids[0], ids[1]])
    assert {turn.arrival_time for turn in run.pool.all_turns} == {2.0} and run.rollouts == 3
    assert begin(run) is not None


def test_rollouts_may_enter_one_by_one() -> None:
    run = course(arrives="rollout")
    played = begin(run)
    assert played is not None
    run.arrive(played[1])
    assert entered(run) == [played[1].id] and begin(run) is None


def learn(run: RayCourse) -> None:
    assert run._choose() is not None
    run.totals["busy"] = 1.0


@pytest.mark.parametrize("sync", ["wait", "latest"])
def test_a_step_waits_for_the_update_under_way(sync: str) -> None:
    """And starts when that one is published, whatever the learner does next."""
    run = course(sync=sync)
    played = begin(run)
    assert played is not None
    run.now = 1.0
    for rollout in played:
        run.arrive(rollout)
    learn(run)
    if sync == "latest":
        assert begin(run) is not None and run.version == 0
        return
    assert begin(run) is None and begin(run) is None
    run.now = 2.0
    run._published({})
    learn(run)  # on the turns that are left
    assert begin(run) is not None and run.version == 1
    assert begin(run) is None


def test_an_idle_learner_keeps_nobody() -> None:
    run = course(sync="wait")
    assert begin(run) is not None


def test_steps_that_wait_together_start_together() -> None:
    """Two steps in flight wait for one update; the one that starts next does not hold up the second."""
    config = cell(kind="ray", tasks_per_step=3, arrives="rollout", sync="wait").model_dump()
    config["placement"] = {"explorers": {"count": 2}, "backpressure": False}
    config["pipeline"]["steps_in_flight"] = 2
    run = RayCourse(type(cell()).model_validate(config), load_rule("vanilla"), list(LENGTHS))
    first, second = begin(run), begin(run)
    assert first is not None and second is not None and begin(run) is None
    run.now = 1.0
    for rollout in first + second:
        run.arrive(rollout)
    learn(run)
    assert begin(run) is None and run.free == 2
    run.now = 2.0
    run._published({})
    learn(run)
    assert begin(run) is not None and begin(run) is not None and begin(run) is None


def test_what_is_held_counts_for_admission() -> None:
    """Its turns are played and not in the queue: c * B + (v + delta - u) * B = 4 * 4 + 4 turns are the bound here."""
    config = cell("divopd", kind="ray", tasks_per_step=3).model_dump()
    config["placement"] = {"explorers": {"count": 2}}
    config["pipeline"]["steps_in_flight"] = 2
    run = RayCourse(type(cell()).model_validate(config), load_rule("divopd"), list(LENGTHS))
    first, _ = begin(run), begin(run)
    assert first is not None and run._admits(0)
    rollouts = [rollout_of(rollout.id, rollout.task, 0, 10) for rollout in first]
    run.arrive(rollouts[0])
    assert run._admits(0)
    run.arrive(rollouts[1])
    assert not run._admits(0)
