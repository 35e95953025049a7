"""The virtual clock against events worked out by hand; workers are arithmetic, no model is needed."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from divopd.config import RunConfig
from divopd.pipeline.clock import CostModel
from divopd.pipeline.virtual import StarvedError, VirtualPipeline, Workers
from divopd.selection import RuleError, load_rule
from divopd.timing import Stopwatch
from divopd.types import Rollout, Turn


def cell(rule="vanilla", **pipeline):
    return RunConfig.model_validate(
        {
            "suite": "s",
            "setting": "s",
            "method": {"name": rule, "rule": rule},
            "student": {"path": "x"},
            "teacher": {"path": "x"},
            "train": {"updates": 3, "batch_rows": 4, "max_staleness": 1},
            "pipeline": {
                "tasks_per_step": 2,
                "turn_seconds": 1.0,
                "response_token_seconds": 0.5,
                "teacher_token_seconds": 0.25,
                "update_seconds": 3.0,
                "update_token_seconds": 0.0,
            }
            | pipeline,
            "evaluation": {"every_updates": 2},
        }
    )


def rollout_of(name, task, version, turns):
    """`turns` turns of two response tokens; the context is 2 tokens a turn."""
    context = np.zeros(2 * turns, dtype=np.int64)
    rollout = Rollout(name, task)
    for i in range(turns):
        scores = np.full(2, -0.5, dtype=np.float32)
        rollout.turns.append(
            Turn(name, i, version, context, 2 * i, 2 * i + 2, scores, scores - 1, np.ones(2, dtype=bool))
        )
    return rollout


class Recorder:
    """Workers that note what they were asked to do. Task "a" takes two turns, "b" four, unless it is told others."""

    def __init__(self, turns=None):
        self.turns = turns or {"a": 2, "b": 4}
        self.explored, self.learned, self.saved, self.published = [], [], [], 0

    def workers(self):
        def explore(tasks, version, direction):
            self.explored.append((version, [task for _, task, _ in tasks]))
            return [rollout_of(n, t, version, self.turns[t]) for n, t, _ in tasks], 10

        def learn(turns, version):
            self.learned.append((version, [(t.rollout, t.index) for t in turns]))
            return {"loss": float(version)}

        def publish():
            self.published += 1

        return Workers(explore, learn, publish, lambda *facts: self.saved.append(facts))


def run(config, tasks=("a", "b")):
    pipeline, recorder, rows = VirtualPipeline(config, load_rule(config.method.rule), tasks), Recorder(), []
    workers = recorder.workers()
    while not pipeline.finished:
        pipeline.run(workers, rows.append, Stopwatch())
    return pipeline, recorder, rows


def test_events_by_hand():
    """a: 2 turns of 1 + 2 * 0.5 s, then 4 tokens scored at 0.25: arrives at 5. b: 8 + 2 = 10. Steps start at 0, 10, 20.

    The first batch of four needs b's turns: update 0 runs 10-13 on a's two and b's first two, and the next takes b's
    last two, which wait for a's turns at 15: update 1 runs 15-18 on version-0 turns, allowed with staleness 1, and on
    a's second rollout, played from 10 with version 0. Update 2 waits for b at 20, whose turns are of version 0: stale.
    The step that starts at 20 plays with version 2, a arrives at 25, b at 30.
    """
    pipeline, recorder, rows = run(cell(arrives="rollout"))
    assert [(r["time_start"], r["time_end"]) for r in rows] == [(10.0, 13.0), (15.0, 18.0), (30.0, 33.0)]
    assert [r["read_wait"] for r in rows] == [10.0, 2.0, 12.0]
    assert [version for version, _ in recorder.explored] == [0, 0, 2, 2]
    assert [r["stale_rows"] for r in rows] == [0, 0, 4]
    assert [r["mean_age"] for r in rows] == [0.0, 1.0, 0.0]
    assert recorder.saved == [(0, 0, 0.0), (2, 2, 18.0), (3, 4, 33.0)]
    assert rows[-1]["teacher_tokens"] == 40 and rows[-1]["explorer_steps"] == 4
    # two rollouts a step, 4 + 8 s of generation and 1 + 2 s of scoring; the fourth step is under way
    assert rows[-1]["explorer_seconds"] == 4 * 12.0 and rows[-1]["teacher_seconds"] == 4 * 3.0
    assert rows[0]["arrival_rate"] == 6 / 13 and rows[0]["drain_rate"] == 4 / 3


def test_a_step_arrives_at_once_by_hand():
    """The steps of above, whole at 10, 20, 30: a's two turns and b's four are all there when the waiting learner reads.

    Update 0 runs 10-13 on a's two and b's first two, as a ended first. b's last two wait for the next step's turns:
    update 1 runs 20-23 on them and on a's next two, all of version 0. The four that b brought then are stale for
    update 2, which waits for the step that started at 20, with version 1.
    """
    pipeline, recorder, rows = run(cell())
    assert [(r["time_start"], r["time_end"]) for r in rows] == [(10.0, 13.0), (20.0, 23.0), (30.0, 33.0)]
    assert [version for version, _ in recorder.explored] == [0, 0, 1, 2]
    assert [r["mean_age"] for r in rows] == [0.0, 1.0, 1.0] and [r["stale_rows"] for r in rows] == [0, 0, 4]
    lengths = {name: sum(turn.rollout == name for turn in pipeline.pool.all_turns) for name in pipeline.task_of}
    assert [(lengths[name], index) for name, index in recorder.learned[0][1]] == [(2, 0), (2, 1), (4, 0), (4, 1)]
    assert {turn.arrival_time for turn in pipeline.pool.all_turns} == {10.0, 20.0, 30.0}


@pytest.mark.parametrize("order", ["ended", "task"])
def test_inside_a_step_rollouts_arrive_as_they_end_or_by_task(order):
    """Ties by rollout id: a and c end together."""
    seen = []
    for seed in range(6):
        config = cell(order=order, tasks_per_step=3).model_copy(update={"seed": seed})
        pipeline = VirtualPipeline(config, load_rule("vanilla"), ("a", "b", "c"))
        recorder = Recorder({"a": 2, "b": 4, "c": 2})
        pipeline.run(recorder.workers(), print, Stopwatch())
        tasks = recorder.explored[0][1]
        arrived = list(dict.fromkeys(pipeline.task_of[turn.rollout] for turn in pipeline.pool.all_turns))
        assert arrived == (tasks if order == "task" else sorted(tasks, key=lambda task: task == "b"))
        seen.append(tasks)
    assert any(tasks[-1] != "b" for tasks in seen)  # the two orders differ


def test_an_explorer_waits_for_the_update_under_way_by_hand():
    """The step of 0-10 sets off update 0 when it arrives, so the next step waits for it, and starts at 13 with version
    1; it arrives at 23 and sets off update 1 on b's last two turns (version 0) and a's two (version 1). The third
    step starts at 26 with version 2, before update 2 takes the four turns of version 1 that are left.
    """
    _, recorder, rows = run(cell(sync="wait"))
    assert [(r["time_start"], r["time_end"]) for r in rows] == [(10.0, 13.0), (23.0, 26.0), (26.0, 29.0)]
    assert [version for version, _ in recorder.explored] == [0, 1, 2]
    assert [r["mean_age"] for r in rows] == [0.0, 0.5, 1.0] and rows[-1]["stale_rows"] == 0
    assert [r["explorer_steps"] for r in rows] == [1, 2, 3]


@pytest.mark.parametrize("change", [{}, {"arrives": "rollout"}, {"order": "task"}, {"steps_in_flight": 2}])
def test_who_waits_is_pickled_too(change):
    config = cell(sync="wait", **change)
    _, whole, rows = run(config)
    pipeline, recorder, again = VirtualPipeline(config, load_rule("vanilla"), ("a", "b")), Recorder(), []
    while not pipeline.finished:
        pipeline.run(recorder.workers(), again.append, Stopwatch())
        pipeline = pickle.loads(pickle.dumps(pipeline))
    assert again == rows and recorder.learned == whole.learned


def test_what_steps_cannot_be_is_said():
    with pytest.raises(ValueError, match="order: task needs arrives: step"):
        cell(arrives="rollout", order="task")
    assert cell(explorers=3).pipeline.steps_in_flight == 3
    with pytest.raises(ValueError, match="explorers is the old name of steps_in_flight"):
        cell(explorers=3, steps_in_flight=2)
    with pytest.raises(ValueError, match=r"steps_in_flight: 2 steps need as many .*placement.explorers.count is 1"):
        cell(kind="ray", steps_in_flight=2)


def test_the_default_of_sync_follows_the_way_of_the_weights():
    """As the paper's code base does where weights travel by a collective, and the virtual clock as it did."""
    base = cell(kind="ray").model_dump(exclude={"pipeline": {"sync"}})
    for placement, student, sync in (
        ({}, {}, "latest"),
        ({"weights": "direct"}, {}, "wait"),
        ({"weights": "direct", "clock": "virtual"}, {}, "latest"),
        ({}, {"backend": "vllm"}, "wait"),
        ({"weights": "store"}, {"backend": "vllm"}, "latest"),
    ):
        made = RunConfig.model_validate(base | {"placement": placement, "student": {"path": "x"} | student})
        assert made.pipeline.sync == sync
    assert cell().pipeline.sync == "latest"


