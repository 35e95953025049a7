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
    """Workers that note what they were asked to do. Task "a" takes two turns, "b" four."""

    def __init__(self):
        self.explored, self.learned, self.saved, self.published = [], [], [], 0

    def workers(self):
        def explore(tasks, version, direction):
            self.explored.append((version, [task for _, task, _ in tasks]))
            return [rollout_of(n, t, version, {"a": 2, "b": 4}[t]) for n, t, _ in tasks], 10

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
    pipeline, recorder, rows = run(cell())
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
    assert recorder.saved == [(0, 0, 0.0), (2, 2, 20.0), (3, 4, 33.0)]


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
