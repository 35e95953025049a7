"""Success by other rules, from the same episodes."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from divopd.analysis.collect import curve, summarise
from divopd.analysis.runs import load_run
from divopd.analysis.scores import by_rule, scores_table
from divopd.runlog import RunLog, mark_evaluated
from synthetic import cell, row

# strict success; a purchase of the wrong thing; a wrong focus; still going at the turn limit; over with nothing
EPISODES = [
    ("success", True, 1.0),
    ("done", False, 0.75),
    ("done", False, -1.0),
    ("turn_limit", False, 0.5),
    ("done", False, 0.0),
]


def test_rules_worked_by_hand() -> None:
    evals = pd.DataFrame([{"stop": stop, "success": won, "score": score} for stop, won, score in EPISODES])
    rules = by_rule(evals)
    assert rules["rate_done"].tolist() == [True, True, True, False, True]
    assert rules["rate_done_positive"].tolist() == [True, True, False, False, False]
    assert rules["mean_score"].tolist() == [1.0, 0.75, 0.0, 0.5, 0.0]


@pytest.mark.parametrize("scored", [True, False])
def test_table_from_a_run(tmp_path: Path, scored: bool) -> None:
    config = cell()
    log = RunLog.open(config.run_dir(tmp_path), config)
    log.add("updates", [row("updates", update=q) for q in range(4)])
    for version in (0, 4):
        log.add("evals", [
            row("evals", version=version, episode=i, stop=stop, success=won, score=score if scored else None)
            for i, (stop, won, score) in enumerate(EPISODES)
        ])  # fmt: skip
    log.finish("done", updates=4)
    mark_evaluated(config.run_dir(tmp_path))
    run = load_run(config.run_dir(tmp_path))
    table = scores_table(summarise(curve(run), [run]))
    score = ["40.0", "45.0"] if scored else ["\u2013", "\u2013"]
    assert table.rows == [["alfworld-0.5m", "Vanilla OPD", "20.0 (of 1)", "80.0", *score]]
