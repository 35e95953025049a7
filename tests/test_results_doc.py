"""What README and docs/results.md say of the committed results is what the committed CSVs hold."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

from divopd.analysis.uncertainty import mean_interval

ROOT = Path(__file__).resolve().parent.parent
PAGE, README = ((ROOT / name).read_text().replace("−", "-") for name in ("docs/results.md", "README.md"))
LAPTOP = ROOT / "results" / "laptop-reference"
SETTINGS = [f"{env}-{size}" for size in ("0.5m", "2m") for env in ("alfworld", "scienceworld", "webshop")]
DEMO = SETTINGS[:3]


def rows_under(text: str, heading: str) -> list[list[str]]:
    """Cells of the Markdown table that starts with this heading, the heading's row first."""
    table = text[text.index(heading) :].split("\n\n")[0]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]
    return [cells[0], *cells[2:]]


def means(suite: str, name: str, file: str = "diagnostics") -> Callable[[str, str], float]:
    """Mean over seeds of a column, by setting and method."""
    frame = pd.read_csv(ROOT / "results" / f"{suite}-reference" / f"{file}.csv")
    table = frame.groupby(["setting", "method"])[name].mean()
    return lambda setting, method: float(table[setting, method])


def gain(suite: str, setting: str, method: str, signs: str = "+.1f") -> str:
    """Of final-5 over vanilla of the same seed, in points, with its interval."""
    wide = finals(suite, setting)
    mean, low, high = (100 * v for v in mean_interval((wide[method] - wide["vanilla"]).dropna().to_numpy()))
    return f"{mean:+.1f} [{low:{signs}}, {high:{signs}}]"


def finals(suite: str, setting: str) -> pd.DataFrame:
    """final-5, a row a seed and a column a method."""
    summary = pd.read_csv(ROOT / "results" / f"{suite}-reference" / "summary.csv")
    return summary[summary["setting"] == setting].pivot(index="seed", columns="method", values="final5_mean")


@pytest.mark.parametrize(
    ("heading", "table", "renamed"),
    [
        ("| Setting | Method | Start |", "main", {}),
        ("| over six settings", "aggregate",
         {0: "Method", 1: "Final-5, IQM", 2: "Gain", 3: "P(better than baseline)", 4: "Reach rate"}),
    ],
)  # fmt: skip
def test_tables_are_columns_of_those_that_the_report_writes(heading: str, table: str, renamed: dict[int, str]):
    shown, made = rows_under(PAGE, heading), (LAPTOP / "tables" / f"{table}.md").read_text()
    whole = rows_under(made, "| Setting" if table == "main" else "| Method")
    columns = [whole[0].index(renamed.get(place, name)) for place, name in enumerate(shown[0])]
    assert shown[1:] == [[row[column] for column in columns] for row in whole[1:]]


@pytest.mark.parametrize(
    ("line", "column", "method", "digits", "scale"),
    [
        ("| vanilla's batch comes from few", "effective_rollouts", "vanilla", 1, 1),
        ("| DivOPD's from many", "effective_rollouts", "divopd", 1, 1),
        ("| vanilla leaves most rollouts", "never_selected_share", "vanilla", 0, 100),
        ("| DivOPD few", "never_selected_share", "divopd", 0, 100),
        ("| its KL a token", "kl_per_token", "divopd", 2, 1),
        ("| its KL a token", "kl_per_token", "vanilla", 2, 1),
    ],
)  # fmt: skip
def test_claims_about_batches(line: str, column: str, method: str, digits: int, scale: int):
    said = PAGE[PAGE.index(line) :].splitlines()[0].split("|")[2]
    of = means("laptop", column)
    for settings in (SETTINGS[:3], SETTINGS[3:]):
        assert " / ".join(f"{scale * of(s, method):.{digits}f}" for s in settings) in said


