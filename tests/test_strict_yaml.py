"""YAML as it is read everywhere: a key given twice is an error that names file, line and key."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from divopd import runlog
from divopd.cloning.recipe import read_recipe
from divopd.plan.rates import read_rates
from divopd.provenance import ROOT
from divopd.replay.report import RuleChoice
from divopd.replay.source import ReplayError
from divopd.streams import read_stream
from divopd.strict_yaml import YamlError, parse_yaml, read_yaml_file
from divopd.suite import load_suite, read_setting
from divopd.templates import read_template
from synthetic import cell, write_run


def test_every_other_value_is_pyyamls():
    """All YAML files of the repository, and what a check for equal keys could trip over."""
    files = [path for part in ("experiments", "divopd", "workflow") for path in (ROOT / part).rglob("*.yaml")]
    texts = [path.read_text() for path in files]
    texts += [
        "a: &x {b: 1}\nc: {<<: *x, b: 2}\n",
        "a: {i: &m {<<: &b {k: 1}, k: 2}}\nt: {<<: *m}\n",  # m is merged before it is read itself
        "a: [{b: 1}, {b: 2}]\n",
        "",
    ]
    assert len(texts) > 40
    for text in texts:
        assert parse_yaml(text) == yaml.safe_load(text)


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("a: 1\nb: 2\na: 3\n", "line 3: key 'a' is there twice (first in line 1)"),
        ("{a: 1, a: 1}", "line 1: key 'a' is there twice (first in line 1)"),
        ("a:\n  - b: {c: 1,\n      'c': 2}\n", "line 3: key 'c' is there twice (first in line 2)"),
        ("1: x\n0x1: y\n", "line 2: key 1 is there twice"),
        ("a: &m {b: 1}\nc:\n  <<: *m\n  <<: *m\n", "line 4: key '<<' is there twice"),
    ],
)
def test_a_key_twice(text: str, where: str):
    with pytest.raises(YamlError, match=re.escape(where)):
        parse_yaml(text)


@pytest.mark.parametrize("content", [b"a: [", b"\xff\xfea", b"a: 2026-13-45", b"[" * 5000, b"a: !!python/object:x {}"])
def test_what_is_no_yaml_is_one_line(tmp_path: Path, content: bytes):
    path = tmp_path / "a.yaml"
    path.write_bytes(content)
    with pytest.raises(YamlError, match="^not readable as YAML: ") as caught:
        read_yaml_file(path)
    assert "\n" not in str(caught.value)


def test_a_byte_order_mark_is_no_part_of_a_key(tmp_path: Path):
    (tmp_path / "a.yaml").write_bytes("\ufeffname: x\n".encode())
    assert read_yaml_file(tmp_path / "a.yaml") == {"name": "x"}


READERS = {
    "suite": load_suite,
    "setting": read_setting,
    "template": read_template,
    "stream": read_stream,
    "recipe": read_recipe,
    "rates": read_rates,
}


@pytest.mark.parametrize("kind", READERS)
def test_every_file_that_a_user_hands_in(tmp_path: Path, kind: str):
    path = tmp_path / f"{kind}.yaml"
    path.write_text("name: x\ncommon: {train: {updates: 3}}\ncommon: {train: {batch_rows: 3}}\n")
    with pytest.raises(Exception, match=rf"{kind}\.yaml: (.*: )?line 3: key 'common' is there twice") as caught:
        READERS[kind](path)
    assert "\n" not in str(caught.value)


def test_a_methods_file(tmp_path: Path):
    (tmp_path / "settings").mkdir()
    (tmp_path / "settings" / "s.yaml").write_text("student: {path: a}\nteacher: {path: b}\n")
    (tmp_path / "methods").mkdir()
    (tmp_path / "methods" / "mine.yaml").write_text("rule: vanilla\nrule: divopd\n")
    suite = tmp_path / "suite.yaml"
    suite.write_text("name: t\nsettings: [s]\nmethods: [mine]\nbaseline: mine\n")
    with pytest.raises(ValueError, match=r"methods/mine\.yaml: line 2: key 'rule' is there twice"):
        load_suite(suite)


def test_a_runs_own_file(tmp_path: Path):
    run = write_run(tmp_path, cell(), updates=5)
    with (run / "config.yaml").open("a") as file:
        file.write("seed: 7\n")
    with pytest.raises(runlog.RunLogError, match=r"config\.yaml is corrupt"):
        runlog.read_config(run)


def test_parameters_on_the_command_line():
    with pytest.raises(ReplayError, match="--rule divopd:cap=2,cap=3: 'cap' is there twice"):
        RuleChoice.parse("divopd:cap=2,cap=3")
    with pytest.raises(ReplayError, match=r"--rule divopd:cap=\[: cap: not readable"):
        RuleChoice.parse("divopd:cap=[")
