"""Whole runs with tiny models on real games: same bytes twice, and again after being killed anywhere."""

from __future__ import annotations

import json
import pickle
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from divopd import train as trainer_module
from divopd.envs.alfworld.stock import StockPlayer
from divopd.envs.registry import make_envs
from divopd.evaluate import evaluate_run
from divopd.learner import DivergedError
from divopd.policies.base import PolicyError
from divopd.runlog import RunLogError, mark_evaluated, read_json, read_table, validate
from divopd.train import Trainer, check_tokenizers, train

pytestmark = pytest.mark.slow
LOGS = ("config.yaml", "meta.json", "turns.parquet", "updates.parquet", "transcripts.parquet", "status.json")


def quiet(*_):
    pass


def logs(folder: Path, names=LOGS):
    """Bytes by file; of meta.json all but the state of git, which a commit between two runs changes."""
    found = {name: (folder / name).read_bytes() for name in names}
    meta = json.loads(found["meta.json"])
    del meta["git"]
    return found | {"meta.json": json.dumps(meta, sort_keys=True)}


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


class Killed(BaseException):
    """Not an Exception: nothing may catch it, as nothing catches SIGKILL."""


@pytest.mark.parametrize(
    ("where", "call"),
    [("_explore", 2), ("_learn", 3), ("_learn", 4), ("_publish", 5), ("_save", 2), ("_snapshot", 1), ("_snapshot", 2)],
)
def test_killed_anywhere_it_ends_in_the_same_log(where, call, tiny_cell, tmp_path, undisturbed, monkeypatch):
    cell, _, want = whole(tiny_cell, tmp_path, undisturbed)
    folder, calls = tmp_path / "killed", 0
    real = getattr(Trainer, where)

    def deadly(self, *args):
        nonlocal calls
        calls += 1
        if calls == call:
            raise Killed
        return real(self, *args)

    monkeypatch.setattr(trainer_module.Trainer, where, deadly)
    with pytest.raises(Killed):
        train(cell, folder, quiet)
    monkeypatch.setattr(trainer_module.Trainer, where, real)
    assert not (folder / "status.json").exists()
    assert train(cell, folder, quiet) == "done"
    assert logs(folder) == want


def test_killed_within_a_snapshot_the_older_one_counts(tiny_cell, tmp_path, undisturbed, monkeypatch):
    """The log is written before the resume point: it may be ahead, never behind."""
    cell, _, want = whole(tiny_cell, tmp_path, undisturbed)
    folder, saves, real = tmp_path / "killed", 0, torch.save

    def deadly(*args):
        nonlocal saves
        saves += 1
        if saves == 2:
            raise Killed
        real(*args)

    monkeypatch.setattr(torch, "save", deadly)
    with pytest.raises(Killed):
        train(cell, folder, quiet)
    monkeypatch.setattr(torch, "save", real)
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


def test_one_version_is_evaluated_once(tiny_cell, tmp_path):
    cell, folder = tiny_cell(train={"updates": 2, "batch_rows": 8}), tmp_path / "run"
    train(cell, folder, quiet)
    saved = folder / "checkpoints"
    for first in sorted(saved.iterdir()):
        shutil.copy(first, saved / f"{first.name[:6]}-e99999.safetensors")
    seen = []
    evaluate_run(folder, lambda done, total, words: seen.append(words))
    table = read_table(folder, "evals").to_pandas()
    assert len(seen) == 2 and table.groupby("version").size().to_dict() == {0: 3, 2: 3}
    assert table["explorer_step"].max() < 99999
    [kept] = saved.iterdir()
    assert kept.name.startswith("v00002") and "99999" not in kept.name


