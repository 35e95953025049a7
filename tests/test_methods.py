"""Methods are composed of parts in YAML: presets, what a setting fills in, and errors that name file and key."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from divopd.losses import load_loss
from divopd.provenance import config_hash
from divopd.rollouts import Moment, policy_class, resolved_policy
from divopd.runlog import read_config, read_json
from divopd.selection import load_rule
from divopd.suite import find_cell, load_suite
from test_suite import SETTING, fails, write

ROOT = Path(__file__).resolve().parent.parent
PRESETS = sorted(path.stem for path in (ROOT / "experiments" / "methods").glob("*.yaml"))
RECOVERY = {"patience": 3, "max_turns": 5, "warmup_updates": 7}


def suite_of(folder: Path, methods, presets=None, setting=SETTING):
    (folder / "methods").mkdir(exist_ok=True)
    for name, content in (presets or {}).items():
        (folder / "methods" / f"{name}.yaml").write_text(yaml.safe_dump(content))
    first = methods[0] if isinstance(methods, list) else next(iter(methods))
    return write(folder, {"small": setting}, methods=methods, seeds=[0], baseline=first)


@pytest.mark.parametrize("name", PRESETS)
def test_shipped_presets_resolve_and_their_parts_load(name: str, tmp_path: Path):
    suite = ROOT / "experiments" / "demo.yaml"
    content = yaml.safe_load(suite.read_text()) | {"methods": [name], "baseline": name}
    from divopd.suite import expand

    for cell in expand(content, suite):
        method = cell.method
        assert method.name == name
        load_rule(method.rule, method.params)
        resolved_policy(method.rollout).check(cell.env.name)
        load_loss(method.loss.name, method.loss.params)


def test_the_methods_of_the_issue():
    wanted = {"vanilla_recovery": ("vanilla", "recovery"), "divopd_base_recovery": ("divopd_base", "recovery"),
              "divopd_recovery": ("divopd", "recovery"), "tcod_f2b": ("vanilla", "tcod_f2b"),
              "tcod_b2f": ("vanilla", "tcod_b2f"),
              "turnopd": ("vanilla", "turnopd"), "guided_opd": ("vanilla", "guided_opd")}  # fmt: skip
    assert wanted.keys() <= set(PRESETS)
    suite = ROOT / "experiments" / "laptop.yaml"
    from divopd.suite import expand

    cells = expand(yaml.safe_load(suite.read_text()) | {"methods": ["vanilla", *wanted], "seeds": [0]}, suite)
    found = {c.method.name: (c.method.rule, c.method.rollout.policy) for c in cells if c.setting == "alfworld-0.5m"}
    assert found == wanted | {"vanilla": ("vanilla", "student")}
    [one] = [c for c in cells if (c.setting, c.method.name) == ("alfworld-2m", "divopd_recovery")]
    assert one.method.params == {"cap": 4}
    assert one.method.rollout.params == {"patience": 6, "max_turns": 6, "warmup_updates": 0}
    assert {c.method.loss.reduction for c in cells if c.method.name == "turnopd"} == {"blended"}


def test_a_setting_fills_what_a_recovery_leaves_open(tmp_path: Path):
    parts = {"rule": "vanilla", "rollout": {"policy": "recovery", "params": {"patience": 9}}}
    methods = {"a": parts, "b": {"rule": "vanilla", "rollout": {"policy": "tcod_f2b"}}, "vanilla": None}
    a, b, plain = load_suite(suite_of(tmp_path, methods, setting=SETTING | {"recovery": RECOVERY}))
    assert a.method.rollout.params == RECOVERY | {"patience": 9}
    assert b.method.rollout.params == {"counter": "explorer_step"} and plain.method.rollout.policy == "student"


def test_cells_that_were_logged_before_a_parameter_was_keep_meaning_and_identity():
    """TCOD-F2B counted versions, and its logs do not say so: the suite does, and its cells are the logged ones."""
    runs = sorted((ROOT / "results" / "laptop-reference").glob("*/*/tcod_f2b/seed*"))
    assert len(runs) == 18
    cells = load_suite(ROOT / "experiments" / "laptop.yaml")
    for run in runs:
        logged = read_config(run)
        cell = find_cell(cells, logged.setting, "tcod_f2b", logged.seed)
        assert cell == logged and config_hash(cell) == read_json(run, "meta.json")["identity"]["config"]
        policy = resolved_policy(logged.method.rollout)
        now = Moment(9, 3, logged.train.updates, logged.env.max_turns, 0, logged.env.name)
        assert policy.depth(now, None) == 4  # a turn an update, whatever the explorer step
    # what those cells do not mean is stated, however it was asked for
    preset = yaml.safe_load((ROOT / "experiments" / "methods" / "tcod_f2b.yaml").read_text())
    assert preset["rollout"]["params"] == {"counter": "explorer_step"}


@pytest.mark.parametrize(
    ("given", "kept"),
    [({}, {"counter": "explorer_step"}), ({"counter": "version"}, {}), ({"counter": "version", "eta": 5}, {"eta": 5}),
     ({"eta": 5}, {"counter": "explorer_step", "eta": 5}), ({"eta": None}, {"counter": "explorer_step"})],
)  # fmt: skip
def test_a_resolved_cell_says_what_it_means(given, kept, tmp_path: Path):
    spec = {"rule": "vanilla", "rollout": {"policy": "tcod_f2b", "params": given}}
    [cell] = load_suite(suite_of(tmp_path, {"mine": spec}))
    assert cell.method.rollout.params == kept
    assert resolved_policy(cell.method.rollout) == policy_class("tcod_f2b")(**given)


def test_a_suite_wins_over_a_methods_file_key_by_key(tmp_path: Path):
    presets = {"both": {"rule": "vanilla", "rollout": {"policy": "guided_opd", "params": {"start": 0.3, "until": 0.2}}}}
    methods = {"both": {"rollout": {"params": {"start": 0.9}}, "loss": {"reduction": "token_mean"}},
               "divopd": {"params": {"cap": 2}}}  # fmt: skip
    both, divopd = load_suite(suite_of(tmp_path, methods, presets))
    assert both.method.rollout.params == {"start": 0.9, "until": 0.2}
    assert (both.method.rule, both.method.loss.reduction) == ("vanilla", "token_mean")
    assert divopd.method.params == {"cap": 2}
    # a rule of its own makes it the suite's method altogether
    [own] = load_suite(suite_of(tmp_path, {"both": {"rule": "divopd"}}, presets))
    assert (own.method.rule, own.method.rollout.policy) == ("divopd", "student")


def test_typos_name_file_and_key(tmp_path: Path):
    fails(suite_of(tmp_path, ["a"], {"a": {"rul": "vanilla"}}), "methods/a.yaml", "unknown key rul", "'rule'")
    fails(suite_of(tmp_path, ["a"], {"a": {"rule": "vanilla", "rollout": {"polcy": "x"}}}), "a.yaml", "rollout.polcy")
    fails(suite_of(tmp_path, ["a"], {"a": {"rule": "vanilla", "loss": {"reduction": "mean"}}}), "a.yaml", "loss.reduct")
    fails(suite_of(tmp_path, ["a"], {"a": {"rule": "vanilla", "config": {}}}), "a.yaml", "unknown key config")
    for part, words in (
        ({"rollout": {"policy": "recovry"}}, ("suite.yaml", "methods.a", "'recovry'", "recovery")),
        ({"rollout": {"policy": "recovery"}}, ("methods.a", "parameter 'patience' is due")),
        ({"rollout": {"policy": "tcod_f2b", "params": {"etta": 1}}}, ("unknown parameter 'etta'", "eta")),
        ({"loss": {"name": "reverse"}}, ("methods.a", "unknown loss 'reverse'", "reverse_kl")),
        ({"loss": {"name": "jsd", "params": {"mix": 2.0}}}, ("'mix' = 2.0",)),
        ({"loss": {"nam": "jsd"}}, ("suite.yaml", "methods")),
    ):
        fails(suite_of(tmp_path, {"a": {"rule": "vanilla"} | part}), *words)
    presets = {"divopd_recovery": {"rule": "divopd"}}
    fails(suite_of(tmp_path, ["divopd_recovry"], presets), "unknown rule", "did you mean the method 'divopd_recovery'?")


def test_reading_a_suite_needs_no_torch():
    code = "import sys, divopd.suite as s; s.load_suite('experiments/demo.yaml'); print('torch' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "False"
