"""Checkpoints, tokenizers and types that a run is given, and that its switches reach their parts."""

from __future__ import annotations

import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from divopd import train as trainer_module
from divopd.envs.alfworld.stock import StockPlayer
from divopd.envs.registry import make_envs
from divopd.evaluate import evaluate_run
from divopd.policies.base import PolicyError
from divopd.runlog import RunLogError, read_table
from divopd.train import Trainer, check_tokenizers, train
from train_runs import quiet

pytestmark = pytest.mark.slow


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