def test_checkpoints_that_cannot_be_read_are_named(tiny_cell, tmp_path, tiny_models):
    cell, folder = tiny_cell(train={"updates": 2, "batch_rows": 8}), tmp_path / "run"
    train(cell, folder, quiet)
    first = min((folder / "checkpoints").iterdir())
    first.write_bytes(first.read_bytes()[:1000])
    with pytest.raises(RunLogError, match=rf"{first.name} is damaged .*run this cell again"):
        evaluate_run(folder, quiet)
    panel = Path(cell.env.eval_panel)
    panel.write_text(panel.read_text() + "gen/eval/3\n")
    with pytest.raises(RunLogError, match="panel differs") as caught:
        evaluate_run(folder, quiet)
    assert "--" not in str(caught.value)


def test_different_tokenizers_are_refused(tokenizer):
    class Other:
        def get_vocab(self):
            vocabulary = tokenizer.get_vocab()
            vocabulary["mug"], vocabulary["pen"] = vocabulary["pen"], vocabulary["mug"]
            return vocabulary

    class Longer:
        def get_vocab(self):
            return tokenizer.get_vocab() | {"<think>": len(tokenizer)}

    assert check_tokenizers(Longer(), tokenizer) == len(tokenizer)
    with pytest.raises(PolicyError, match="tokenizers differ"):
        check_tokenizers(tokenizer, Other())


def test_a_bfloat16_student_trains_in_float32(tiny_cell, tmp_path):
    """The learner's weights keep what the rollout copy's 8 bits of mantissa would round away."""
    cell = tiny_cell(train={"updates": 2, "batch_rows": 8, "learning_rate": 1e-6})
    student = cell.student.model_copy(update={"dtype": "bfloat16"})
    trainer = Trainer(cell.model_copy(update={"student": student}), tmp_path / "run")
    before = [p.detach().clone() for p in trainer.learner.parameters]
    assert trainer.run(quiet) == "done"
    moved = [(a != b).float().mean().item() for a, b in zip(before, trainer.learner.parameters, strict=True)]
    assert max(moved) > 0.9
    for copy, master in zip(trainer.student.model.parameters(), trainer.learner.model.parameters(), strict=True):
        assert (copy.dtype, master.dtype) == (torch.bfloat16, torch.float32)
        assert torch.equal(copy, master.bfloat16())
    updates = read_table(tmp_path / "run", "updates").to_pandas()
    assert (updates["drift"] > 0).all() and np.isfinite(updates["objective"]).all()


def test_switches_reach_their_parts(tiny_cell, tmp_path, monkeypatch):
    seen = {}
    monkeypatch.setattr(trainer_module, "make_envs", lambda config, count: seen.update(engine=config.engine))
    monkeypatch.setattr(trainer_module, "check_tokenizers", lambda *_: 300)  # a teacher that defines 300 ids
    cell = tiny_cell(train={"updates": 2, "batch_rows": 8, "bf16": True}, prompt={"score_unknown_ids": True})
    cell = cell.model_copy(update={"env": cell.env.model_copy(update={"engine": "stock"})})
    trainer = Trainer(cell, tmp_path / "run")
    assert trainer.learner.bf16 and seen["engine"] == "stock"
    assert trainer.teacher_vocabulary == trainer.teacher.model.config.vocab_size
    assert type(make_envs(cell.env, 1)[0]._player) is StockPlayer
    plain = Trainer(tiny_cell(), tmp_path / "plain")
    assert not plain.learner.bf16
    assert plain.teacher_vocabulary == 300 < trainer.teacher_vocabulary


def test_resume_point_holds_no_open_log_rows(tiny_cell, tmp_path):
    """Closed turns go to the log and leave the pool: a resume point does not grow with the run."""
    cell = tiny_cell(
        pipeline={"tasks_per_step": 4, "load": 1.0, "save_every": 1}, train={"updates": 8, "batch_rows": 8}
    )
    trainer = Trainer(cell, tmp_path / "run")
    sizes = []
    real = trainer._snapshot
    trainer._snapshot = lambda: (real(), sizes.append(len(pickle.dumps(trainer.pipeline))))
    trainer.run(quiet)
    assert max(sizes[3:]) < 2 * min(sizes[3:])
