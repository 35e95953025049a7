"""Every suite of a folder drawn again from its CSVs: the same bytes, pages last, and past what is broken."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from divopd.analysis import redraw as work
from divopd.analysis.report import report
from divopd.cli_audit import redraw
from divopd.cli_audit import sweep as command


def test_redraw_gives_the_same_bytes_and_goes_past_what_is_broken(collected_sweep: tuple[Path, Path], tmp_path: Path):
    results, suite = collected_sweep
    broken = results.parent / "broken"
    broken.mkdir()
    (broken / "summary.csv").touch()
    CliRunner().invoke(command, [str(results), "--suite", str(suite), "--figures", str(tmp_path / "a" / "synthetic")])
    again = CliRunner().invoke(redraw, [str(results.parent), "--figures", str(tmp_path / "b"), "--jobs", "2"])
    assert again.exit_code == 1 and "Error: 1 of 2 suites could not be drawn; the others are" in again.output
    assert re.search(r"redraw \d/2: \S*broken/summary.csv is corrupt; run `divopd report", again.output)
    for kind in ("png", "pdf"):
        first, second = (tmp_path / side / "synthetic" / f"sweep.{kind}" for side in "ab")
        assert first.read_bytes() == second.read_bytes()


def test_a_page_shows_the_sweeps_whichever_is_drawn_first(
    collected_sweep: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    results, suite = collected_sweep
    CliRunner().invoke(command, [str(results), "--suite", str(suite)])
    sweep_of = results.parent / "sweep-load"  # by its name the load sweep of every suite beside it
    shutil.copytree(results, sweep_of)
    (results / "sweep.csv").unlink()

    def noted(folder: Path, out: Path, figures: Path, stage: str) -> list[str]:
        (tmp_path / f"{folder.name}-{stage}").touch()
        return report(folder, out, figures, stage) if stage == "page" else []

    monkeypatch.setattr(work, "report", noted)
    assert [error for _, error in work.redraw([results, sweep_of], tmp_path / "new", 1)] == [None, None]
    assert "new/sweep-load/sweep.png)" in (results / "report.md").read_text()
    stages = {f"{name}-{stage}" for name in ("synthetic", "sweep-load") for stage in ("tables", "page")}
    assert {path.name for path in tmp_path.glob("s*-*")} == {
        *stages,
        "synthetic-figures",
    }  # of a sweep, sweep.png alone