def test_claims_about_success():
    for line, method, beside in (("| spread alone", "divopd_base", "vanilla"), ("| DivOPD beats", "divopd", "vanilla"),
                                 ("| recovery adds", "divopd_recovery", "divopd")):  # fmt: skip
        said = PAGE[PAGE.index(line) :].splitlines()[0].replace("*", "")
        said = re.sub(r" \[[^]]*\]", "", said)
        of = means("laptop", "final5_mean", "summary")
        want = [f"{100 * (of(s, method) - of(s, beside)):+.1f}" for s in SETTINGS]
        assert f"{', '.join(want[:3])}; {', '.join(want[3:])}" in said
    speedups = {row[0]: row[6] for row in rows_under(PAGE, "| Setting | Method | Start |") if row[1] == "DivOPD"}
    said = PAGE[PAGE.index("| token speedup") :].splitlines()[0].split("|")[2]
    short = [re.sub(r"– \((.*)\)", r"\1", speedups[setting]) for setting in SETTINGS]
    assert f"{', '.join(short[:3])}; {', '.join(short[3:])}" == said.strip()
    norms = means("laptop", "grad_norm")
    ratios = [norms(s, "divopd") / norms(s, "vanilla") for s in SETTINGS]
    assert f"{min(ratios):.1f} to {max(ratios):.1f} times vanilla's" in PAGE


def test_the_rate():
    shown = [[cell.replace("*", "") for cell in row] for row in rows_under(PAGE, "| final-5, three seeds")[1:]]
    order = [("laptop", "alfworld-2m"), ("rate", "alfworld-2m"), ("laptop", "webshop-2m"), ("rate", "webshop-2m")]
    for row, (suite, setting) in zip(shown, order, strict=True):
        of = finals(suite, setting).mean()
        assert row[1:4] == [f"{100 * of[name]:.1f}" for name in ("vanilla", "divopd_base", "divopd")]
        wide = row[5].endswith("+58]")  # an interval of a hundred points needs no tenths
        assert row[4:] == [gain(suite, setting, "divopd_base"),
                           gain(suite, setting, "divopd", "+.0f" if wide else "+.1f")]  # fmt: skip
    for text in (PAGE, README):
        assert gain("rate", "webshop-2m", "divopd") in re.sub(r", \+7", " +7", text).replace("+7.3, ", "+7.3 ")


def test_controls_and_the_cap():
    of = finals("controls", "alfworld-0.5m")
    heading, row = rows_under(PAGE, "| ALFWorld 0.5 M, final-5 of seed 0, seed 1")
    names = {"vanilla": "vanilla", "won": "success_only", "any": "uniform", "lost": "failure_only"}
    for words, cell in zip(heading[1:], row[1:], strict=True):
        assert cell == ", ".join(f"{100 * v:.1f}" for v in of[names[words.split()[0]]].loc[[0, 1]]), words
    gains = [100 * (of[names[side]] - of["vanilla"]).mean() for side in ("lost", "won")]
    assert "({:+.1f} points against vanilla, won ones {:+.1f})".format(*gains) in PAGE
    for row, setting in zip(rows_under(PAGE, "| DivOPD, final-5 of seed 100")[1:], ("alfworld-0.5m", "webshop-0.5m"),
                            strict=True):  # fmt: skip
        caps = finals("k", setting)
        assert row[1:] == [", ".join(f"{100 * v:.1f}" for v in caps[f"divopd_k{k}"].loc[[100, 101]]) for k in (2, 4, 8)]


def test_the_audits():
    """Rows worth training, cosines, and from how many turns of lost rollouts the teacher cannot win either."""
    audits = {path.parent.name.split("-vanilla")[0]: path.parent for path in LAPTOP.glob("audits/*/audit.csv")}
    shown, cosines, hopeless, sides = [], [], [], ([], [])
    for setting in DEMO:
        rules = pd.read_csv(audits[setting] / "audit.csv").set_index("rule")
        turns = pd.read_csv(audits[setting] / "audit_turns.csv")
        shares = [turns["rescued"].mean(), *rules.loc[["vanilla", "divopd_base", "divopd"], "rescued"]]
        shown.append([*(f"{100 * share:.1f}" for share in shares), gain("laptop", setting, "divopd").split()[0]])
        cosines.append(" / ".join(f"{rules.loc[name, 'true_cosine']:.2f}" for name in ("divopd", "vanilla")))
        hopeless.append(f"{100 * (1 - turns.loc[~turns['won'].astype(bool), 'rescued'].mean()):.0f}")
        for side, name in zip(sides, ("vanilla", "divopd"), strict=True):
            side.append(f"{100 * rules.loc[name, 'rescued']:.0f}")
    assert [row[1:] for row in rows_under(PAGE, "| pool | all live turns |")[1:]] == shown
    assert ", ".join(cosines) in PAGE and f"from {' / '.join(hopeless)} % of which" in PAGE
    vanilla, divopd = (" / ".join(side) for side in sides)
    assert f"wins from {vanilla} % of vanilla's rows and {divopd} % of DivOPD's" in README


