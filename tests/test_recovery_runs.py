"""Whole runs under rollout policies: the same log after a kill, who acted, and the figures."""

from __future__ import annotations

import json
import shutil

import matplotlib.pyplot as plt
import pandas as pd
import pyarrow.compute as pc
import pytest

from divopd import train as trainer_module
from divopd.analysis.recovery import rate_between, recovery_tradeoff, takeovers_over_training
from divopd.analysis.style import NothingToDrawError
from divopd.evaluate import evaluate_run
from divopd.runlog import read_table
from divopd.train import Trainer, train
from train_runs import LOGS, logs, quiet, train_killed

# whole runs ----------------------------------------------------------------------------------------------------------

METHODS = {
    "recovery": {"rule": "divopd", "rollout": {"policy": "recovery", "params": {"patience": 1, "max_turns": 2}}},
    "turnopd": {"rule": "vanilla", "rollout": {"policy": "turnopd", "params": {"probes": 1, "share": 0.5}},
                "loss": {"name": "reverse_kl", "reduction": "blended"}},
    "guided_opd": {"rule": "divopd_base", "rollout": {"policy": "guided_opd", "params": {"until": 1.0}}},
    "tcod_f2b": {"rule": "vanilla", "rollout": {"policy": "tcod_f2b"}},
}  # fmt: skip


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return {}


def whole(tiny_cell, tmp_path, runs, name):
    """The folder of an undisturbed run, its cell and its bytes, made once a method."""
    if name not in runs:
        method = tiny_cell(method={"name": name} | METHODS[name])
        folder = tmp_path / name
        assert train(method, folder, quiet) == "done"
        runs[name] = (method, folder, logs(folder))
    return runs[name]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "where", "call"), [("recovery", "_learn", 4), ("turnopd", "_publish", 5)])
def test_killed_it_ends_in_the_same_log(name, where, call, tiny_cell, tmp_path, runs):
    method, _, want = whole(tiny_cell, tmp_path, runs, name)
    folder = tmp_path / "killed"
    train_killed(method, folder, Trainer, where, call)
    assert train(method, folder, quiet) == "done"
    assert logs(folder) == want


@pytest.mark.slow
def test_the_log_tells_who_acted(tiny_cell, tmp_path, runs):
    _, folder, _ = whole(tiny_cell, tmp_path, runs, "recovery")
    turns, updates = read_table(folder, "turns").to_pandas(), read_table(folder, "updates").to_pandas()
    teacher = turns[turns["actor"] == "teacher"]
    student = turns[turns["actor"] == "student"]
    assert len(teacher) and (teacher[["arrival", "first_seen", "selected_at", "dropped_at"]] == -1).all(axis=None)
    assert teacher["dropped"].isna().all() and (teacher["valid_tokens"] == 0).all()
    assert teacher["disagreement"].isna().all() and (teacher["response_tokens"] > 0).all()
    assert sorted(student["arrival"]) == list(range(len(student)))
    ids = ["explorer_batch", "task_index", "run"]
    each = turns.sort_values("turn").groupby(ids)
    assert (each["turn"].apply(list) == each["rollout_turns"].first().apply(lambda n: list(range(n)))).all()
    assert (teacher.groupby(ids).size() <= 2).all()
    before = turns.merge(teacher[[*ids, "turn"]].assign(turn=teacher["turn"] - 1), on=[*ids, "turn"])
    first = before[before["actor"] == "student"]
    assert not first["progress"].any()  # patience 1: a takeover follows a turn without progress
    last = updates.iloc[-1]
    # those of rollouts still under way are counted, and not yet logged
    assert last["teacher_turns"] >= len(teacher) and last["takeovers"] >= len(first)
    assert last["teacher_generated_tokens"] >= teacher["response_tokens"].sum()
    assert last["teacher_generation_seconds"] > 0 and (updates["horizon"] == 6).all()
    assert json.loads((folder / "timings.json").read_text())["teacher_generation"] > 0
    assert pc.sum(read_table(folder, "updates")["rows"]).as_py() == int((student["selected_at"] >= 0).sum())


