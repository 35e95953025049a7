"""Collecting runs and the tables made of them, on synthetic logs and on rows worked out by hand."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from divopd import runlog
from divopd.analysis import collect, tables
from divopd.analysis.labels import LOOKS, look, ordered
from divopd.analysis.report import CSVS, FIGURES, TABLES, report
from divopd.config import EvalConfig
from divopd.paper import SOURCE, reported
from synthetic import SHAPES, cell, row, write_run

SETTINGS = ("alfworld-0.5m", "alfworld-2m")


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two settings, three methods, two seeds."""
    root = tmp_path_factory.mktemp("results")
    for setting in SETTINGS:
        for method in SHAPES:
            for seed in (0, 1):
                write_run(root, cell(setting, method, seed))
    return root


@pytest.fixture(scope="module")
def made(results: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report without its figures, which have tests of their own."""
    out = tmp_path_factory.mktemp("report")
    for stage in ("collect", "tables", "page"):
        report(results, out, out / "figures", stage)
    return out


def hand_made(root: Path, method: str, success: list[list[bool]], tokens: list[int], status: str = "done") -> Path:
    """A run with one evaluation an update, whose episodes and token counts are given."""
    config = cell("hand", method)
    log = runlog.RunLog.open(config.run_dir(root), config)
    for q, n in enumerate(tokens):
        log.add("updates", [row("updates", update=q, row_tokens=n, learner_seconds=2.0, read_wait=1.0,
                                explorer_seconds=5.0 * (q + 1), arrival_rate=3.0, drain_rate=2.0, valid_tokens=10,
                                teacher_tokens=30 * (q + 1))])  # fmt: skip
    for version, wins in enumerate(success):
        log.add("evals", [row("evals", version=version, episode=i, success=won) for i, won in enumerate(wins)])
    log.finish(status)
    return config.run_dir(root)


def half(k: int, n: int = 10) -> list[bool]:
    return [i < k for i in range(n)]


def test_summary_by_hand(tmp_path: Path):
    # vanilla: 20, 30, 40 % after 0, 100, 200 tokens; the other: 20, 40, 30 % after 0, 50, 150
    hand_made(tmp_path, "vanilla", [half(2), half(3), half(4)], [100, 100])
    hand_made(tmp_path, "divopd", [half(2), half(4), half(3)], [50, 100])
    runs = [collect.load_run(folder) for folder in collect.find_runs(tmp_path)[0]]
    curves = pd.concat([collect.curve(run) for run in runs], ignore_index=True)
    summary = collect.summarise(curves, runs).set_index("method")
    assert summary["target"].tolist() == [0.4, 0.4] and set(summary["target_rule"]) == {"default"}
    assert summary.loc["divopd", ["cost_trained_tokens", "cost_updates", "cost_learner_seconds"]].tolist() == [50, 1, 2]
    assert summary.loc["vanilla", ["cost_trained_tokens", "cost_updates", "cost_wall_seconds"]].tolist() == [200, 2, 6]
    assert summary.loc["divopd", "speedup_trained_tokens"] == 4.0
    assert summary.loc["divopd", "speedup_explorer_seconds"] == 2.0
    assert summary.loc["divopd", "nauc"] == pytest.approx((0.3 + 0.35) / 2)
    assert summary.loc["divopd", "peak_version"] == 1
    assert summary.loc["divopd", "final5_mean"] == pytest.approx(0.3)
    assert not summary.loc["divopd", "sustained_reached"]  # the mean of three is .3
    assert collect.diagnostics(runs[0])["load"] == 1.5
    assert collect.diagnostics(runs[0])["teacher_tokens_scored_over_trained"] == 3.0


def test_a_censored_run_is_shown_with_its_bound(tmp_path: Path):
    hand_made(tmp_path, "vanilla", [half(2), half(4)], [100])
    hand_made(tmp_path, "divopd", [half(2), half(3)], [400])
    runs = [collect.load_run(folder) for folder in collect.find_runs(tmp_path)[0]]
    curves = pd.concat([collect.curve(run) for run in runs], ignore_index=True)
    summary = collect.summarise(curves, runs)
    table = tables.main_table(summary, {})
    divopd = dict(zip(table.header, table.rows[1], strict=True))
    assert (divopd["Method"], divopd["Token speedup"], divopd["Reached"]) == ("DivOPD", "<0.25×", "0/1")
    assert tables.aggregate_table(summary, {}).rows[1][2] == tables.DASH


def test_a_baseline_that_does_not_rise_gives_no_target(tmp_path: Path):
    hand_made(tmp_path, "vanilla", [half(4), half(3)], [100])
    hand_made(tmp_path, "divopd", [half(4), half(5)], [100])
    runs = [collect.load_run(folder) for folder in collect.find_runs(tmp_path)[0]]
    summary = collect.summarise(pd.concat([collect.curve(run) for run in runs], ignore_index=True), runs)
    assert set(summary["target_rule"]) == {"none"}
    table = tables.main_table(summary, {})
    assert [r[table.header.index("Token speedup")] for r in table.rows] == [tables.DASH] * 2


def test_a_diverged_run_is_marked_and_counted(tmp_path: Path):
    hand_made(tmp_path, "vanilla", [half(2), half(4), half(4)], [100, 100])
    hand_made(tmp_path, "divopd", [half(2), half(4)], [100], status="diverged")
    runs = [collect.load_run(folder) for folder in collect.find_runs(tmp_path)[0]]
    summary = collect.summarise(pd.concat([collect.curve(run) for run in runs], ignore_index=True), runs)
    divopd = summary[summary["method"] == "divopd"].iloc[0]
    assert divopd["horizon"] == 2 and divopd["nauc"] == pytest.approx(0.15)
    table = tables.main_table(summary, {})
    assert table.rows[1][1] == "DivOPD†" and any(note.startswith("†") for note in table.notes)


def test_selection_use_by_hand():
    def turn(batch: int, selected: int, dropped: str | None = None, valid: int = 3) -> dict:
        return row("turns", explorer_batch=batch, selected_at=selected, dropped=dropped, valid_tokens=valid)

    turns = pd.DataFrame([
        turn(0, 4), turn(0, 5), turn(0, -1, "stale"),  # two selected
        turn(1, -1, "stale"),  # never
        turn(2, -1, "unread"), turn(2, -1, "stale"),  # open
        turn(3, -1, "prompt_truncated", valid=0),  # no valid turn
        turn(4, 6),  # one selected
    ])  # fmt: skip
    out = collect.selection_use(turns)
    assert out["valid_rollouts"] == 3
    assert out["never_selected_share"] == pytest.approx(1 / 3)
    # sorted 0, 1, 2: sum i x_i = 8, 2*8/(3*3) - 4/3
    assert out["selected_gini"] == pytest.approx(16 / 9 - 4 / 3)


def test_two_explorer_steps_at_one_version_count_once(tmp_path: Path):
    config = cell()
    log = runlog.RunLog.open(config.run_dir(tmp_path), config)
    for step in (3, 4):
        rows = [row("evals", version=2, explorer_step=step, episode=i, success=i < 4) for i in range(10)]
        log.add("evals", rows)
    log.finish("done")
    curve = collect.curve(collect.load_run(config.run_dir(tmp_path)))
    assert curve[["version", "episodes", "successes"]].to_numpy().tolist() == [[2, 10, 4]]


def test_runs_that_differ_are_not_mixed_unless_named(results: Path, tmp_path: Path):
    runs = [collect.load_run(folder) for folder in collect.find_runs(results)[0]]
    collect.check_comparable(runs)
    other = write_run(tmp_path, cell(seed=7))
    meta = json.loads((other / "meta.json").read_text())
    meta["identity"]["panel"] = "0" * 64
    (other / "meta.json").write_text(json.dumps(meta))
    mixed = [*runs, collect.load_run(other)]
    with pytest.raises(collect.MixedRunsError, match="differ in panel.*--allow panel"):
        collect.check_comparable(mixed)
    collect.check_comparable(mixed, ["panel"])
    with pytest.raises(collect.MixedRunsError, match="cannot allow 'schema'"):
        collect.check_comparable(mixed, ["schema"])
    again = write_run(tmp_path / "b", cell(seed=8, evaluation=EvalConfig(episodes=7)))
    with pytest.raises(collect.MixedRunsError, match="evaluation"):
        collect.check_comparable([*runs, collect.load_run(again)])


def test_report_writes_what_it_promises(results: Path, made: Path):
    frames = {name: pd.read_csv(made / f"{name}.csv") for name in CSVS}
    assert len(frames["curves"]) == 12 * 7 and len(frames["summary"]) == len(frames["diagnostics"]) == 12
    for name in ("curves", "summary", "diagnostics"):
        assert {"schema", "git", "hash_panel", "hash_student", "hash_rule_file"} <= set(frames[name].columns)
    page = (made / "report.md").read_text()
    assert all(f"figures/{name}.png" in page for name in FIGURES)
    assert "12 runs; 0 diverged" in page
    for name in TABLES:
        assert all((made / "tables" / f"{name}.{kind}").stat().st_size for kind in ("md", "tex", "csv"))
    main = (made / "tables" / "main.md").read_text()
    assert "(reported)" in main and SOURCE in main
    assert len(pd.read_csv(made / "tables" / "main.csv")) == 6


def test_report_is_the_same_bytes_again(results: Path, made: Path, tmp_path: Path):
    for stage in ("collect", "tables"):
        report(results, tmp_path, tmp_path, stage)
    for path in [*made.glob("*.csv"), *made.glob("tables/*")]:
        assert path.read_bytes() == (tmp_path / path.relative_to(made)).read_bytes(), path.name


def test_latex_is_well_formed(made: Path):
    for name in TABLES:
        text = (made / "tables" / f"{name}.tex").read_text()
        rows = [line for line in text.splitlines() if line.endswith(r"\\")]
        assert len({line.count("&") - line.count(r"\&") for line in rows}) == 1
        assert text.count(r"\begin{tabular}") == text.count(r"\end{tabular}") == 1
        body = "\n".join(line for line in text.splitlines() if not line.startswith("%"))
        assert not any(symbol in body for symbol in "±×–†_∞")


def test_reported_numbers_stand_beside_ours(made: Path):
    main = pd.read_csv(made / "tables" / "main.csv").set_index(["setting", "method"])
    # the laptop's settings name the paper's settings beside which they stand
    assert main.loc[("alfworld-0.5m", "divopd"), "reported_peak"] == 79.29
    assert main.loc[("alfworld-2m", "vanilla"), "reported_final5_mean"] == 84.57


def test_unfinished_runs_are_named(results: Path, tmp_path: Path):
    config = cell("alfworld-2m", seed=9)
    runlog.RunLog.open(config.run_dir(tmp_path), config).flush()
    with pytest.raises(runlog.RunLogError, match="no finished run"):
        report(tmp_path, tmp_path / "out", tmp_path, "collect")
    write_run(tmp_path, cell("alfworld-2m", seed=1))
    lines = report(tmp_path, tmp_path / "out", tmp_path, "collect")
    assert any("left out" in line and "seed9" in line for line in lines)


def test_a_run_without_evaluation_says_what_to_do(tmp_path: Path):
    config = cell()
    runlog.RunLog.open(config.run_dir(tmp_path), config).finish("done")
    with pytest.raises(runlog.RunLogError, match="divopd evaluate"):
        report(tmp_path, tmp_path / "out", tmp_path, "collect")


@pytest.mark.parametrize("name", ["main_results", "batch_diagnostics"])
def test_reported_facts_say_that_they_are_reported(name: str):
    path = Path(tables.__file__).parents[1] / "paper" / f"{name}.csv"
    assert path.read_text().startswith("# reported in arXiv 2609.34838\n")
    table = reported(name)
    assert not table.duplicated(["setting", "method"]).any()
    assert table["setting"].nunique() == 6


def test_every_method_has_a_look_of_its_own():
    looks = list(LOOKS.values())
    for attribute in ("colour", "line", "marker", "hatch", "label"):
        values = [getattr(entry, attribute) for entry in looks]
        assert attribute == "line" or len(set(values)) == len(values), attribute
    assert ordered(["zeta", "divopd", "vanilla", "alpha"]) == ["vanilla", "divopd", "alpha", "zeta"]
    spare = [look(name, ["a", "b", "c"]) for name in "abc"]
    assert len({entry.marker for entry in spare}) == 3
    assert np.all([entry.label in "abc" for entry in spare])