def test_every_turn_has_one_fate():
    pipeline, recorder, _ = run(cell("divopd"))
    turns = pipeline.pool.all_turns
    assert len(turns) == pipeline.pool.arrived
    for turn in turns:
        assert (turn.selected_at >= 0) != (turn.dropped is not None)
    assert sum(turn.selected_at >= 0 for turn in turns) == sum(len(chosen) for _, chosen in recorder.learned)


def test_load_is_aimed_at_with_the_first_step():
    for load in (0.5, 1.0, 3.0):
        costs = CostModel(cell(load=load).pipeline)
        rollouts = [rollout_of((0, i, 0), "b", 0, 4) for i in range(2)]
        costs.aim(rollouts, cell().train)
        step = max(costs.generation(r) + costs.scoring(r) for r in rollouts)
        assert (8 / step) / (4 / 3.0) == pytest.approx(load)


def test_tasks_are_a_new_permutation_each_pass():
    config = cell(tasks_per_step=3)
    pipeline = VirtualPipeline(config, load_rule("vanilla"), ["a", "b", "c", "d", "e", "f"])
    passes = []
    for _ in range(6):
        passes += [task for _, task, _ in pipeline._next_tasks()]
        pipeline.steps += 1
    assert [sorted(passes[i : i + 6]) for i in (0, 6, 12)] == [list("abcdef")] * 3
    assert len({tuple(passes[i : i + 6]) for i in (0, 6, 12)}) > 1


