"""Hashes follow the content, and unchanged files are read once a process."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
import yaml

from divopd import provenance, runlog
from divopd.config import RunConfig
from divopd.suite import load_suite, read_config_file
from synthetic import cell

ROOT = Path(__file__).resolve().parent.parent


def test_a_file_is_read_again_only_when_it_has_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    reads, real = [], hashlib.file_digest
    monkeypatch.setattr(hashlib, "file_digest", lambda *args: (reads.append(1), real(*args))[1])
    path = tmp_path / "weights"
    path.write_bytes(b"one")
    first = [provenance.file_hash(path) for _ in range(3)]
    assert set(first) == {hashlib.sha256(b"one").hexdigest()} and len(reads) == 1
    path.write_bytes(b"other")
    assert provenance.file_hash(path) == hashlib.sha256(b"other").hexdigest()


@pytest.mark.parametrize("suite", ["demo", "laptop"])
def test_cells_are_still_what_their_committed_runs_say(suite: str):
    """Their config.yaml does not say how rollouts arrived: by rollout, which is what their suite says now."""
    cells = {Path(*config.run_dir().parts[2:]): config for config in load_suite(ROOT / "experiments" / f"{suite}.yaml")}
    root = ROOT / "results" / f"{suite}-reference"
    found = {path.parent.relative_to(root) for path in root.rglob("seed*/config.yaml")}
    assert found == cells.keys()
    for name, config in cells.items():
        assert "arrives" not in yaml.safe_load((root / name / "config.yaml").read_text())["pipeline"]
        assert runlog.read_config(root / name) == read_config_file(root / name / "config.yaml") == config
        assert config.pipeline.arrives == "rollout" and runlog.mismatch(root / name, config) is None


def test_what_a_run_logs_of_its_arrivals_is_read_again(tmp_path: Path):
    for pipeline in ({}, {"arrives": "rollout"}, {"order": "task", "sync": "wait"}):
        config = RunConfig.model_validate(cell().model_dump() | {"pipeline": pipeline})
        folder = tmp_path / "-".join(["run", *pipeline.values()])
        runlog.RunLog.open(folder, config).finish("done")
        logged = yaml.safe_load((folder / "config.yaml").read_text())["pipeline"]
        assert {key: logged[key] for key in provenance.UNSAID} == provenance.UNSAID | {"arrives": "step"} | pipeline
        assert runlog.read_config(folder) == config and runlog.mismatch(folder, config) is None
        assert runlog.mismatch(folder, cell()) == ("config differs" if pipeline else None)


def test_of_ray_runs_that_do_not_say_each_explorer_had_a_step():
    """The number of explorers was that of the steps in flight, and hashes are those of then."""
    old = cell().model_dump(mode="json") | {"placement": {"explorers": {"count": 4}}}
    old["pipeline"] = {key: value for key, value in old["pipeline"].items() if key not in provenance.UNSAID}
    old["pipeline"] |= {"kind": "ray", "explorers": 1}
    del old["pipeline"]["steps_in_flight"]
    config = RunConfig.model_validate(provenance.logged(old))
    assert config.pipeline.steps_in_flight == 4 and config.pipeline.sync == "latest"
    old["placement"] = config.placement.model_dump(mode="json")
    was = hashlib.sha256(json.dumps(old, sort_keys=True).encode()).hexdigest()
    assert provenance.config_hash(config) == was
    one = config.model_copy(update={"pipeline": config.pipeline.model_copy(update={"steps_in_flight": 1})})
    assert provenance.config_hash(one) != was
