"""The shipped checkpoints do what docs/models.md says, within what 24 episodes can tell."""

from __future__ import annotations

from pathlib import Path

import pytest

from divopd.panel import scores
from divopd.provenance import ROOT
from divopd.suite import load_suite


@pytest.fixture
def cells(game_cache: Path):
    """The demo's cells, with panel and models found from anywhere and the test's game cache."""
    out = []
    for cell in load_suite(ROOT / "experiments" / "demo.yaml"):
        env = cell.env.model_copy(
            update={"cache_dir": str(game_cache), "eval_panel": str(ROOT / cell.env.eval_panel)},
        )
        policies = {
            who: getattr(cell, who).model_copy(update={"path": str(ROOT / getattr(cell, who).path)})
            for who in ("student", "teacher")
        }
        out.append(cell.model_copy(update={"env": env, **policies}))
    return out


@pytest.mark.slow
def test_teacher_is_good_and_students_are_not_yet(cells):
    found = {(one.setting, one.who): one for one in scores(cells, 24)}
    small = ("alfworld-0.5m", "scienceworld-0.5m", "webshop-0.5m")
    assert set(found) == {(setting, who) for setting in small for who in ("teacher", "student")}
    for (_, who), one in found.items():
        share = one.successes / one.episodes
        if who == "teacher":
            assert share > 0.7 and one.kl is None
        else:
            assert 0.04 < share < 0.6
            assert 0.1 < one.kl < 1.0 and one.parameters < 0.6e6


def test_a_line_of_the_panel():
    from divopd.panel import PanelScore

    line = PanelScore("s", "teacher", "p", 890_000, 120, 140, None).line()
    # Wilson interval of 120 of 140, worked out by hand: (0.85714 + 0.01372) / 1.02744 -+ 0.05798
    assert "0.89 M" in line and "85.7%" in line and "[79.0%, 90.6%]" in line and "KL" not in line
