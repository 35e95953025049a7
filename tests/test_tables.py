"""Collecting runs and the tables made of them, on synthetic logs and on rows worked out by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.markers import MarkerStyle

from divopd import runlog
from divopd.analysis import collect, runs, tables
from divopd.analysis.labels import LOOKS, look, ordered
from divopd.analysis.report import CSVS, FIGURES, report
from divopd.analysis.tables_all import ALWAYS
from divopd.paper import SOURCE, reported
from divopd.schema import turn_row
from divopd.types import DropReason, Turn
from synthetic import cell, row, write_grid


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_grid(tmp_path_factory.mktemp("results"))


@pytest.fixture(scope="module")
def made(results: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report without its figures, which have tests of their own."""
    out = tmp_path_factory.mktemp("report")
    (out / "figures").mkdir()
    for name in FIGURES:
        (out / "figures" / f"{name}.png").touch()
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
    runlog.mark_evaluated(config.run_dir(root))
    return config.run_dir(root)


def load_all(root: Path) -> list[runs.Run]:
    return [runs.load_run(folder) for folder in runs.find_runs(root)[0]]


def half(k: int, n: int = 10) -> list[bool]:
    return [i < k for i in range(n)]


def test_summary_by_hand(tmp_path: Path):
    # vanilla: 20, 30, 40 % after 0, 100, 200 tokens; the other: 20, 40, 30 % after 0, 50, 150
    hand_made(tmp_path, "vanilla", [half(2), half(3), half(4)], [100, 100])
    hand_made(tmp_path, "divopd", [half(2), half(4), half(3)], [50, 100])
    found = load_all(tmp_path)
    curves = pd.concat([collect.curve(run) for run in found], ignore_index=True)
    summary = collect.summarise(curves, found).set_index("method")
    assert summary["target"].tolist() == [0.4, 0.4] and set(summary["target_rule"]) == {"default"}
    assert summary.loc["divopd", ["cost_trained_tokens", "cost_updates", "cost_learner_seconds"]].tolist() == [50, 1, 2]
    assert summary.loc["vanilla", ["cost_trained_tokens", "cost_updates", "cost_wall_seconds"]].tolist() == [200, 2, 6]
    assert summary.loc["divopd", "speedup_trained_tokens"] == 4.0
    assert summary.loc["divopd", "speedup_explorer_seconds"] == 2.0
    assert summary.loc["divopd", "nauc"] == pytest.approx((0.3 + 0.35) / 2)
    assert summary.loc["divopd", "peak_version"] == 1
    assert summary.loc["divopd", "final5_mean"] == pytest.approx(0.35)  # of 40 and 30: version 0 is not trained
    assert summary["final5_count"].tolist() == [2, 2]
    assert not summary.loc["divopd", "sustained_reached"]  # the mean of three is .3
    assert collect.diagnostics(found[0])["load"] == 1.5
    assert collect.diagnostics(found[0])["teacher_tokens_scored_over_trained"] == 3.0


def test_a_censored_run_is_shown_with_its_bound(tmp_path: Path):
    hand_made(tmp_path, "vanilla", [half(2), half(4)], [100])
    hand_made(tmp_path, "divopd", [half(2), half(3)], [400])
    found = load_all(tmp_path)
    curves = pd.concat([collect.curve(run) for run in found], ignore_index=True)
    summary = collect.summarise(curves, found)
    table = tables.main_table(summary, {})
    divopd = dict(zip(table.header, table.rows[1], strict=True))
    assert (divopd["Method"], divopd["Token speedup"], divopd["Reached"]) == ("DivOPD", "– (<0.25×)", "0/1")
    row = tables.aggregate_table(summary, {}).rows[1]
    assert row[:5] == ["DivOPD", "1/1", "– (<0.25×)", "– (<1.00×)", "0 % (0/1)"]


