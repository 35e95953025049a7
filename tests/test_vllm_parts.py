"""What of the vLLM back end can be looked at without vLLM: choice of back end and route, names, the gap, its alarm."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from divopd import checks
from divopd.config import EngineConfig, PolicyConfig, RunConfig
from divopd.policies import vllm_engine
from divopd.policies.base import PolicyError
from divopd.policies.hf import HFPolicy, load_model
from divopd.policies.make import make_policy
from divopd.policies.parity import Parity, gap, student_spans
from divopd.policies.vllm_weights import Layout, route, weight_file
from divopd.policies.vllm_worker import _tensors, with_copies
from divopd.rollout import PlaySettings, play
from divopd.seeds import rng
from divopd.timing import Stopwatch
from divopd.train import Trainer


def test_defaults_stay_out_of_resolved_configurations(tiny_cell):
    cell = tiny_cell()
    assert set(cell.model_dump()["student"]) == {"path", "revision", "dtype"}
    assert "drift_alarm" not in cell.model_dump()["train"]
    asked = PolicyConfig(path="m", backend="vllm", engine=EngineConfig(sync="keep"), gap_alarm=0.1)
    assert PolicyConfig.model_validate(asked.model_dump()) == asked


def test_transformers_unless_asked_and_vllm_not_imported(tiny_models, tokenizer):
    code = (
        "import sys, divopd.policies.make, divopd.train, divopd.evaluate, divopd.policies.vllm\n"
        "print([n for n in ('vllm', 'torchvision', 'torchaudio', 'torchcodec') if n in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (run.returncode, run.stdout.strip()) == (0, "[]"), run.stderr
    config = PolicyConfig(path=str(tiny_models / "student"))
    assert isinstance(make_policy(config, tokenizer.eos_token_id, 64), HFPolicy)


def stub(folder: Path, module: str, source: str) -> None:
    (folder / module).mkdir()
    (folder / module / "__init__.py").write_text(source)


CLASH = "raise RuntimeError('operator torchvision::nms does not exist')"


def test_a_clash_with_torchvision_is_named_with_its_mend(tmp_path, monkeypatch):
    """The real failure: an installed torchvision of another torch, which importing vLLM (or transformers) runs into."""
    stub(tmp_path, "torchvision", CLASH)
    stub(tmp_path, "vllm", "import torchvision")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    for check in (checks.backend("vllm", True), checks.vision()):
        assert check is not None and not check.ok
        assert "pip uninstall" in check.detail and "torchvision torchaudio torchcodec" in check.detail
        assert "\n" not in check.detail
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("vllm", "torchvision"):  # other tests may have imported the real ones
        monkeypatch.delitem(sys.modules, name, raising=False)
    with pytest.raises(PolicyError, match="nms does not exist.*pip uninstall.*torchvision"):
        vllm_engine.import_vllm()


def test_a_torchvision_that_works_or_is_not_there_is_no_finding(tmp_path, monkeypatch):
    stub(tmp_path, "torchvision", "__version__ = '1'")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    check = checks.vision()
    assert check is not None and check.ok
    (tmp_path / "torchvision").rename(tmp_path / "other")
    if checks.child("import torchvision")[0] is False:
        assert checks.vision() is None


def test_vllm_that_is_not_there_is_one_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "vllm", None)  # as if it were not installed
    with pytest.raises(PolicyError, match="not installed: see docs/vllm.md"):
        make_policy(PolicyConfig(path="models/alfworld/student-0.5m", backend="vllm"), 3, 64)


# weights -------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def layout(tiny_models) -> Layout:
    return Layout(PolicyConfig(path=str(tiny_models / "student")))


def test_layout_is_the_checkpoints_own(layout, tiny_models):
    policy = HFPolicy(load_model(PolicyConfig(path=str(tiny_models / "student"))), 3)
    assert layout.shapes == {name: tuple(t.shape) for name, t in policy.weights().items()}
    assert layout.copies == {"lm_head.weight": "model.embed_tokens.weight"}
    assert layout.vocabulary == policy.vocabulary
    layout.check(layout.shapes)
    layout.check({name: tuple(t.shape) for name, t in policy.model.state_dict().items()})  # with the tied name


def test_a_missing_checkpoint_is_named():
    with pytest.raises(PolicyError, match="checkpoint models/none is missing"):
        Layout(PolicyConfig(path="models/none", backend="vllm"))


def test_weights_that_vllm_would_take_in_silence_are_refused(layout):
    shapes = dict(layout.shapes)
    norm = shapes.pop("model.norm.weight")
    with pytest.raises(PolicyError, match=r"lacks model\.norm\.weight$"):
        layout.check(shapes)
    with pytest.raises(PolicyError, match=r"has model\.more$"):
        layout.check(shapes | {"model.norm.weight": norm, "model.more": norm})
    with pytest.raises(PolicyError, match=r"size mismatch for model\.norm\.weight: \(31,\), not \(32,\)"):
        layout.check(shapes | {"model.norm.weight": (31,)})


def test_the_file_carries_tied_names_explicitly():
    embedding = torch.arange(6.0).reshape(3, 2)
    with weight_file({"embed": embedding, "norm": torch.ones(2)}) as path:
        found = dict(with_copies(_tensors(path), {"head": "embed"}))
    assert sorted(found) == ["embed", "head", "norm"]
    torch.testing.assert_close(found["head"], embedding)
    assert not Path(path).exists()


def test_route(monkeypatch):
    """A GPU's name stands for the GPU."""
    monkeypatch.setattr("divopd.policies.vllm_weights.gpu_of", lambda device: device)
    cpu, a, b = ({"x": SimpleNamespace(device=gpu)} for gpu in (None, "GPU-a", "GPU-b"))
    for transfer, gpus, weights, want in [
        ("auto", [None], cpu, "file"), ("file", [None], cpu, "file"), ("auto", ["GPU-a"], cpu, "file"),
        ("auto", ["GPU-a"], a, "ipc"), ("auto", ["GPU-a"], b, "file"), ("auto", ["GPU-a", "GPU-b"], a, "file"),
        ("ipc", ["GPU-a"], a, "ipc"), ("nccl", ["GPU-a"], b, "nccl"), ("file", ["GPU-a"], a, "file"),
    ]:  # fmt: skip
        assert route(transfer, gpus, weights) == want
    for transfer, gpus, weights, why in [
        ("ipc", [None], cpu, "needs an engine on a GPU"), ("nccl", ["GPU-a"], cpu, "learner's weights on a GPU"),
        ("ipc", ["GPU-a"], b, "different GPUs: set nccl"), ("nccl", ["GPU-a"], a, "share one GPU: set ipc"),
    ]:  # fmt: skip
        with pytest.raises(PolicyError, match=why):
            route(transfer, gpus, weights)


