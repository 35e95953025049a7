"""Figures: they are drawn, named, the same again, and hold what they claim to show."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd
import pytest
from matplotlib.image import imread

from divopd.analysis import figures, style
from divopd.analysis import figures_batch as batch
from divopd.analysis.report import FIGURES, report
from divopd.analysis.style import NothingToDrawError, draw
from synthetic import SHAPES, cell, write_run

LEFT_OUT = {"recovery_tradeoff", "takeovers_over_training"}


@pytest.fixture(scope="module")
def collected(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The CSVs of runs made from formulas."""
    root = tmp_path_factory.mktemp("figures")
    for setting in ("alfworld-0.5m", "alfworld-2m"):
        for method in SHAPES:
            write_run(root, cell(setting, method))
    report(root, root, root / "drawn", "collect")
    return root


@pytest.fixture(scope="module")
def made(collected: Path) -> Path:
    """The same with their figures, in its folder drawn."""
    root = collected
    (root / "drawn").mkdir()
    (root / "drawn" / "recovery_tradeoff.png").touch()  # of other runs
    lines = report(root, root, root / "drawn", "figures")
    [line] = [line for line in lines if "left out" in line]
    assert line.startswith(f"{len(LEFT_OUT)} figures left out") and line.endswith("left_out.md says what each needs")
    details = re.findall("^- ([a-z ]+):", (root / "drawn" / "left_out.md").read_text(), re.MULTILINE)
    assert [name.replace(" ", "_") for name in details] == [name for name in FIGURES if name in LEFT_OUT]
    return root


def load(made: Path, name: str) -> pd.DataFrame:
    return pd.read_csv(made / f"{name}.csv")


@pytest.mark.parametrize("name", [name for name in FIGURES if name not in LEFT_OUT])
def test_each_figure_is_there_as_png_and_pdf(made: Path, name: str):
    pixels = imread(made / "drawn" / f"{name}.png")
    assert min(pixels.shape[:2]) > 300
    assert pixels[..., :3].std() > 0.05  # not a blank page
    assert (made / "drawn" / f"{name}.pdf").read_bytes().startswith(b"%PDF")


def test_a_figure_without_runs_is_left_out_and_its_old_files_go(made: Path):
    """These runs have no teacher that acts."""
    assert not any((made / "drawn" / f"{name}.{kind}").exists() for name in LEFT_OUT for kind in ("png", "pdf"))
    with pytest.raises(NothingToDrawError, match="needs three of vanilla, gate_only, .* there are vanilla"):
        figures.variant_chain(load(made, "summary").query("method == 'vanilla'"))


def test_the_same_data_gives_the_same_bytes(made: Path, tmp_path: Path):
    maker = {"learning_curves": lambda: figures.learning_curves(load(made, "curves"), load(made, "summary"))}
    for path in draw(maker, tmp_path)[0]:
        assert path.read_bytes() == (made / "drawn" / path.name).read_bytes()


RC = """
backend: module://nowhere.backend
text.usetex: True
font.family: serif
axes.facecolor: pink
figure.facecolor: yellow
figure.dpi: 20
lines.linewidth: 9
axes.prop_cycle: cycler('color', ['r', 'g'])
axes.formatter.use_locale: True
savefig.transparent: True
pdf.compression: 0
path.simplify: False
"""


def test_a_users_settings_change_no_byte(collected: Path, made: Path, tmp_path: Path):
    (tmp_path / "mpl" / "stylelib").mkdir(parents=True)
    (tmp_path / "mpl" / "matplotlibrc").write_text(RC)
    (tmp_path / "mpl" / "stylelib" / "default.mplstyle").write_text("axes.facecolor: pink")
    theirs = {
        "MPLCONFIGDIR": str(tmp_path / "mpl"), "MPLBACKEND": "module://matplotlib_inline.backend_inline",
        "PYTHONHASHSEED": "7", "TZ": "Asia/Tokyo", "LC_ALL": "C", "PYTHONUTF8": "0", "SOURCE_DATE_EPOCH": "1",
        "COLUMNS": "20", "PYTHONIOENCODING": "utf-8",
    }  # fmt: skip
    command = [sys.executable, "-m", "divopd.cli", "report", str(collected), "--out", str(tmp_path / "out")]
    shutil.copytree(collected, tmp_path / "out", ignore=shutil.ignore_patterns("drawn", "alfworld*", "tables"))
    for stage in ("tables", "figures", "page"):
        command += ["--stage", stage]
    ran = subprocess.run(command, env=os.environ | theirs, capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stderr[-2000:]
    report(made, tmp_path / "plain", tmp_path / "plain" / "figures", "collect")
    report(made, tmp_path / "plain", tmp_path / "plain" / "figures", "tables")
    drawn = sorted(path.name for path in (made / "drawn").iterdir())
    assert sorted(path.name for path in (tmp_path / "out" / "figures").iterdir()) == drawn
    for name in drawn:
        assert (tmp_path / "out" / "figures" / name).read_bytes() == (made / "drawn" / name).read_bytes(), name
    for path in (tmp_path / "plain" / "tables").iterdir():
        assert (tmp_path / "out" / "tables" / path.name).read_bytes() == path.read_bytes(), path.name


def test_a_notebooks_backend_stays_as_it_was():
    code = (
        "import divopd.analysis.style, os, matplotlib; print(os.environ['MPLBACKEND'], matplotlib.rcParams['backend'])"
    )
    env = os.environ | {"MPLBACKEND": "svg"}
    ran = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=120)
    assert ran.stdout.split() == ["svg", "svg"], ran.stderr


