"""The audit of a finished run: pools made again, the teacher playing on from them, and the command."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file

from divopd.audit.measure import choose
from divopd.audit.rebuild import rebuild
from divopd.audit.rescue import _earlier, _play_on, rescued
from divopd.candidates import Candidates
from divopd.cli_audit import audit as command
from divopd.runlog import RunLogError, read_table
from divopd.seeds import seed as named_seed
from divopd.selection import load_rule
from divopd.train import train
from divopd.types import Actor
from train_runs import quiet


@pytest.fixture(scope="module")
def runs() -> dict[str, Path]:
    return {}


def finished(rule: str, tiny_cell: Any, tmp_path_factory: pytest.TempPathFactory, runs: dict[str, Path]) -> Path:
    if rule not in runs:
        runs[rule] = tmp_path_factory.mktemp("run") / rule
        assert train(tiny_cell(rule), runs[rule], quiet) == "done"
    return runs[rule]


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["vanilla", "divopd"])
def test_pool_and_weights_are_those_of_the_run(rule: str, tiny_cell: Any, tmp_path_factory: Any, runs: dict[str, Path]):
    run_dir = finished(rule, tiny_cell, tmp_path_factory, runs)
    moment = rebuild(run_dir, 3, quiet)
    (saved,) = (run_dir / "checkpoints").glob("v00003-*.safetensors")
    state = moment.learner.model.state_dict()
    assert all(torch.equal(state[name], tensor) for name, tensor in load_file(saved).items())
    # the run's own rule, on the rebuilt pool, chooses the recorded batch
    config, pool = moment.config, Candidates.from_turns(moment.turns, 3)
    own = load_rule(rule, config.method.params)
    (batch,) = choose(own, moment.turns, pool, config.train.batch_rows, [named_seed(config.seed, "rule")])
    recorded = read_table(run_dir, "turns").to_pandas()
    assert sorted(pool.arrival[batch.rows]) == sorted(recorded.loc[recorded["selected_at"] == 3, "arrival"])
    assert len(moment.turns) <= config.train.pool_factor * config.train.batch_rows + 1
    assert (pool.age <= config.train.max_staleness).all() and (pool.first_seen >= 0).sum() >= len(batch.rows)
    of = recorded.set_index("arrival").loc[pool.arrival]
    np.testing.assert_array_equal(of["disagreement"].to_numpy(), pool.disagreement)


@pytest.mark.slow
def test_what_cannot_be_made_again_is_one_line(tiny_cell: Any, tmp_path_factory: Any, runs: dict[str, Path]):
    run_dir = finished("divopd", tiny_cell, tmp_path_factory, runs)
    with pytest.raises(RunLogError, match="no update 6: choose --update from 0 to 5"):
        rebuild(run_dir, 6, quiet)
    config = run_dir / "config.yaml"
    plain = config.read_text()
    config.write_text(plain.replace("reduction: row_mean", "reduction: token_mean"))
    try:
        with pytest.raises(RunLogError, match="another loss .*token_mean"):
            rebuild(run_dir, 3, quiet)
    finally:
        config.write_text(plain)
    kept = (run_dir / "turns.parquet").read_bytes()
    table = read_table(run_dir, "turns")
    scores = table.column("student_nll").to_pylist()
    at, i = next(k for k, score in enumerate(scores) if score is not None), table.schema.get_field_index("student_nll")
    near, far = ([s + by if k == at else s for k, s in enumerate(scores)] for by in (5e-5, 2e-4))
    try:
        # another processor's sums: the run is the same
        pq.write_table(table.set_column(i, table.schema.field(i), pa.array(near)), run_dir / "turns.parquet")
        rebuild(run_dir, 3, quiet)
        pq.write_table(table.set_column(i, table.schema.field(i), pa.array(far)), run_dir / "turns.parquet")
        with pytest.raises(RunLogError) as caught:
            rebuild(run_dir, 3, quiet)
    finally:
        (run_dir / "turns.parquet").write_bytes(kept)
    text = str(caught.value)
    assert "student_nll" in text and "train it again here" in text and "\n" not in text


@pytest.mark.slow
def test_the_command(tiny_cell: Any, tmp_path_factory: Any, runs: dict[str, Path], tmp_path: Path):
    run_dir = finished("divopd", tiny_cell, tmp_path_factory, runs)
    arguments = [str(run_dir), "--update", "4", "--seeds", "3", "--progress", "none", "--out"]
    done = CliRunner().invoke(command, [*arguments, str(tmp_path / "a")], catch_exceptions=False)
    assert done.exit_code == 0 and "Gradient audit, tiny, divopd, seed 0, update 4" in done.output
    frame = pd.read_csv(tmp_path / "a" / "audit.csv").set_index("rule")
    assert {"vanilla", "divopd_base", "divopd", "top_b", "oracle"} <= set(frame.index)
    assert frame["cosine"].between(-1, 1).all()
    assert (frame["projection"] <= frame.loc["oracle", "projection"] + 1e-9).all()
    assert frame.loc["vanilla", "reported_projection"] == 1.74
    checks = pd.read_csv(tmp_path / "a" / "audit_checks.csv")
    assert (checks.loc[checks["expected"] == 0, "distance"] < 1e-5).all()
    assert (tmp_path / "a" / "audit.png").stat().st_size > 20_000
    names = ["--rule", "divopd", "--rule", "vanilla", "--sketch", "4096", "--whole", "--rescue", "1"]
    CliRunner().invoke(command, [*arguments, str(tmp_path / "b"), *names], catch_exceptions=False)
    sketched = pd.read_csv(tmp_path / "b" / "audit.csv").set_index("rule")
    assert list(sketched.index) == ["vanilla", "divopd", "oracle"]
    assert sketched.loc["divopd", "cosine"] == pytest.approx(frame.loc["divopd", "cosine"], abs=0.08)
    assert sketched[["true_cosine", "choice_cosine", "noise_cosine"]].stack().between(-1, 1).all()
    assert sketched[["won", "rescued"]].stack().between(0, 1).all()
    page = (tmp_path / "b" / "audit.md").read_text()
    assert "Signal and lost causes" in page and "Signal" not in (tmp_path / "a" / "audit.md").read_text()


@pytest.mark.slow
def test_the_teacher_plays_on_from_the_recorded_state(tiny_cell: Any, tmp_path_factory: Any, runs: dict[str, Path]):
    run_dir = finished("divopd", tiny_cell, tmp_path_factory, runs)
    moment = rebuild(run_dir, 3, quiet)
    before = _earlier(moment)
    jobs = [(i, 0) for i, turns in enumerate(before) if turns]
    assert len(jobs) > 3
    size = len(moment.run.envs)
    for begin in range(0, len(jobs), size):
        part = jobs[begin : begin + size]
        for (i, _), rollout in zip(part, _play_on(moment, part, before), strict=True):
            start = len(before[i])
            assert [turn.action for turn in rollout.turns[:start]] == [turn.action for turn in before[i]]
            assert {turn.actor for turn in rollout.turns[:start]} == {Actor.STUDENT}
            assert {turn.actor for turn in rollout.turns[start:] if turn.response_tokens} <= {Actor.TEACHER}
            # the state is the recorded one: the same words stand before the turn
            mine, theirs = rollout.turns[start], moment.turns[i]
            np.testing.assert_array_equal(mine.context[: mine.start], theirs.context[: theirs.start])
    shares = rescued(moment, 2, quiet)
    dead = [turn.prompt_truncated for turn in moment.turns]
    np.testing.assert_array_equal(np.isnan(shares), dead)
    assert set(np.unique(shares[~np.isnan(shares)])) <= {0.0, 0.5, 1.0}
    np.testing.assert_array_equal(shares, rescued(moment, 2, quiet))
