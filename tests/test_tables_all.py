"""Every table of a suite by hand: costs, use of rollouts, controls, sweeps, and what is left out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from divopd.analysis import tables_all, tables_controls, tables_costs, tables_use
from divopd.analysis.collect import COSTS
from divopd.analysis.table import DASH, Table
from divopd.analysis.tables_controls import SWEEPS, NoRunsError
from divopd.runlog import STAGES

COUNTERPARTS = {"alfworld-0.5m": "alfworld-qwen3-1.7b"}
SETTING = "alfworld-0.5m"


def run(method: str, seed: int = 0, setting: str = SETTING, speedup: float = 1.0, bound: str = "", **over: Any) -> dict:
    """A row of summary and of diagnostics at once."""
    row: dict[str, Any] = {
        "setting": setting, "env": "alfworld", "method": method, "seed": seed, "status": "done", "baseline": "vanilla",
        "start": 0.2, "peak": 0.6, "peak_bias": 0.02, "best5_mean": 0.52, "final": 0.45, "final5_mean": 0.5,
        "final5_std": 0.03, "nauc": 0.4, "target": 0.5, "reached": bound == "", "updates": 10, "stale_rows": 40,
        "load": 2.0, "effective_rollouts": 8.0, "never_selected_share": 0.25, "selected_gini": 0.4, "mean_age": 1.5,
        "valid_rollouts": 100, "scored_tokens": 300, "trained_tokens": 100, "teacher_tokens": 800,
        "scored_over_trained": 3.0, "top_rollout_token_share": 0.2, "turns_per_rollout": 4.0, "dead_row_share": 0.0,
        "kl_per_token": 0.3, "final5_rate_done": 0.5, "final5_rate_done_positive": 0.5, "final5_mean_score": 0.5,
        **dict.fromkeys(STAGES, 6.0),
    }  # fmt: skip
    for name in COSTS:
        for prefix in ("", "sustained_"):
            row |= {f"{prefix}cost_{name}": 120.0, f"{prefix}speedup_{name}": speedup, f"{prefix}bound_{name}": bound}
    return row | over


def rows_of(table: Table) -> dict[tuple[str, str], dict[str, str]]:
    """(first cell, second cell) -> the row by heading."""
    return {(row[0], row[1]): dict(zip(table.header, row, strict=True)) for row in table.rows}


def test_full_results_by_hand():
    three = [run("divopd", i, cost_updates=float(c)) for i, c in enumerate((100, 110, 120))]
    missed = [run("tcod_f2b", 0, cost_updates=90.0), run("tcod_f2b", 1, bound="<", cost_updates=150.0)]
    frame = pd.DataFrame([*three, *missed])
    shown = rows_of(tables_costs.full_table(frame, frame, COUNTERPARTS))
    divopd = shown[SETTING, "DivOPD"]
    # mean 110, s = 10: 4.3027 * 10 / sqrt(3) = 24.8
    assert divopd["Updates to target"] == "110 [85, 135]"
    assert divopd["Learner minutes to target"] == "2.0 [2.0, 2.0]"
    assert (
        divopd["Core-minutes of the run"] == f"{len(STAGES) / 10:.1f} [{len(STAGES) / 10:.1f}, {len(STAGES) / 10:.1f}]"
    )
    assert divopd["Updates to target (reported)"] == "155"
    assert divopd["Trainer GPU-hours to target (reported)"] == "3.97"
    tcod = shown[SETTING, "TCOD-F2B"]
    assert (tcod["Updates to target"], tcod["Reached"]) == (f"{DASH} (>120)", "1/2")


def test_speedups_by_resource_by_hand():
    frame = pd.DataFrame([
        run("vanilla"), run("divopd", speedup=4.0, sustained_speedup_trained_tokens=2.0),
        run("vanilla", setting="b"), run("divopd", setting="b", speedup=0.25, bound="<"),
        run("divopd", setting="c", speedup=float("nan"), reached=None),  # no baseline: stands apart
    ])  # fmt: skip
    shown = rows_of(tables_costs.speedups_table(frame, COUNTERPARTS))
    mine, over = shown[SETTING, "DivOPD"], shown[tables_costs.ALL, "DivOPD"]
    assert (mine["Trained tokens"], mine["Trained tokens, sustained"]) == ("4.00×", "2.00×")
    assert mine["Learner + read time (reported)"] == "1.28×"
    assert shown["b", "DivOPD"]["All devices"] == f"{DASH} (<0.25×)"
    assert over["Trained tokens"] == f"{DASH} (<1.00×)" and over["Reached"] == "1/2"
    # (2.05 * 1.92 * 2.22 * 1.77 * 1.62 * 1.54)^(1/6), and the paper's 1.14 in wall time
    assert (over["Trained tokens (reported)"], over["Learner + read time (reported)"]) == ("1.84×", "1.14×")
    assert (SETTING, "Vanilla OPD") not in shown


def test_use_and_teacher_tokens_by_hand():
    frame = pd.DataFrame([
        run("vanilla", never_selected_share=0.6), run("divopd", scored_over_trained=4.0, scored_tokens=400),
        run("divopd", setting="b", scored_over_trained=2.0, scored_tokens=600, trained_tokens=300),
    ])  # fmt: skip
    use = rows_of(tables_use.utilisation_table(frame))[SETTING, "Vanilla OPD"]
    assert (use["Never selected (%)"], use["Never selected (reported)"], use["Gini (reported)"]) == (
        "60.0",
        "53.9",
        "0.66",
    )
    shown = rows_of(tables_use.teacher_tokens_table(frame, COUNTERPARTS))
    mine, over = shown[SETTING, "DivOPD"], shown[tables_use.WEIGHTED, "DivOPD"]
    assert (mine["Scored / trained"], mine["Scored in vain (%)"], mine["Read / trained"]) == ("4.00", "75.0", "8.00")
    assert (mine["Scored / trained (reported)"], mine["Scored in vain (reported)"]) == ("2.77", "63.9")
    # 1000 scored over 400 trained
    assert (over["Scored / trained"], over["Scored in vain (%)"]) == ("2.50", "60.0")
    assert over["Scored / trained (reported)"] == "2.44"


def test_cap_control_by_hand():
    frame = pd.DataFrame([
        *(run("divopd_base", i, final5_mean=x) for i, x in enumerate((0.50, 0.60))),
        *(run("divopd_k_inf", i, final5_mean=x) for i, x in enumerate((0.45, 0.55))),
        run("divopd_base", setting="b"),
    ])  # fmt: skip
    table = tables_controls.cap_control_table(frame, COUNTERPARTS)
    assert len(table.rows) == 1
    row = dict(zip(table.header, table.rows[0], strict=True))
    assert row["Gain by the cap"] == "+5.0 [+5.0, +5.0]"
    assert row["DivOPD-Base, final-5 (reported)"] == "72.86"
    assert row["DivOPD, k = ∞, final-5 (reported)"] == "65.14"
    with pytest.raises(NoRunsError, match="add divopd_base and divopd_k_inf to the methods"):
        tables_controls.cap_control_table(frame[frame["method"] == "divopd_base"], COUNTERPARTS)


def test_matched_access_by_hand():
    frame = pd.DataFrame([run("vanilla"), run("vanilla_256", final5_mean=0.55), run("divopd", final5_mean=0.45)])
    shown = rows_of(tables_controls.matched_access_table(frame, COUNTERPARTS))
    assert shown[SETTING, "DivOPD"]["Gain on the same pool"] == "-10.0"
    wide = shown[SETTING, "Vanilla, 256 read"]
    assert (wide["Best five"], wide["Final"], wide["Gain on the same pool"]) == ("52.0", "45.0", DASH)
    assert (wide["Peak (reported)"], wide["Best five (reported)"], wide["Final (reported)"]) == (
        "78.57",
        "73.86",
        "78.57",
    )
    assert shown["alfworld-qwen3-1.7b", "rollout first"]["Final (reported)"] == "78.57"
    with pytest.raises(NoRunsError, match="add vanilla_256"):
        tables_controls.matched_access_table(frame[frame["method"] != "vanilla_256"], COUNTERPARTS)


def sweep_frame(rule: str, value: object, **over: Any) -> pd.DataFrame:
    row = run(rule) | {"rule": rule, "value": value, "final5_mean_low": 0.4, "final5_mean_high": 0.6} | over
    return pd.DataFrame([row])


@pytest.mark.parametrize(
    ("name", "frame", "ours", "theirs"),
    [
        ("load", sweep_frame("vanilla", 6), {"Tasks a step": "6", "Arrival / drain": "2.00", "Stale rows": "40"},
         {"Tasks a step": "16", "Arrival / drain": "2.27", "Final (%)": "49.3", "Stale rows": "30175"}),
        ("cap", sweep_frame("divopd", "4"), {"k": "4", "Final-5 (%)": "50.0 [40.0, 60.0]"},
         {"k": "4", "Peak (%)": "79.3"}),
        ("staleness", sweep_frame("vanilla", 2), {"Versions": "2", "Mean age (versions)": "1.50"},
         {"Versions": "4", "Mean age (versions)": "3.19", "Final (%)": "71.4"}),
        ("access", sweep_frame("vanilla_256", "vanilla_256"), {"Value": DASH, "Best five (%)": "52.0"},
         {"Best five (%)": "73.9", "Final (%)": "78.6"}),
    ],
)  # fmt: skip
def test_a_sweeps_csv_beside_the_papers_rows(
    tmp_path: Path, name: str, frame: pd.DataFrame, ours: dict[str, str], theirs: dict[str, str]
):
    results = tmp_path / "laptop"
    with pytest.raises(NoRunsError, match=f"the sweep in .*sweep-{name}: .*experiments/sweeps/{name}.yaml"):
        tables_all.sweep(name, results, COUNTERPARTS)
    path = tables_all.sweep_csv(name, results)
    path.parent.mkdir()
    frame.assign(key="train.updates").to_csv(path, index=False)  # its values are not this table's
    with pytest.raises(NoRunsError, match=f"sweep.csv does not sweep {SWEEPS[name][2]}"):
        tables_all.sweep(name, results, COUNTERPARTS)
    frame.assign(key=SWEEPS[name][2]).to_csv(path, index=False)
    table = tables_all.sweep(name, results, COUNTERPARTS)
    shown = [dict(zip(table.header, row, strict=True)) for row in table.rows]
    label = shown[0]["Rule"]
    assert shown[0].items() >= {"Source": "ours", "Setting": SETTING, **ours}.items()
    reported = [row for row in shown if row["Source"] == "reported" and row["Rule"] == label]
    assert any(row.items() >= theirs.items() for row in reported), reported


def test_committed_suites_have_committed_sweeps():
    at = tables_all.sweep_csv("load", Path("results/laptop-reference"))
    assert at == Path("results/sweep-load-reference/sweep.csv")


def loader(frame: pd.DataFrame) -> Callable[[str], pd.DataFrame]:
    return lambda name: frame


def test_tables_without_runs_are_left_out_and_say_what_they_need(tmp_path: Path):
    results = tmp_path / "some"
    (results / "tables").mkdir(parents=True)
    (results / "tables" / "cap_control.md").write_text("of other runs")
    frame = pd.DataFrame([run("vanilla"), run("divopd")])
    made, left_out = tables_all.write_tables(loader(frame), COUNTERPARTS, {}, results)
    assert tuple(made) == tables_all.ALWAYS
    assert set(left_out) == set(tables_all.TABLES) - set(tables_all.ALWAYS)
    assert not (results / "tables" / "cap_control.md").exists()
    text = (results / "tables" / tables_all.LEFT_OUT).read_text()
    assert "- sweep load: needs" in text and "- matched access: needs vanilla with DivOPD's pool" in text
    more = pd.DataFrame([run(m) for m in ("vanilla", "vanilla_256", "divopd_base", "divopd_k_inf", "divopd")])
    made, left_out = tables_all.write_tables(loader(more), COUNTERPARTS, {}, results)
    assert {"cap_control", "matched_access"} <= set(made)
    assert all(name.startswith("sweep_") for name in left_out)
    for name in made:
        frame = pd.read_csv(results / "tables" / f"{name}.csv")
        assert len(frame) == len(made[name].rows), name