def test_learning_curves_show_the_logged_points(collected: Path):
    curves = load(collected, "curves")
    fig = figures.learning_curves(curves, load(collected, "summary"))
    ax = fig.axes[0]
    drawn = [tuple(line.get_ydata()) for line in ax.get_lines() if len(line.get_xdata()) == 7]
    for method in SHAPES:
        part = curves[(curves["setting"] == "alfworld-0.5m") & (curves["method"] == method)]
        assert tuple(part["success"]) in drawn
    assert ax.get_xlabel() == "Learner updates" and ax.get_ylabel()
    assert "Trained tokens" in {other.get_xlabel() for other in fig.axes}
    words = {text.get_text() for text in ax.texts}
    assert {"start", "target"} <= words
    plt.close(fig)


def test_lines_differ_without_colour(collected: Path):
    fig = figures.learning_curves(load(collected, "curves"), load(collected, "summary"))
    handles = fig.legends[0].get_lines()
    assert len({(h.get_linestyle(), h.get_marker(), str(h._unscaled_dash_pattern)) for h in handles}) == len(SHAPES)
    plt.close(fig)


def test_efficiency_draws_speedups_bounds_and_reported_values(collected: Path):
    summary = load(collected, "summary")
    summary["bound_trained_tokens"] = summary["bound_trained_tokens"].astype(object)  # all of them empty here
    summary.loc[summary["method"] == "divopd_base", ["speedup_trained_tokens", "bound_trained_tokens"]] = [0.5, "<"]
    fig = figures.efficiency(summary, {"alfworld-0.5m": "alfworld-qwen3-1.7b"})
    ax = fig.axes[0]
    tops = [round(bar.get_y() + bar.get_height(), 6) for bar in ax.patches]
    others = summary[summary["method"] != "vanilla"]  # one seed: a cell's speedup is its run's
    for value in others["speedup_trained_tokens"].dropna():
        assert round(value, 6) in tops
    marks = [(line.get_marker(), line.get_ydata()[0]) for line in ax.get_lines()]
    # two settings, and their geometric mean, which a bound makes a bound
    assert [y for mark, y in marks if mark == "v"] == pytest.approx([0.5, 0.5, 0.5])
    assert ("_", 2.05) in marks  # the paper's token speedup of DivOPD on Qwen3-1.7B
    assert ("_", 1.28) in [(line.get_marker(), line.get_ydata()[0]) for line in fig.axes[2].get_lines()]  # wall
    plt.close(fig)


def test_figures_survive_missing_values(collected: Path):
    summary = load(collected, "summary").assign(target=float("nan"))
    for column in summary.columns[summary.columns.str.startswith("speedup_")]:
        summary[column] = float("nan")
    nothing = load(collected, "speedups").iloc[:0]
    for fig in (
        figures.learning_curves(load(collected, "curves"), summary),
        figures.speedup_by_target(nothing, summary),
        batch.batch_diagnostics(load(collected, "diagnostics").assign(kl_per_token=float("nan")), {}),
    ):
        fig.canvas.draw()
        plt.close(fig)
    with pytest.raises(NothingToDrawError, match="no target was reached"):
        figures.efficiency(summary, {})


def test_speedup_by_target_draws_no_mean_of_the_seeds_that_got_there():
    setting = "s"
    cells = [{"setting": setting, "method": m, "seed": n} for m in ("vanilla", "divopd") for n in (0, 1)]
    summary = pd.DataFrame(cells).assign(start=0.1, target=0.3, baseline="vanilla")
    gains = {0.2: (4.0, 1.0), 0.3: (8.0, None), 0.4: (2.0, 8.0)}
    rows = [{"setting": setting, "method": "divopd", "seed": n, "target": t, "speedup_trained_tokens": pair[n]}
            for t, pair in gains.items() for n in (0, 1)]  # fmt: skip
    fig = figures.speedup_by_target(pd.DataFrame(rows), summary)
    drawn = [line for line in fig.axes[0].get_lines() if line.get_marker() == "D"]
    assert [(list(line.get_xdata()), [round(y, 6) for y in line.get_ydata()]) for line in drawn] == [
        ([0.2, 0.4], [2.0, 4.0])
    ]
    plt.close(fig)


