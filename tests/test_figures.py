"""Figures: they are drawn, named, the same again, and hold what they claim to show."""

from __future__ import annotations

from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd
import pytest
from matplotlib.image import imread

from divopd.analysis import figures, tables
from divopd.analysis.report import FIGURES, report
from synthetic import SHAPES, cell, write_run


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("figures")
    for setting in ("alfworld-0.5m", "alfworld-2m"):
        for method in SHAPES:
            write_run(root, cell(setting, method))
    report(root, root, root / "drawn", "collect")
    report(root, root, root / "drawn", "figures")
    return root


def load(made: Path, name: str) -> pd.DataFrame:
    return pd.read_csv(made / f"{name}.csv")


@pytest.mark.parametrize("name", FIGURES)
def test_each_figure_is_there_as_png_and_pdf(made: Path, name: str):
    pixels = imread(made / "drawn" / f"{name}.png")
    assert min(pixels.shape[:2]) > 300
    assert pixels[..., :3].std() > 0.05  # not a blank page
    assert (made / "drawn" / f"{name}.pdf").read_bytes().startswith(b"%PDF")


def test_the_same_data_gives_the_same_bytes(made: Path, tmp_path: Path):
    maker = {"learning_curves": lambda: figures.learning_curves(load(made, "curves"), load(made, "summary"))}
    for path in figures.draw(maker, tmp_path):
        assert path.read_bytes() == (made / "drawn" / path.name).read_bytes()


def test_learning_curves_show_the_logged_points(made: Path):
    curves = load(made, "curves")
    fig = figures.learning_curves(curves, load(made, "summary"))
    ax = fig.axes[0]
    drawn = [tuple(line.get_ydata()) for line in ax.get_lines() if len(line.get_xdata()) == 7]
    for method in SHAPES:
        part = curves[(curves["setting"] == "alfworld-0.5m") & (curves["method"] == method)]
        assert tuple(part["success"]) in drawn
    assert ax.get_xlabel() == "Learner updates" and ax.get_ylabel()
    assert fig.axes[1].get_xlabel() == "Trained tokens (prompt + response)"
    words = {text.get_text() for text in ax.texts}
    assert {"start", "target"} <= words
    plt.close(fig)


def test_lines_differ_without_colour(made: Path):
    fig = figures.learning_curves(load(made, "curves"), load(made, "summary"))
    handles = fig.legends[0].get_lines()
    assert len({(h.get_linestyle(), h.get_marker(), str(h._unscaled_dash_pattern)) for h in handles}) == len(SHAPES)
    plt.close(fig)


def test_efficiency_draws_speedups_bounds_and_reported_values(made: Path):
    frame = tables.main_table(load(made, "summary"), {"alfworld-0.5m": "alfworld-qwen3-1.7b"}).frame
    frame.loc[frame["method"] == "divopd_base", ["speedup_trained_tokens", "bound_trained_tokens"]] = [0.5, "<"]
    fig = figures.efficiency(frame, {"alfworld-0.5m": "alfworld-qwen3-1.7b"})
    ax = fig.axes[0]
    heights = [round(bar.get_height(), 6) for bar in ax.patches]
    for value in frame["speedup_trained_tokens"].dropna():
        assert round(value, 6) in heights
    assert [text.get_text() for text in ax.texts].count("<") == 3  # two settings and so their mean
    marks = [line.get_ydata()[0] for line in ax.get_lines() if line.get_marker() == "D"]
    assert 2.05 in marks  # the paper's token speedup of DivOPD on Qwen3-1.7B
    plt.close(fig)


def test_figures_survive_missing_values(made: Path):
    summary = load(made, "summary").assign(target=float("nan"))
    for column in summary.columns[summary.columns.str.startswith("speedup_")]:
        summary[column] = float("nan")
    nothing = load(made, "speedups").iloc[:0]
    for fig in (
        figures.learning_curves(load(made, "curves"), summary),
        figures.efficiency(tables.main_table(summary, {}).frame, {}),
        figures.speedup_by_target(nothing, summary),
        figures.batch_diagnostics(load(made, "diagnostics").assign(kl_per_token=float("nan")), {}),
    ):
        fig.canvas.draw()
        plt.close(fig)


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


def test_efficiencys_mean_is_a_bound_where_a_setting_is():
    frame = pd.DataFrame([{"setting": s, "method": "divopd", "speedup_trained_tokens": v, "bound_trained_tokens": b,
                           "speedup_learner_seconds": v, "bound_learner_seconds": b}
                          for s, v, b in (("one", 4.0, ""), ("two", 0.25, "<"))])  # fmt: skip
    fig = figures.efficiency(frame, {})
    ax = fig.axes[0]
    assert [round(bar.get_height(), 6) for bar in ax.patches] == [4.0, 0.25, 1.0]
    assert [text.get_text() for text in ax.texts].count("<") == 2
    plt.close(fig)
