"""Whole runs with tiny models on real games: same bytes twice, and again after being killed anywhere."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
import torch

from divopd.evaluate import evaluate_run
from divopd.learner import DivergedError
from divopd.runlog import RunLogError, mark_evaluated, read_json, read_table, validate
from divopd.train import Trainer, train
from train_runs import Killed, logs, quiet, train_killed

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory, tiny_models, game_cache):
    """One run of each kind of rule, with the cell that made it."""
    return {}


def whole(tiny_cell, tmp_path, undisturbed, rule="divopd"):
    """The logs of an undisturbed run and its cell, made once a rule."""
    if rule not in undisturbed:
        cell = tiny_cell(rule)
        folder = tmp_path / f"whole-{rule}"
        assert train(cell, folder, quiet) == "done"
        undisturbed[rule] = (cell, folder, logs(folder))
    return undisturbed[rule]


@pytest.mark.parametrize("rule", ["vanilla", "divopd"])
def test_same_seed_same_bytes(rule, tiny_cell, tmp_path, undisturbed):
    cell, _, first = whole(tiny_cell, tmp_path, undisturbed, rule)
    assert train(cell, tmp_path / "again", quiet) == "done"
    assert logs(tmp_path / "again") == first


def test_another_seed_is_another_run(tiny_cell, tmp_path, undisturbed):
    cell, _, first = whole(tiny_cell, tmp_path, undisturbed)
    train(cell.model_copy(update={"seed": 1}), tmp_path / "other", quiet)
    assert logs(tmp_path / "other")["updates.parquet"] != first["updates.parquet"]


@pytest.mark.parametrize(
    ("where", "call"),
    [("_explore", 2), ("_learn", 3), ("_learn", 4), ("_publish", 5), ("_save", 2), ("_snapshot", 1), ("_snapshot", 2)],
)
def test_killed_anywhere_it_ends_in_the_same_log(where, call, tiny_cell, tmp_path, undisturbed):
    cell, _, want = whole(tiny_cell, tmp_path, undisturbed)
    folder = tmp_path / "killed"
    train_killed(cell, folder, Trainer, where, call)
    assert not (folder / "status.json").exists()
    assert train(cell, folder, quiet) == "done"
    assert logs(folder) == want


def test_killed_within_a_snapshot_the_older_one_counts(tiny_cell, tmp_path, undisturbed):
    """The log is written before the resume point: it may be ahead, never behind."""
    cell, _, want = whole(tiny_cell, tmp_path, undisturbed)
    folder = tmp_path / "killed"
    train_killed(cell, folder, torch, "save", 2)
    train(cell, folder, quiet)
    assert logs(folder) == want


def test_the_log_tells_the_truth_about_its_turns(tiny_cell, tmp_path, undisturbed):
    """updates.parquet agrees with turns.parquet, which holds every turn that arrived, once, with one fate."""
    cell, folder, _ = whole(tiny_cell, tmp_path, undisturbed)
    turns = read_table(folder, "turns").to_pandas()
    updates = read_table(folder, "updates").to_pandas()
    assert sorted(turns["arrival"]) == list(range(int(updates["arrived_turns"].iloc[-1])))
    assert ((turns["selected_at"] >= 0) != turns["dropped"].notna()).all()
    tokens = turns["prompt_tokens"] + turns["response_tokens"]
    for q, row in updates.set_index("update").iterrows():
        batch = turns[turns["selected_at"] == q]
        shares = tokens[batch.index].groupby([batch["explorer_batch"], batch["task_index"]]).sum() / row["row_tokens"]
        assert len(batch) == row["rows"] == cell.train.batch_rows
        assert tokens[batch.index].sum() == row["row_tokens"]
        assert row["effective_rollouts"] == pytest.approx(1 / np.square(shares).sum())
        assert (q - batch["version"]).max() <= cell.train.max_staleness
        assert row["kl_per_token"] == pytest.approx(batch["disagreement"].sum() / batch["valid_tokens"].sum(), rel=1e-5)


def test_evaluation_resumes_and_keeps_the_last_checkpoint(tiny_cell, tmp_path, undisturbed):
    cell, folder, _ = whole(tiny_cell, tmp_path, undisturbed)
    files = sorted((folder / "checkpoints").glob("*.safetensors"))
    assert [int(f.name[1:6]) for f in files] == [0, 3, 6]

    def stop(done, total, words):
        if done == 2:
            raise Killed

    with pytest.raises(Killed):
        evaluate_run(folder, stop)
    kept = read_table(folder, "evals").to_pandas()
    assert sorted(kept["version"].unique()) == [0, 3]
    evaluate_run(folder, quiet)
    table = read_table(folder, "evals").to_pandas()
    assert table.groupby("version").size().to_dict() == {0: 3, 3: 3, 6: 3}
    assert table["task"].tolist() == [f"gen/eval/{i}" for i in range(3)] * 3
    assert sorted((folder / "checkpoints").glob("*.safetensors")) == files[-1:]
    before = (folder / "evals.parquet").read_bytes()
    evaluate_run(folder, quiet)
    assert (folder / "evals.parquet").read_bytes() == before
    validate(folder)


def test_evaluation_without_a_run_is_named(tiny_cell, tmp_path):
    with pytest.raises(RunLogError, match="config.yaml is missing"):
        evaluate_run(tmp_path, quiet)


def test_a_diverged_run_is_data(tiny_cell, tmp_path):
    cell = tiny_cell(train={"updates": 6, "batch_rows": 8, "learning_rate": 1e30})
    assert train(cell, tmp_path / "run", quiet) == "diverged"
    status = json.loads((tmp_path / "run" / "status.json").read_text())
    assert status["status"] == "diverged" and re.match(r"update \d+: (loss|weights) ", status["reason"])
    assert len(read_table(tmp_path / "run", "updates")) == status["updates"]
    validate(tmp_path / "run")


def test_a_diverged_run_logs_every_turn_that_arrived(tiny_cell, tmp_path, monkeypatch):
    real = Trainer._learn

    def explode(self, turns, version):
        if version == 3:
            raise DivergedError("update 3: loss nan")
        return real(self, turns, version)

    monkeypatch.setattr(Trainer, "_learn", explode)
    trainer = Trainer(tiny_cell(), tmp_path / "run")
    assert trainer.run(quiet) == "diverged"
    turns = read_table(tmp_path / "run", "turns").to_pandas()
    assert sorted(turns["arrival"]) == list(range(trainer.pipeline.pool.arrived))
    assert ((turns["selected_at"] >= 0) != turns["dropped"].notna()).all()
    assert read_table(tmp_path / "run", "updates").num_rows == 3
    seconds = read_json(tmp_path / "run", "timings.json")
    assert min(seconds[stage] for stage in ("startup", "rollout", "teacher", "learner", "clock")) > 0
    assert not (tmp_path / "run" / "resume").exists()


def test_a_forced_rerun_is_wholly_fresh(tiny_cell, tmp_path):
    """Snakemake removes status.json alone: neither episodes nor checkpoints nor seconds of before may survive."""
    cell, folder = tiny_cell(train={"updates": 2, "batch_rows": 8}), tmp_path / "run"
    train(cell, folder, quiet)
    assert not (folder / "resume").exists()
    evaluate_run(folder, quiet)
    mark_evaluated(folder)
    (folder / "checkpoints" / "v00009-e00009.safetensors").write_bytes(b"old")
    (folder / "notes.txt").write_text("mine")
    (folder / "status.json").unlink()
    Trainer(cell, folder)
    assert sorted(path.name for path in folder.iterdir()) == ["config.yaml", "meta.json", "notes.txt"]


def snapshot(cell, folder):
    """A run stopped right after its first resume point."""

    def stop(done, total, words):
        if done == 2:
            raise Killed

    with pytest.raises(Killed):
        train(cell, folder, stop)
    return folder / "resume" / "state.pt"


def test_a_resume_point_of_another_cell_is_not_taken_up(tiny_cell, tmp_path):
    path, cell = snapshot(tiny_cell(), tmp_path / "run"), tiny_cell(seed=1)
    (tmp_path / "other" / "resume").mkdir(parents=True)
    path.rename(tmp_path / "other" / "resume" / "state.pt")
    trainer = Trainer(cell, tmp_path / "other")
    assert trainer.pipeline.version == 0 and not (tmp_path / "other" / "resume").exists()


def test_resume_points_cut_short_are_named(tiny_cell, tmp_path):
    cell = tiny_cell()
    path = snapshot(cell, tmp_path / "run")
    (tmp_path / "run" / "checkpoints" / "v00003-e00009.safetensors").write_bytes(b"of after the resume point")
    assert Trainer(cell, tmp_path / "run").pipeline.version == 2
    assert [p.name[:6] for p in (tmp_path / "run" / "checkpoints").iterdir()] == ["v00000"]
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(RunLogError, match=r"state\.pt is corrupt; delete it"):
        train(cell, tmp_path / "run", quiet)
    path.unlink()  # the advice
    assert Trainer(cell, tmp_path / "run").pipeline.version == 0