# parity --------------------------------------------------------------------------------------------------------------


def test_gap_by_hand():
    one = [[np.float32([-1.0, -2.0]), np.float32([])], [np.float32([-4.0])]]
    other = [[np.float32([-1.5, -2.0]), np.float32([])], [np.float32([-3.0])]]
    found = gap(one, other)
    assert (found.tokens, found.mean, found.maximum) == (3, 0.5, 1.0)
    assert gap([[]], [[]]).tokens == 0 and np.isnan(gap([[]], [[]]).mean)


def probed(cell: RunConfig, trainer: Trainer) -> Parity:
    parity = Parity(cell)
    tasks = [((0, i, 0), f"gen/train/{i}", rng("parity", i)) for i in range(2)]
    limits = PlaySettings(4, 200, 3, 1.0)
    parity.note(play(trainer.student, trainer.renderer, trainer.envs[: len(tasks)], tasks, 0, limits, Stopwatch()))
    return parity


def test_a_sampler_with_other_weights_raises_the_alarm(tiny_cell, tmp_path, caplog):
    cell = tiny_cell()
    student = cell.student.model_copy(update={"gap_alarm": 1e-4})
    cell = cell.model_copy(update={"student": student})
    with Trainer(cell, tmp_path / "run") as trainer, caplog.at_level(logging.WARNING, "divopd"):
        parity, model, eos = probed(cell, trainer), trainer.learner.model, trainer.renderer.eos
        [row] = parity.published(trainer.student, model, eos, 1)
        assert row["tokens"] > 0 and row["max_gap"] < 1e-5 and parity.alarms == 0 and not caplog.records
        stale = HFPolicy(load_model(cell.teacher), eos)  # other weights, as after a sync that went wrong
        [row] = parity.published(stale, model, eos, 2)
        assert parity.alarms == 1 and row["mean_gap"] > 1e-3
        [record] = caplog.records
        assert "ALARM version 2" in record.getMessage()