def summary_of(*rows: tuple[str, str, int, float | None, str, bool | None, float]) -> pd.DataFrame:
    """A summary of (setting, method, seed, speedup, bound, reached, final-5)."""
    frame = pd.DataFrame(rows, columns=["setting", "method", "seed", "speedup", "bound", "reached", "final5_mean"])
    frame["speedup"] = frame["speedup"].astype(float)
    for name in tables.SPEEDUPS:
        frame[[f"speedup_{name}", f"bound_{name}"]] = frame[["speedup", "bound"]]
    facts = {
        "start": 0.2,
        "peak": 0.6,
        "peak_bias": 0.01,
        "final5_std": 0.01,
        "nauc": 0.4,
        "target": 0.5,
        "status": "done",
    }
    return frame.assign(**facts, baseline="vanilla")


def by_method(table: tables.Table) -> dict[str, dict[str, str]]:
    at = table.header.index("Method")
    return {row[at]: dict(zip(table.header, row, strict=True)) for row in table.rows}


@pytest.mark.parametrize(
    ("seeds", "shown"),
    [
        ([(4.0, ""), (1.0, "")], "2.00× [0.00, 13365.30]"),  # logs 0 and log 4: half-width 12.7062 * log 4 / 2
        ([(4.0, ""), (0.25, "<")], "– (<1.00×)"),  # (4 x 1/4)^(1/2), not 4
        ([(4.0, ""), (9.0, ">")], "– (>6.00×)"),  # (4 x 9)^(1/2), not 4
        ([(0.25, "<"), (9.0, ">")], tables.DASH),
        ([(4.0, ""), (None, "?")], tables.DASH),  # both sides of the second seed never got there
        ([(4.0, ""), (None, "")], "4.00×"),  # the second has no baseline run
    ],
)
def test_a_cells_speedup_never_forgets_a_censored_seed(seeds: list[tuple[float | None, str]], shown: str):
    rows = [("s", "divopd", i, value, bound, bound == "", 0.5) for i, (value, bound) in enumerate(seeds)]
    rows += [("s", "vanilla", i, 1.0, "", True, 0.4) for i in range(2)]
    summary = summary_of(*rows)
    assert by_method(tables.main_table(summary, {}))["DivOPD"]["Token speedup"] == shown
    entered = "0/1" if shown == tables.DASH else "1/1"
    aggregate = by_method(tables.aggregate_table(summary, {}))["DivOPD"]
    over = shown.replace("[0.00, 13365.30]", "[1.00, 4.00]")  # of two seeds the bootstrap draws one at a time
    assert (aggregate["Token speedup, geometric mean"], aggregate["Settings at target"]) == (over, entered)


def test_aggregates_take_each_methods_own_settings_and_count_them():
    summary = summary_of(
        ("a", "vanilla", 0, 1.0, "", True, 0.30), ("a", "divopd", 0, 4.0, "", True, 0.50),
        ("a", "top_b", 0, 3.0, "", True, 0.90),
        ("b", "vanilla", 0, 1.0, "", True, 0.40), ("b", "divopd", 0, 0.25, "<", False, 0.30),  # top_b lacks here
        ("c", "divopd", 0, None, "", None, 0.99),  # no baseline here
    )  # fmt: skip
    rows = by_method(tables.aggregate_table(summary, {}))
    names = ["Settings", "Final-5, IQM", "P(better than baseline)", "Settings at target", "Reach rate"]
    names += ["Token speedup, geometric mean"]
    assert [rows["DivOPD"][n] for n in names] == ["2/3", "40.0", "0.50", "2/3", "50 % (1/2)", "– (<1.00×)"]
    assert [rows["Top-B"][n] for n in names] == ["1/3", "90.0", "1.00", "1/3", "100 % (1/1)", "3.00×"]
    assert [rows["Vanilla OPD"][n] for n in names] == ["2/3", "35.0", tables.DASH, "2/3", "100 % (2/2)", "1.00×"]


def test_a_baseline_that_does_not_rise_gives_no_target(tmp_path: Path):
    hand_made(tmp_path, "vanilla", [half(4), half(3)], [100])
    hand_made(tmp_path, "divopd", [half(4), half(5)], [100])
    found = load_all(tmp_path)
    summary = collect.summarise(pd.concat([collect.curve(run) for run in found], ignore_index=True), found)
    assert set(summary["target_rule"]) == {"none"}
    table = tables.main_table(summary, {})
    assert [r[table.header.index("Token speedup")] for r in table.rows] == [tables.DASH] * 2


