"""What logs of turns say of queue and disagreement, against sums by hand and by a slow second way."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from divopd.analysis import turns
from divopd.analysis.runs import Run, find_runs, load_run

ROOT = Path(__file__).resolve().parent.parent
LOGS = ROOT / "results" / "demo-reference"


@pytest.fixture(scope="module")
def run() -> Run:
    """A real run of the demo: DivOPD in ScienceWorld, 8 updates."""
    return load_run(next(f for f in find_runs(LOGS)[0] if f.match("scienceworld*/*/divopd/seed0")))


def share(rows: dict[str, float]) -> float:
    return float(turns.variance_share(pd.DataFrame([rows])).iloc[0])


def test_variance_share_by_hand():
    """Rollouts (0, 2) and (4, 6) of one step: within 2 + 2, between 2 * 4 + 2 * 4; mean squares 2 and 16, n_0 = 2."""
    rows = {"turns": 4, "rollouts": 2, "steps": 1, "square_within": 4.0, "square_between": 16.0, "crowding": 8 / 4}
    assert share(rows) == pytest.approx(7 / 9)  # s_b^2 = (16 - 2) / 2 = 7, s_w^2 = 2
    assert share(rows | {"square_between": 1.0}) == 0.0  # below what chance gives
    assert np.isnan(share(rows | {"rollouts": 1})) and np.isnan(share(rows | {"rollouts": 4}))


def test_variance_share_finds_what_was_put_in():
    """Rollouts of 3 to 9 turns; between and within deviations 1 and 2, so a fifth; and chance alone."""
    rng = np.random.default_rng(0)
    for between, truth in ((1.0, 0.2), (0.0, 0.0)):
        sums = []
        for _ in range(400):
            sizes = rng.integers(3, 10, 16)
            values = np.repeat(rng.normal(0, between, 16), sizes) + rng.normal(0, 2.0, sizes.sum())
            group = np.repeat(np.arange(16), sizes)
            means = np.bincount(group, values) / sizes
            sums.append({
                "turns": sizes.sum(), "rollouts": 16, "steps": 1, "crowding": (sizes**2).sum() / sizes.sum(),
                "square_within": ((values - means[group]) ** 2).sum(),
                "square_between": (sizes * (means - values.mean()) ** 2).sum(),
            })  # fmt: skip
        assert share(pd.DataFrame(sums).sum().to_dict()) == pytest.approx(truth, abs=0.01)


def test_depth_counts_every_student_turn_once(run: Run):
    found = turns.depth(run)
    student = run.turns[run.turns["actor"] == "student"]
    assert found["queued"].sum() == len(student) and found["selected"].sum() == (student["selected_at"] >= 0).sum()
    third = found[(found["turn"] == 3) & found["success"]].iloc[0]
    rows = student[(student["turn"] == 3) & student["success"]]
    assert (third["queued"], third["selected"]) == (len(rows), (rows["selected_at"] >= 0).sum())


def test_squares_add_up_to_those_of_a_slow_loop(run: Run):
    found = turns.disagreement(run)
    valid = run.turns[(run.turns["actor"] == "student") & run.turns["disagreement"].notna()]
    within = between = 0.0
    for _, step in valid.groupby("explorer_batch"):
        for _, rollout in step.groupby(["task_index", "run"]):
            values = rollout["disagreement"]
            within += ((values - values.mean()) ** 2).sum()
            between += len(values) * (values.mean() - step["disagreement"].mean()) ** 2
    assert found["square_within"].sum() == pytest.approx(within)
    assert found["square_between"].sum() == pytest.approx(between)
    assert found["turns"].sum() == len(valid) and found["steps"].sum() == valid["explorer_batch"].nunique()


def test_choices_are_those_of_a_slow_loop(run: Run):
    """Update by update: what was at hand is what was seen and had neither been selected nor dropped before."""
    t = run.turns[run.turns["disagreement"].notna() & (run.turns["first_seen"] >= 0)]
    selected, queue = [], []
    for update in range(len(run.updates)):
        gone = ((t["selected_at"] >= 0) & (t["selected_at"] < update)) | (
            (t["dropped_at"] >= 0) & (t["dropped_at"] <= update)
        )
        queue.append(t.loc[(t["first_seen"] <= update) & ~gone, "disagreement"].mean())
        selected.append(t.loc[t["selected_at"] == update, "disagreement"].mean())
    found = turns.disagreement(run)
    assert not (t["dropped"] == "expired").any()  # such a turn could still be chosen when it is dropped
    assert found["updates"].sum() == len(run.updates)
    assert found["selected_mean_sum"].sum() == pytest.approx(sum(selected))
    assert found["queue_mean_sum"].sum() == pytest.approx(sum(queue))
    assert sum(selected) > sum(queue)  # DivOPD takes the turns that disagree most


def test_a_run_without_an_update_has_no_rows(run: Run):
    assert turns.disagreement(replace(run, updates=run.updates.iloc[:0])).empty


def test_tercile_edges_cut_what_was_queued():
    depths = pd.DataFrame({"turn": [0, 1, 2, 3, 4, 5, 0], "queued": [4, 5, 5, 5, 5, 5, 1]})
    assert turns.tercile_edges(depths) == (2, 4)
    assert turns.tercile_edges(pd.DataFrame({"turn": [0, 1], "queued": [90, 10]})) == (1, 2)