def test_alarms_are_off_by_default_and_for_nan_loud(tiny_cell, caplog):
    cell = tiny_cell()
    parity = Parity(cell)
    assert parity.limit is None and parity.published(None, None, 0, 1) == []  # type: ignore[arg-type]
    parity.drift(9.0, 1)
    assert not parity.alarms
    vllm = cell.student.model_copy(update={"backend": "vllm"})
    assert Parity(cell.model_copy(update={"student": vllm})).limit == 1e-3
    train = cell.train.model_copy(update={"drift_alarm": 0.5})
    parity = Parity(cell.model_copy(update={"train": train}))
    for drift, alarms in ((0.4, 0), (0.6, 1), (float("nan"), 1), (float("inf"), 2)):
        parity.drift(drift, 3)
        assert parity.alarms == alarms
    assert "drifted by 0.6 nats a token, more than 0.5" in caplog.text


def test_spans_are_the_turns_own(tiny_cell, tmp_path):
    """Sampled log-probs, scored again at their spans, are the same: contexts, spans and values belong together."""
    with Trainer(tiny_cell(), tmp_path / "run") as trainer:
        tasks = [((0, i, 0), f"gen/train/{i}", rng("spans", i)) for i in range(3)]
        rollouts = play(
            trainer.student,
            trainer.renderer,
            trainer.envs[: len(tasks)],
            tasks,
            0,
            PlaySettings(4, 200, 3, 1.0),
            Stopwatch(),
        )
        contexts, spans, logprobs = student_spans(rollouts)
        assert sum(len(row) for row in spans) == sum(len(r.turns) for r in rollouts)
        assert gap(trainer.student.score(contexts, spans), logprobs).maximum < 2e-5


def test_a_run_with_a_probe_logs_it_and_nothing_else_changes(tiny_cell, tmp_path):
    from divopd.runlog import read_table
    from divopd.train import train

    plain = tiny_cell(train={"updates": 2, "batch_rows": 8, "learning_rate": 1e-3})
    student = plain.student.model_copy(update={"gap_alarm": 1e-9})
    probe = plain.model_copy(update={"student": student})
    for name, cell in (("plain", plain), ("probe", probe)):
        assert train(cell, tmp_path / name, lambda *_: None) == "done"
    assert not (tmp_path / "plain" / "parity.parquet").exists()
    rows = read_table(tmp_path / "probe", "parity").to_pylist()
    assert [row["version"] for row in rows] == [1, 2] and all(row["max_gap"] < 1e-5 for row in rows)
    for name in ("turns", "updates"):
        one, other = ((tmp_path / run / f"{name}.parquet").read_bytes() for run in ("plain", "probe"))
        assert one == other


CHAIN = """
import multiprocessing, os, time
from divopd.policies.vllm_worker import end_with

def core(owner):
    context.Process(target=worker, args=(owner,)).start()
    time.sleep(60)

def worker(owner):
    end_with(owner)
    print(owner, os.getppid(), os.getpid(), flush=True)
    time.sleep(60)

context = multiprocessing.get_context("spawn")  # as vLLM's processes are
if __name__ == "__main__":
    context.Process(target=core, args=(os.getpid(),)).start()
    time.sleep(60)
"""


def test_engines_end_with_the_process_that_holds_them(tmp_path):
    """Killed without a word to anyone: its engine's worker goes, and the core between them; a sibling stays."""
    import psutil

    (tmp_path / "chain.py").write_text(CHAIN)
    command = [sys.executable, str(tmp_path / "chain.py")]
    one, other = (subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2))
    lines = [process.stdout.readline().split() for process in (one, other)]
    mine, theirs = ([psutil.Process(int(pid)) for pid in line] for line in lines)
    assert [process.ppid() for process in mine[1:]] == [process.pid for process in mine[:-1]]
    one.kill()
    assert psutil.wait_procs(mine, timeout=30)[1] == []
    assert all(process.is_running() for process in theirs)
    other.kill()
    assert psutil.wait_procs(theirs, timeout=30)[1] == []