def test_the_sweeps():
    frame = pd.read_csv(ROOT / "results" / "sweep-load-reference" / "sweep.csv").set_index(["rule", "value"])
    shown = rows_under(PAGE, "| final-5 | 2 tasks |")[1:]
    for row, rule in zip(shown, ("vanilla", "divopd_base", "divopd"), strict=False):
        ours = [frame.loc[(rule, tasks)] for tasks in (2, 6, 16)]
        names = ("final5_mean", "final5_mean_low", "final5_mean_high")
        assert row[1:] == ["{:.1f} [{:.1f}, {:.1f}]".format(*(100 * one[name] for name in names)) for one in ours]
    assert [cell.split()[0] for cell in shown[3][1:]] == [
        f"{frame.loc[('vanilla', t), 'load']:.2f}" for t in (2, 6, 16)
    ]
    never = [100 * frame.loc[(rule, 16), "never_selected_share"] for rule in ("vanilla", "divopd_base", "divopd")]
    assert f"leaves {never[0]:.0f} % of the rollouts without a trained turn, base and DivOPD {never[1]:.0f} %" in PAGE
    assert f"{never[1]:.0f}" == f"{never[2]:.0f}" and frame.xs(2, level="value")["stale_rows"].eq(0).all()
    frame = pd.read_csv(ROOT / "results" / "sweep-staleness-reference" / "sweep.csv").set_index(["rule", "value"])
    for row, rule in zip(rows_under(PAGE, "| final-5 (mean age")[1:], ("vanilla", "divopd"), strict=True):
        ours = [frame.loc[(rule, versions)] for versions in (1, 2, 4, 8)]
        assert row[1:] == [f"{100 * one['final5_mean']:.1f} ({one['mean_age']:.2f})" for one in ours]
    spread = [f"{one:.1f}" for one in frame.loc["divopd"]["effective_rollouts"].sort_index()]
    assert f"({', '.join(spread[:3])} and {spread[3]} effective rollouts)" in PAGE
    cap = (100 * finals("sweep-cap", "alfworld-0.5m").iloc[0]).map("{:.1f}".format)
    of_divopd = f"{cap['divopd_k4']} at k = 4, {cap['divopd_k8']} at 8 and {cap['divopd_k_inf']} without a cap"
    of_base = f"base {cap['divopd_base_k4']} at k = 4 and {cap['divopd_base_k8']} at 8; vanilla's is {cap['vanilla']}"
    assert f"DivOPD is {of_divopd}, of {of_base}" in PAGE
    access = (100 * finals("sweep-access", "alfworld-0.5m").iloc[0]).map("{:.1f}".format)
    for words, method in (("vanilla", "vanilla"), ("as many turns as DivOPD", "vanilla_256"),
                          ("gate alone", "gate_only"), ("base", "divopd_base"), ("DivOPD", "divopd")):  # fmt: skip
        assert re.search(rf"{words} {access[method]}\b", PAGE), method


def test_the_demos_table_in_the_readme():
    names = ["Setting", "Method", "Start", "Peak", "Final-5", "Token speedup"]
    made = rows_under((ROOT / "results/demo-reference/tables/main.md").read_text(), "| Setting")
    columns = [made[0].index(name) for name in names]
    want = [[row[column] for column in columns] for row in made[1:]]
    shown = rows_under(README, "| setting | method | start |")[1:]
    assert [row[2:] for row in shown] == [row[2:] for row in want]
    assert [row[0] for row in shown if row[0]] == DEMO


def test_the_coverage_table_is_what_its_script_prints():
    """One row of it: all take minutes."""
    spec = importlib.util.spec_from_file_location("coverage_table", ROOT / "scripts" / "coverage.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    row = module.row(pd.read_csv(LAPTOP / "summary.csv"), True, "gain", 3)
    assert row in (ROOT / "docs" / "metrics.md").read_text().splitlines()