def test_pickled_between_updates_it_goes_on_the_same():
    _, whole, rows = run(cell("divopd_base"))
    config = cell("divopd_base")
    pipeline, recorder, again = VirtualPipeline(config, load_rule("divopd_base"), ("a", "b")), Recorder(), []
    while not pipeline.finished:
        pipeline.run(recorder.workers(), again.append, Stopwatch())
        pipeline = pickle.loads(pickle.dumps(pipeline))
    assert again == rows and recorder.learned == whole.learned and recorder.saved == whole.saved


def test_evaluation_by_explorer_steps():
    config = cell()
    config = config.model_copy(
        update={"evaluation": config.evaluation.model_copy(update={"every_updates": None, "every_explorer_steps": 2})}
    )
    _, recorder, _ = run(config)
    assert recorder.saved == [(0, 0, 0.0), (1, 2, 20.0), (3, 4, 33.0)]


def test_a_rule_that_fills_no_batch_is_named(tmp_path):
    path = tmp_path / "lazy.py"
    path.write_text(
        "import numpy as np\nfrom divopd.selection import Rule\n\n\nclass Lazy(Rule):\n    '''Chooses nothing.'''\n\n"
        "    def select(self, pool, budget, seed):\n        return np.empty(0, dtype=int)\n"
    )
    pipeline = VirtualPipeline(cell(), load_rule(path), ("a", "b"))
    with pytest.raises(RuleError, match="lazy, update 0: returned 0 of 4 rows"):
        pipeline.run(Recorder().workers(), print, Stopwatch())


def test_a_stream_of_dead_rows_ends_with_its_reasons():
    """A gated rule would wait for ever; one that trains on dead rows goes on."""
    recorder = Recorder()
    workers = recorder.workers()
    explore = workers.explore

    def dead(tasks, version, direction):
        rollouts, scored = explore(tasks, version, direction)
        for turn in (turn for rollout in rollouts for turn in rollout.turns):
            turn.prompt_truncated = turn.index == 0
            turn.teacher_logprobs = np.full(2, np.nan, dtype=np.float32)
        return rollouts, scored

    workers.explore = dead
    pipeline = VirtualPipeline(cell("divopd"), load_rule("divopd"), ("a", "b"))
    with pytest.raises(StarvedError, match=r"update 0: 50 explorer steps .*\(non_finite 200, prompt_truncated 100\)"):
        pipeline.run(workers, print, Stopwatch())
    assert len(recorder.explored) == 50
    pipeline = VirtualPipeline(cell(), load_rule("vanilla"), ("a", "b"))
    pipeline.run(workers, lambda row: None, Stopwatch())
    assert pipeline.version == 1