def test_a_diverged_run_is_marked_and_counted(tmp_path: Path):
    hand_made(tmp_path, "vanilla", [half(2), half(4), half(4)], [100, 100])
    hand_made(tmp_path, "divopd", [half(2), half(4)], [100], status="diverged")
    found = load_all(tmp_path)
    summary = collect.summarise(pd.concat([collect.curve(run) for run in found], ignore_index=True), found)
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
    assert out["undecided_rollouts"] == 1
    # sorted 0, 1, 2: sum i x_i = 8, 2*8/(3*3) - 4/3
    assert out["selected_gini"] == pytest.approx(16 / 9 - 4 / 3)


def test_selection_use_of_logged_turns_by_hand():
    def turn(rollout: int, index: int = 0, **change: Any) -> dict[str, Any]:
        scores = np.array([-1.0, -2.0], np.float32)
        fields = {"student_logprobs": scores, "teacher_logprobs": scores - 0.5, "action_mask": np.ones(2, bool)}
        return turn_row(Turn((0, rollout, 0), index, 3, np.arange(100), 8, 10, **(fields | change)), "task")

    dead: dict[str, Any] = {"prompt_truncated": True}
    out = collect.selection_use(pd.DataFrame([
        turn(0, 0, selected_at=1),
        turn(0, 1, selected_at=2),
        turn(0, 2, dropped=DropReason.UNREAD),
        turn(1, 0, dropped=DropReason.STALE),
        turn(1, 1, **dead, teacher_logprobs=None, dropped=DropReason.PROMPT_TRUNCATED),
        turn(2, 0, **dead, selected_at=2),  # a dead row that took a slot, scored or not
        turn(3, 0, dropped=DropReason.UNREAD),  # undecided
        turn(4, 0, selected_at=3),
    ]))  # fmt: skip
    assert out == {
        "valid_rollouts": 3,  # 0, 1 and 4
        "undecided_rollouts": 1,
        "never_selected_share": pytest.approx(1 / 3),
        "selected_gini": pytest.approx(16 / 9 - 4 / 3),  # of 0, 1, 2 as above
    }
    assert np.isnan(collect.selection_use(pd.DataFrame([turn(3)]))["never_selected_share"])


def test_two_explorer_steps_at_one_version_count_once(tmp_path: Path):
    config = cell()
    log = runlog.RunLog.open(config.run_dir(tmp_path), config)
    for version, step in ((0, 0), (2, 3), (2, 4)):
        rows = [row("evals", version=version, explorer_step=step, episode=i, success=i < 4) for i in range(10)]
        log.add("evals", rows)
    log.finish("done")
    curve = collect.curve(runs.load_run(config.run_dir(tmp_path)))
    assert curve[["version", "episodes", "successes"]].to_numpy().tolist() == [[0, 10, 4], [2, 10, 4]]


def test_report_writes_what_it_promises(results: Path, made: Path):
    frames = {name: pd.read_csv(made / f"{name}.csv") for name in CSVS}
    assert len(frames["curves"]) == 12 * 7 and len(frames["summary"]) == len(frames["diagnostics"]) == 12
    for name in ("curves", "summary", "diagnostics"):
        assert {"schema", "git", "hash_panel", "hash_student", "hash_rule_file"} <= set(frames[name].columns)
    page = (made / "report.md").read_text()
    assert all(f"figures/{name}.png" in page for name in FIGURES)
    assert "12 runs; 0 diverged" in page
    # 12 runs of 12 seconds in the learner
    assert "Time in stages: 2.4 core-minutes (" in page and "rollout 0.0, teacher 0.0, learner 2.4, eval" in page
    for name in ALWAYS:
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
    for name in ALWAYS:
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
    starts = main.loc[[("alfworld-0.5m", "divopd"), ("alfworld-2m", "vanilla")]]
    assert starts[["reported_start", "reported_teacher"]].to_numpy().tolist() == [[7.86, 87.86], [26.43, 87.86]]
    text = (made / "tables" / "main.md").read_text()
    assert "Start (reported)" in text and "Teacher (reported)" in text and "26.4" in text


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
    assert all(MarkerStyle(entry.marker).is_filled() for entry in (*looks, *(look(n, "abcdef") for n in "abcdef")))
    assert np.all([entry.label in "abc" for entry in spare])
