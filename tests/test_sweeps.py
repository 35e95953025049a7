"""Sweeps: suites that name what their methods differ by, and the table and figure by that quantity."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
import yaml
from click.testing import CliRunner

from divopd.analysis.sweeps import (
    NONE,
    by_value,
    draw_again,
    ordered_values,
    sweep,
    sweep_facts,
    sweep_figure,
    sweep_tables,
    value_of,
)
from divopd.cli_audit import sweep as command
from divopd.paper import reported
from divopd.runlog import RunLogError
from divopd.suite import SuiteError, load_suite, read_yaml, suite_spec

ROOT = Path(__file__).resolve().parent.parent
SWEEPS = sorted((ROOT / "experiments" / "sweeps").glob("*.yaml"))
COUNTERPARTS = {"alfworld-0.5m": "alfworld-qwen3-1.7b"}


def key_of(path: Path) -> str:
    key = suite_spec(read_yaml(path), path).sweep
    assert key
    return key


# suites --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", SWEEPS, ids=lambda p: p.stem)
def test_shipped_sweeps_differ_by_their_quantity_alone(path: Path):
    cells = load_suite(path)
    assert {cell.suite for cell in cells} == {f"sweep-{path.stem}"}
    seen = set()
    for cell in cells:
        value = value_of(cell, key_of(path), path)
        seen.add((cell.method.rule, value, cell.seed))
        if path.stem in ("load", "staleness"):  # the name says the value
            assert cell.method.name == f"{cell.method.rule}_{'batch' if path.stem == 'load' else 'stale'}{value:g}"
    assert len(seen) == len(cells)
    same = [
        cell.model_dump(
            exclude={"method": True, "seed": True, "pipeline": {"tasks_per_step"}, "train": {"max_staleness"}}
        )
        for cell in cells
    ]
    assert all(one == same[0] for one in same)
    batches, staleness = {c.pipeline.tasks_per_step for c in cells}, {c.train.max_staleness for c in cells}
    assert batches == ({2, 6, 16} if path.stem == "load" else {16})  # the paper's rollout batches
    assert staleness == ({1, 2, 4, 8} if path.stem == "staleness" else {2})


def test_there_are_four():
    assert {path.stem: key_of(path) for path in SWEEPS} == {
        "load": "pipeline.tasks_per_step",
        "cap": "method.params.cap",
        "staleness": "train.max_staleness",
        "access": "method.rule",
    }


def test_values_of_dotted_keys():
    cells = {cell.method.name: cell for cell in load_suite(ROOT / "experiments" / "sweeps" / "cap.yaml")}
    at = Path("cap.yaml")
    assert value_of(cells["divopd_k8"], "method.params.cap", at) == 8
    assert value_of(cells["divopd_k_inf"], "method.params.cap", at) is None
    assert value_of(cells["vanilla"], "train.max_staleness", at) == 2
    with pytest.raises(SuiteError, match="cap.yaml: sweep: 'pipeline.laod': no 'laod' there; valid: .*load"):
        value_of(cells["vanilla"], "pipeline.laod", at)
    with pytest.raises(SuiteError, match="below a plain value"):
        value_of(cells["vanilla"], "seed.x", at)


def test_settings_lie_beside_a_suite_or_one_folder_up(tmp_path: Path):
    suite = tmp_path / "sweeps" / "a.yaml"
    suite.parent.mkdir()
    suite.write_text(yaml.safe_dump({"name": "a", "settings": ["s"], "methods": ["vanilla"], "sweep": "pipeline.load"}))
    setting = {"student": {"path": "a"}, "teacher": {"path": "b"}}
    with pytest.raises(SuiteError, match=r"settings/s\.yaml: no such file; looked in .*sweeps"):
        load_suite(suite)
    for folder, updates in ((tmp_path, 1), (suite.parent, 2)):  # the nearer one wins
        (folder / "settings").mkdir()
        (folder / "settings" / "s.yaml").write_text(yaml.safe_dump(setting | {"train": {"updates": updates}}))
        assert load_suite(suite)[0].train.updates == updates


# tables --------------------------------------------------------------------------------------------------------------


def frames() -> tuple[pd.DataFrame, pd.DataFrame, dict[tuple[str, str], Any]]:
    """A summary and diagnostics of three methods and two seeds, with numbers to be averaged in the head."""
    summary, diagnostics = [], []
    for i, method in enumerate(("fast", "slow", "free")):
        for seed in (0, 1):
            run = {"setting": "alfworld-0.5m", "method": method, "seed": seed}
            reached = not (method == "slow" and seed)
            summary.append(run | {
                "status": "done", "peak": 0.5 + 0.1 * seed, "final5_mean": 0.4, "final5_std": 0.02, "nauc": 0.3,
                "best5_mean": 0.45, "final": 0.4,
                "target": 0.5, "reached": reached, "cost_trained_tokens": 1000.0 * (i + 1 + seed), "baseline": "fast",
            })  # fmt: skip
            diagnostics.append(run | {
                "status": "done", "load": 2.0 + seed, "effective_rollouts": 4.0 + i, "never_selected_share": 0.25,
                "mean_age": 1.5, "stale_rows": 30 + 20 * seed, "updates": 10,
            })  # fmt: skip
    cells = {
        ("alfworld-0.5m", "fast"): ("divopd", 3.0),
        ("alfworld-0.5m", "slow"): ("divopd", 0.5),
        ("alfworld-0.5m", "free"): ("vanilla", None),
    }
    return pd.DataFrame(summary), pd.DataFrame(diagnostics), cells


def test_rows_are_means_over_seeds_in_order_of_rule_and_value():
    frame = by_value(*frames())
    assert list(zip(frame["rule"], frame["value"], frame["method"], strict=True)) == [
        ("vanilla", NONE, "free"),
        ("divopd", "0.5", "slow"),
        ("divopd", "3", "fast"),
    ]
    slow = frame.iloc[1]
    assert (slow["peak"], slow["load"], slow["effective_rollouts"]) == pytest.approx((0.55, 2.5, 5.0))
    assert slow["stale_rows_per_update"] == pytest.approx(4.0)  # 30 and 50 in 10 updates
    assert slow["tokens_to_target"] == pytest.approx(2500) and slow["bound"] == ">"
    assert frame.iloc[2]["bound"] == ""


def test_values_sort_as_numbers_and_none_comes_last():
    assert ordered_values(pd.Series(["10", "2", NONE, "0.5"])) == ["0.5", "2", "10", NONE]
    assert ordered_values(pd.Series(["divopd", "vanilla_256", "vanilla"])) == ["vanilla", "vanilla_256", "divopd"]


def test_the_table_says_units_bounds_and_what_is_reported():
    frame = by_value(*frames())
    ours, theirs = sweep_tables(frame, sweep_facts("pipeline.tasks_per_step", COUNTERPARTS), "pipeline.tasks_per_step")
    rows = [dict(zip(ours.header, row, strict=True)) for row in ours.rows]
    assert rows[1]["Tasks an explorer step plays"] == "0.5"
    assert rows[1]["Tokens to target (k)"] == ">2" and rows[2]["Tokens to target (k)"] == "2"
    assert rows[1]["Final-5 success (%)"] == "40.0 [40.0, 40.0]" and rows[1]["Never selected (%)"] == "25.0"
    assert "50 %" in ours.notes[0]
    assert ["–", "Vanilla OPD", "16", "49.3", "26.9", "30175", "2.27"] in theirs.rows


def test_reported_rows_of_each_sweep():
    cap = sweep_facts("method.params.cap", COUNTERPARTS).set_index(["method", "value"])
    assert cap.loc[("divopd", "3"), "peak"] == 87.14 and cap.loc[("divopd", "4"), "peak"] == 79.29
    assert cap.loc[("divopd_base", "4"), "final5_mean"] == 72.86
    assert cap.loc[("divopd_k_inf", NONE), "final5_mean"] == 65.14
    stale = sweep_facts("train.max_staleness", COUNTERPARTS).set_index(["method", "value"])
    assert stale["mean_age"].to_dict() == {("vanilla", "2"): 1.69, ("vanilla", "4"): 3.19}
    access = sweep_facts("method.rule", COUNTERPARTS).set_index("value")
    assert access["final"].to_dict() == {"vanilla_256": 78.57, "rollout_first": 78.57}
    assert len(sweep_facts("pipeline.tasks_per_step", {})) == 6 and sweep_facts("train.updates", COUNTERPARTS).empty
    assert len(reported("cap")) == 36


def test_the_figure_has_units_legend_and_the_papers_points():
    frame = by_value(*frames())
    fig = sweep_figure(frame, sweep_facts("pipeline.tasks_per_step", COUNTERPARTS), "pipeline.tasks_per_step")
    axes = [ax for ax in fig.axes if ax.axison]
    assert len(axes) == 8 and {ax.get_xlabel() for ax in axes[5:]} == {"Tasks an explorer step plays"}
    assert all(ax.get_title(loc="left") for ax in axes)
    assert [tick.get_text() for tick in axes[6].get_xticklabels()] == ["0.5", "3", "none"]
    texts = [text.get_text() for text in fig.legends[0].get_texts()]
    assert texts == ["Vanilla OPD", "DivOPD", "hollow: reported in arXiv 2609.34838"]
    assert fig.get_supxlabel().endswith("reported final-5: the last evaluation alone")  # which is all that it reports
    # the paper's two tasks lie between 0.5 and 3, at their share of the way
    marks = [
        tuple(line.get_xydata()[0]) for line in axes[0].lines if line.get_marker() == "o" and line.get_mfc() == "white"
    ]
    assert (pytest.approx((2 - 0.5) / 2.5), 52.1) in [(x, y) for x, y in marks]
    assert all(np.isfinite(ax.get_ylim()).all() for ax in axes)
    plt.close(fig)


# the whole -----------------------------------------------------------------------------------------------------------


def test_a_sweep_from_run_logs(collected_sweep: tuple[Path, Path]):
    results, suite = collected_sweep
    done = CliRunner().invoke(command, [str(results), "--suite", str(suite)], catch_exceptions=False)
    assert done.exit_code == 0 and "Sweep of pipeline.tasks_per_step" in done.output
    frame = pd.read_csv(results / "sweep.csv")
    assert list(zip(frame["rule"], frame["value"], strict=True)) == [("vanilla", 2), ("divopd_base", 6), ("divopd", 6)]
    page = (results / "sweep.md").read_text()
    assert "figures/sweep.png" in page and "Reported in arXiv 2609.34838" in page
    assert (results / "figures" / "sweep.png").stat().st_size > 20_000


def test_a_sweep_without_its_key_is_one_line(collected_sweep: tuple[Path, Path], tmp_path: Path):
    results, suite = collected_sweep
    CliRunner().invoke(command, [str(results), "--suite", str(suite)])
    frame = pd.read_csv(results / "sweep.csv").drop(columns="key")
    frame.to_csv(results / "sweep.csv", index=False)
    with pytest.raises(RunLogError, match="sweep.csv does not name its key; run `divopd sweep` again"):
        draw_again(results, tmp_path)


def test_mistakes_are_one_line(collected_sweep: tuple[Path, Path], tmp_path: Path):
    results, suite = collected_sweep
    content = yaml.safe_load(suite.read_text())
    for key, words in ((None, "no key sweep"), ("method.params.cpa", "no method has 'method.params.cpa'")):
        suite.write_text(yaml.safe_dump(content | {"sweep": key}))
        with pytest.raises(SuiteError, match=words):
            sweep(results, suite, tmp_path)
    suite.write_text(yaml.safe_dump(content))
    (results / "summary.csv").unlink()
    with pytest.raises(RunLogError, match="stage collect"):
        sweep(results, suite, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(("suite", "sweeps"), [("sweeps/access", 1), ("demo", 0)])
def test_the_workflow_draws_a_sweep_where_there_is_one(suite: str, sweeps: int, tmp_path: Path):
    for part in ("workflow", "divopd", "baselines", "experiments"):
        shutil.copytree(ROOT / part, tmp_path / part, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "environment.yml", tmp_path)
    command = [sys.executable, "-m", "snakemake", "--configfile", f"experiments/{suite}.yaml", "--cores", "1", "-n"]
    environment = os.environ | {"XDG_CACHE_HOME": str(tmp_path / ".xdg")}
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=environment, timeout=300)
    assert run.returncode == 0, run.stderr[-2000:]
    jobs = {name: int(count) for name, count in re.findall(r"^(\w+) +(\d+)$", run.stdout, flags=re.MULTILINE)}
    cells = len(load_suite(ROOT / "experiments" / f"{suite}.yaml"))
    assert (jobs["train"], jobs["page"], jobs.get("sweep", 0)) == (cells, 1, sweeps)
    assert "audit" not in jobs