def test_focus_and_disagreement_show_the_sums():
    """Every period of a run counts by its updates: means 1 and 3 over 1 and 3 updates are 2.5."""
    rows = [{"setting": "s", "method": m, "seed": 0, "period": p, "turns": 80.0, "rollouts": 40.0, "steps": 2.0,
             "crowding": 4.0, "square_between": 38.0 * 16, "square_within": 40.0 * 2, "updates": n,
             "selected_mean_sum": n * mean * 2, "queue_mean_sum": n * mean}
            for m in ("vanilla", "divopd") for p, n, mean in ((0, 1.0, 1.0), (1, 3.0, 3.0))]  # fmt: skip
    sums = pd.DataFrame(rows)
    ax = batch.focus(sums).axes[0]
    xs = [float(line.get_xdata()[0]) for line in ax.get_lines() if line.get_marker() == "o"]
    assert xs == [2.5, 5.0] * 2 and ax.get_xlabel() == "Disagreement (nats a turn)"
    summary = pd.DataFrame({"setting": ["s"], "horizon": [10]})
    fig = batch.disagreement(sums, summary)
    n0 = (80 - 4) / 38
    between = (16 - 2) / n0
    dots = [line for line in fig.axes[-1].get_lines() if line.get_marker() in ("o", "D") and len(line.get_xdata()) == 1]
    assert [float(dot.get_ydata()[0]) for dot in dots] == pytest.approx([between / (between + 2)] * 2)
    plt.close("all")


def test_selected_depth_shows_shares_of_thirds():
    """12 turns queued, a third each; 4 selected: one early failure, three late successes."""
    rows = [(0, False, 2, 1), (1, False, 2, 0), (2, False, 2, 0), (0, True, 2, 0), (1, True, 2, 0), (2, True, 2, 3)]
    depths = pd.DataFrame(rows, columns=["turn", "success", "queued", "selected"])
    fig = batch.selected_depth(depths.assign(setting="s", method="divopd", seed=0))
    ax = fig.axes[0]
    assert ax.get_title(loc="left") == "s: turns 1–1, 2–2, later"
    thick = [bar.get_width() for bar in ax.patches if bar.get_height() > 0.3]
    thin = [bar.get_width() for bar in ax.patches if bar.get_height() < 0.3]
    assert thick == pytest.approx([0.25, 0, 0, 0, 0, 0.75]) and thin == pytest.approx([1 / 6] * 6)
    plt.close(fig)


def test_the_chain_shows_means_seeds_and_intervals():
    chain = {"vanilla": (0.1, 0.2, 0.3), "gate_only": (0.2, 0.2, 0.2), "divopd": (0.4, 0.5, 0.6)}
    rows = [{"setting": "s", "method": m, "seed": i, "final5_mean": v}
            for m, values in chain.items() for i, v in enumerate(values)]  # fmt: skip
    fig = figures.variant_chain(pd.DataFrame(rows))
    ax = fig.axes[0]
    assert [text.get_text() for text in ax.get_xticklabels()] == ["Vanilla", "+ gate", "+ spread, focus"]
    [mean] = [line for line in ax.get_lines() if line.get_color() == "black"]
    assert mean.get_ydata() == pytest.approx([0.2, 0.2, 0.5])
    # 97.5 % quantile of t with two degrees of freedom, standard deviation 0.1
    [bars] = ax.containers[0].lines[2]
    assert bars.get_segments()[0][:, 1] == pytest.approx([0.0, 0.2 + 4.302652730 * 0.1 / 3**0.5])  # no rate is below 0
    plt.close(fig)


def test_two_seeds_are_shown_by_their_range():
    assert [float(v) for v in style.spread([1.0, 2.0])] == [1.5, 1.0, 2.0]
    # three: 0.5 +- 4.3027 * 0.5 / sqrt(3), which for a rate is cut at 0 and 1
    assert [float(v) for v in style.spread([0.0, 0.5, 1.0])] == pytest.approx([0.5, -0.7421, 1.7421], abs=1e-4)
    assert [float(v) for v in style.rate_spread([0.0, 0.5, 1.0])] == [0.5, 0.0, 1.0]
    assert style.spread_note(2) == "2 seeds: mean, least and largest" and style.spread_note(1) == ""