@pytest.mark.slow
@pytest.mark.parametrize("name", ["guided_opd", "tcod_f2b", "turnopd"])
def test_the_other_methods_leave_their_mark(name, tiny_cell, tmp_path, runs):
    _, folder, _ = whole(tiny_cell, tmp_path, runs, name)
    turns, updates = read_table(folder, "turns").to_pandas(), read_table(folder, "updates").to_pandas()
    length = turns.groupby("explorer_batch")["rollout_turns"].max()
    if name == "tcod_f2b":  # 6 updates: a turn more at each
        assert updates["horizon"].is_monotonic_increasing and updates["horizon"].iloc[0] <= 2
        first = turns[turns["version"] == 0]
        assert (first["rollout_turns"] == 1).all() and length.max() == turns["version"].max() + 1
    elif name == "turnopd":
        cut = turns[turns["task_index"] >= 1]  # the first task of each step is the probe
        assert cut[cut["explorer_batch"] > 0]["rollout_turns"].min() < 6
        assert (turns[turns["task_index"] == 0]["rollout_turns"] == 6).all()
    else:
        share = (turns["actor"] == "teacher").groupby(turns["version"]).mean()
        assert 0.3 < share[0] < 0.7 and share.iloc[-1] < share[0]


@pytest.mark.slow
def test_explorers_are_as_fast_under_every_method(tiny_cell, tmp_path, runs):
    speeds = {}
    for name in ("recovery", "tcod_f2b", "vanilla"):
        method = {"name": name, "rule": "vanilla"} | METHODS.get(name, {})
        run = Trainer(tiny_cell(method=method), tmp_path / f"speed-{name}")
        run.pipeline.run(trainer_module.Workers(run._explore, run._learn, run._publish, run._save), print, run.watch)
        speeds[name] = run.pipeline.costs.slowdown
    assert len(set(speeds.values())) == 1


@pytest.mark.slow
def test_evaluation_is_the_students_alone(tiny_cell, tmp_path, runs):
    """The untrained student's episodes are those of a run without recovery, and no turn is the teacher's."""
    found = []
    for name in ("recovery", "vanilla"):
        method = {"name": name, "rule": "vanilla"} | METHODS.get(name, {})
        folder = tmp_path / f"eval-{name}"
        train(tiny_cell(method=method), folder, quiet)
        evaluate_run(folder, quiet)
        rows = read_table(folder, "evals").to_pandas()
        found.append(rows[rows["version"] == 0].drop(columns=["explorer_step", "time"]).reset_index(drop=True))
    assert found[0].equals(found[1]) and len(found[0]) == 3
    shutil.rmtree(tmp_path / "eval-vanilla")
    assert set(LOGS) <= {path.name for path in (tmp_path / "eval-recovery").iterdir()}


# figures -------------------------------------------------------------------------------------------------------------


def test_rates_are_between_evaluations_and_averaged_over_seeds():
    """Seed 0: 4 takeovers over 8 rollouts, then 2 over 8, then no rollout. Seed 1: 0 over 8, then 8 over 4."""
    rows = [(0, 0, 0, 0), (0, 10, 4, 8), (0, 20, 6, 16), (0, 30, 6, 16), (1, 0, 0, 0), (1, 10, 0, 8), (1, 20, 8, 12)]
    curve = pd.DataFrame(rows, columns=["seed", "version", "takeovers", "rollouts"])
    rates = rate_between(curve, "takeovers")
    assert rates.to_dict() == {10: 0.25, 20: (0.25 + 2.0) / 2}


def test_figures_show_the_logged_numbers():
    key = {"setting": "a", "seed": 0}
    summary = pd.DataFrame(
        [
            key | {"method": m, "final5_mean": y, "baseline": "vanilla"}
            for m, y in (("vanilla", 0.4), ("divopd_recovery", 0.6))
        ]
    )
    shares = pd.DataFrame([key | {"method": "vanilla", "teacher_turn_share": 0.0},
                           key | {"method": "divopd_recovery", "teacher_turn_share": 0.1}])  # fmt: skip
    ax = recovery_tradeoff(summary, shares).axes[0]
    drawn = [tuple(c.lines[0].get_xydata()[0]) for c in ax.containers]
    assert drawn == [(0.0, 0.4), (0.1, 0.6)] and ax.get_xlabel() and ax.get_ylabel()
    curves = pd.DataFrame([key | {"method": m, "version": 10 * i, "rollouts": 8 * i, "takeovers": n * i,
                                  "teacher_turns": 3 * n * i} for m, n in (("vanilla", 0), ("divopd_recovery", 2))
                           for i in range(3)])  # fmt: skip
    fig = takeovers_over_training(curves)
    assert [line.get_ydata().tolist() for ax in fig.axes for line in ax.get_lines()] == [[0.25, 0.25], [0.75, 0.75]]
    with pytest.raises(NothingToDrawError, match="no method here lets the teacher act"):
        takeovers_over_training(curves[curves["method"] == "vanilla"])
    plt.close("all")
