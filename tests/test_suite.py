"""Suite files: which layer wins, and errors that name file, key and the nearest valid one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from divopd.lookup import missing_file
from divopd.suite import SuiteError, find_cell, load_suite, merge, read_config_file, read_setting, suite_spec

ROOT = Path(__file__).resolve().parent.parent
SUITES = sorted((ROOT / "experiments").glob("*.yaml"))
SETTINGS = sorted((ROOT / "experiments" / "settings").glob("*.yaml"))
SETTING = {"cap": 5, "target": 0.6, "student": {"path": "a/b"}, "teacher": {"path": "c/d"}, "train": {"updates": 9}}


def write(folder: Path, settings: dict[str, Any] | None = None, **suite: Any) -> Path:
    """A suite of one setting "small" and the rules given, in `folder`."""
    (folder / "settings").mkdir(exist_ok=True)
    for name, content in (settings or {"small": SETTING}).items():
        (folder / "settings" / f"{name}.yaml").write_text(yaml.safe_dump(content, sort_keys=False))
    content = {"name": "test", "settings": ["small"], "methods": ["vanilla", "divopd"], "seeds": [0, 1]} | suite
    (folder / "suite.yaml").write_text(yaml.safe_dump(content, sort_keys=False))
    return folder / "suite.yaml"


def naming(folder: Path, entries: list[str], settings: dict[str, Any] | None = None, **suite: Any) -> Path:
    """The same suite with these entries under `settings`, whatever files there are."""
    path = write(folder, settings, **suite)
    path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | {"settings": entries}, sort_keys=False))
    return path


def fails(path: Path, *words: str) -> None:
    with pytest.raises(SuiteError) as caught:
        load_suite(path)
    text = str(caught.value)
    assert "\n" not in text
    for word in words:
        assert word in text, f"{word!r} not in {text!r}"


@pytest.mark.parametrize("path", SUITES, ids=lambda p: p.stem)
def test_shipped_suites_resolve(path: Path):
    cells = load_suite(path)
    assert cells
    folders = [cell.run_dir() for cell in cells]
    assert len(set(folders)) == len(folders)
    assert {cell.suite for cell in cells} == {path.stem}


@pytest.mark.parametrize("path", SETTINGS, ids=lambda p: p.stem)
def test_shipped_settings_are_whole(path: Path):
    spec = read_setting(path)
    assert spec.cap and spec.paper_setting
    assert {"student", "teacher", "env"} <= spec.config.keys()


def test_paper_settings_hold_the_papers_values():
    for name, patience, target, start in (("1.7b", 4, 0.70, 7.86), ("4b", 6, 0.80, 26.43)):
        spec = read_setting(ROOT / "experiments" / "settings" / f"alfworld-qwen3-{name}.yaml")
        assert (spec.cap, spec.recovery.patience, spec.recovery.max_turns, spec.recovery.warmup_updates) == (
            4, patience, 6, 0,
        )  # fmt: skip
        assert spec.config["target"] == target
        assert spec.config["train"] == {"updates": 250}
        assert spec.reported == {"student_initial_success": start, "teacher_success": 87.86}


def test_cells_come_setting_by_setting(tmp_path: Path):
    cells = load_suite(write(tmp_path))
    assert [(c.method.name, c.seed) for c in cells] == [("vanilla", 0), ("vanilla", 1), ("divopd", 0), ("divopd", 1)]


def test_later_layers_win_key_by_key(tmp_path: Path):
    suite = write(
        tmp_path,
        common={"train": {"updates": 1, "batch_rows": 7, "learning_rate": 0.5, "beta": 2.0}},
        settings={"small": SETTING | {"train": {"updates": 2, "batch_rows": 8, "learning_rate": 0.25}}},
        overrides={"small": {"train": {"updates": 3, "batch_rows": 9}}},
        methods={"vanilla": None, "fast": {"rule": "vanilla", "config": {"train": {"updates": 4}}}},
        seeds=[0],
    )
    plain, fast = load_suite(suite)
    assert (plain.train.updates, plain.train.batch_rows, plain.train.learning_rate, plain.train.beta) == (
        3,
        9,
        0.25,
        2.0,
    )
    assert plain.train.retention == 8  # the default
    assert fast.train.updates == 4 and fast.train.batch_rows == 9
    assert (fast.method.name, fast.method.rule) == ("fast", "vanilla")


def test_settings_cap_fills_rules_that_have_one(tmp_path: Path):
    methods = {"vanilla": None, "divopd": None, "k3": {"rule": "divopd", "params": {"cap": 3}}}
    vanilla, divopd, k3 = load_suite(write(tmp_path, methods=methods, seeds=[0]))
    assert (vanilla.method.params, divopd.method.params, k3.method.params) == ({}, {"cap": 5}, {"cap": 3})


def test_unknown_keys_name_file_key_and_nearest(tmp_path: Path):
    fails(write(tmp_path, sedes=[1]), "suite.yaml", "unknown key sedes", "'seeds'")
    fails(
        write(tmp_path, common={"train": {"learning_rat": 1}}),
        "suite.yaml",
        "common.train.learning_rat",
        "'learning_rate'",
    )
    fails(write(tmp_path, common={"trian": {}}), "suite.yaml", "unknown key 'trian'", "'train'")
    fails(write(tmp_path, common={"seed": 1}), "suite.yaml", "unknown key 'seed'")
    fails(write(tmp_path, {"small": SETTING | {"capp": 4}}), "small.yaml", "unknown key 'capp'", "'cap'")
    fails(write(tmp_path, {"small": SETTING | {"train": {"update": 4}}}), "small.yaml", "train.update", "'updates'")
    fails(write(tmp_path, overrides={"smal": {}}), "overrides.smal", "'small'")


def test_wrong_values_name_the_file_that_set_them(tmp_path: Path):
    fails(
        write(tmp_path, {"small": SETTING | {"train": {"updates": 0}}}), "small.yaml", "train.updates", "greater than 0"
    )
    fails(write(tmp_path, common={"env": {"name": "alfwold"}}), "suite.yaml", "env.name", "alfworld")
    fails(write(tmp_path, seeds=["a"]), "suite.yaml", "seeds.0")
    fails(write(tmp_path, {"small": {"teacher": {"path": "a/b"}}}), "small.yaml", "student")


def test_unknown_rules_and_parameters(tmp_path: Path):
    fails(write(tmp_path, methods=["vanilla", "divop"]), "suite.yaml", "unknown rule 'divop'", "divopd")
    for params, words in (({"cpa": 3}, ("cpa", "cap")), ({"cap": 0}, ("cap", "greater than 0"))):
        methods = {"vanilla": None, "divopd": {"params": params}}
        fails(write(tmp_path, methods=methods), "suite.yaml", *words)


def test_the_baseline_is_one_of_the_methods(tmp_path: Path):
    fails(write(tmp_path, baseline="divop"), "suite.yaml", "baseline: 'divop' is not a method", "'divopd'?")
    fails(write(tmp_path, methods=["divopd"]), "suite.yaml", "baseline: 'vanilla' is not a method", "divopd")
    assert load_suite(write(tmp_path, methods=["divopd"], baseline="divopd"))


def test_sections_that_methods_set_for_themselves(tmp_path: Path):
    methods = {"vanilla": None, "slow": {"rule": "vanilla", "config": {"train": {"updates": 4}, "threads": 2}}}
    path = write(tmp_path, methods=methods)
    assert suite_spec(yaml.safe_load(path.read_text()), path).sections_by_method == {"train", "threads"}


def test_missing_and_malformed_files(tmp_path: Path):
    fails(write(tmp_path, settings={"smal": SETTING}), "settings/small.yaml", "no such file", "'smal'")
    fails(tmp_path / "none.yaml", "none.yaml", "no such file")
    (tmp_path / "suite.yaml").write_text("a: [")
    fails(tmp_path / "suite.yaml", "suite.yaml", "not readable as YAML")
    (tmp_path / "suite.yaml").write_text("- a")
    fails(tmp_path / "suite.yaml", "expected a mapping")


def test_find_cell(tmp_path: Path):
    cells = load_suite(write(tmp_path))
    assert find_cell(cells, "small", "divopd", 1) is cells[3]
    with pytest.raises(SuiteError, match="'small'"):
        find_cell(cells, "smal", "divopd", 0)
    with pytest.raises(SuiteError, match="'divopd'"):
        find_cell(cells, "small", "dvopd", 0)
    with pytest.raises(SuiteError, match="no seed '7'"):
        find_cell(cells, "small", "divopd", 7)


def test_a_runs_config_is_read_back(tmp_path: Path):
    cell = load_suite(write(tmp_path))[0]
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(cell.model_dump(mode="json")))
    assert read_config_file(path) == cell
    path.write_text(yaml.safe_dump(cell.model_dump(mode="json") | {"sede": 1}))
    with pytest.raises(SuiteError, match="config.yaml: unknown key sede; did you mean 'seed'"):
        read_config_file(path)


def test_merge_leaves_its_arguments_alone():
    base, over = {"a": {"b": 1}, "c": [1]}, {"a": {"d": 2}, "c": [2]}
    assert merge(base, over) == {"a": {"b": 1, "d": 2}, "c": [2]}
    assert base == {"a": {"b": 1}, "c": [1]}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"seeds": [0, 1, 0]}, "seeds: 0 is there twice"),
        ({"seeds": []}, "seeds: the list is empty"),
        ({"settings": ["small", "small"]}, "settings: 'small' is there twice"),
        ({"settings": ["small", "other/small.yaml"]}, "settings: 'small' is there twice"),
        ({"methods": ["vanilla", "divopd", "vanilla"]}, "methods: 'vanilla' is there twice"),
        ({"methods": {"vanilla": None, "Vanilla": {"rule": "vanilla"}}}, "small/vanilla and small/Vanilla would have"),
        ({"settings": ["small", "small.a"], "methods": {"vanilla": None, "a.vanilla": {"rule": "vanilla"}}},
         "small/a.vanilla and small.a/vanilla would have the same files"),
    ],
)  # fmt: skip
def test_no_two_cells_are_one(tmp_path: Path, change: dict[str, Any], words: str):
    entries = {"settings": ["small"]} | change
    fails(naming(tmp_path, entries.pop("settings"), **entries), "suite.yaml", words)


NO_NAMES = ["../../esc", "/abs", "a/b", "..", ".hidden", "a..b", "-x", "a b", "a(b", "é", "", "a\n", "x" * 81, "{a}"]


@pytest.mark.parametrize("name", NO_NAMES)
def test_what_is_no_name_is_refused_wherever_it_comes_from(tmp_path: Path, name: str):
    fails(write(tmp_path, name=name), "suite.yaml", "name: ", "is no name")
    fails(
        write(tmp_path, methods={"vanilla": None, name: {"rule": "vanilla"}}), "suite.yaml", "methods: ", "is no name"
    )
    if "/" not in name:  # with one it is a path
        fails(naming(tmp_path, [name]), "suite.yaml", "settings: ", "is no name")
    for change in ({"suite": name}, {"setting": name}, {"method": {"name": name, "rule": "vanilla"}}):
        (tmp_path / "cell.yaml").write_text(yaml.safe_dump(load_suite(write(tmp_path))[0].model_dump() | change))
        with pytest.raises(SuiteError, match=r"cell\.yaml: .*is no name: a name is up to 80"):
            read_config_file(tmp_path / "cell.yaml")


def test_names_may_hold_what_names_hold(tmp_path: Path):
    name = "Qwen3-1.7b_k+2"
    methods = {"vanilla": None, name: {"rule": "divopd"}}
    cells = load_suite(naming(tmp_path, [name], {name: SETTING}, name=name, methods=methods))
    assert cells[-1].run_dir("out") == Path("out") / name / name / "alfworld" / name / "seed1"


def test_a_setting_named_by_its_path_runs_under_out(tmp_path: Path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "mine-1.5b.yaml").write_text(yaml.safe_dump(SETTING))
    absolute = str(tmp_path / "elsewhere" / "mine-1.5b.yaml")
    for entry in (absolute, absolute.removesuffix(".yaml"), "elsewhere/mine-1.5b.yaml", "elsewhere/mine-1.5b"):
        cell = load_suite(naming(tmp_path, [entry], overrides={"mine-1.5b": {"target": 0.25}}))[0]
        assert cell.run_dir("out") == Path("out/test/mine-1.5b/alfworld/vanilla/seed0") and cell.target == 0.25


def test_a_suite_anywhere_finds_its_own_files_then_the_shipped_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (away := tmp_path / "away").mkdir()
    monkeypatch.chdir(away)
    (folder := tmp_path / "mine").mkdir()
    for name in ("settings", "methods", "panels", "prompts"):
        (folder / name).mkdir()
    (folder / "panels" / "p.txt").write_text("gen/eval/0\n")
    (folder / "prompts" / "t.txt").write_text("{task}")
    (folder / "rule.py").write_text((ROOT / "baselines" / "vanilla.py").read_text())
    (folder / "methods" / "tcod_f2b.yaml").write_text("rule: vanilla\n")
    env = {"eval_panel": "panels/p.txt", "train_tasks": "panels/p.txt"}
    suite = folder / "suite.yaml"
    content = {
        "name": "mine",
        "settings": ["alfworld-0.5m"],
        "methods": {"by_path": {"rule": "rule.py"}, "tcod_f2b": None, "turnopd": None},
        "baseline": "by_path",
        "common": {"prompt": {"template": "prompts/t.txt"}},
        "overrides": {"alfworld-0.5m": {"env": env}},
    }
    suite.write_text(yaml.safe_dump(content))
    mine, own, shipped = load_suite(suite)
    assert mine.method.rule == str(folder / "rule.py")
    assert (mine.env.eval_panel, mine.env.train_tasks) == (str(folder / "panels" / "p.txt"),) * 2
    assert mine.prompt.template == str(folder / "prompts" / "t.txt")
    assert mine.student.path == str(ROOT / "models/alfworld/student-0.5m")  # which its shipped setting names
    assert (own.method.rollout.policy, shipped.method.rollout.policy) == ("student", "turnopd")
    # from where the paths work as they are written, they stay so
    monkeypatch.chdir(folder)
    assert load_suite(suite)[0].env.eval_panel == "panels/p.txt"
    monkeypatch.chdir(ROOT)
    assert load_suite(suite)[0].student.path == "models/alfworld/student-0.5m"
    # one's own setting goes before the shipped one of that name
    (folder / "settings" / "alfworld-0.5m.yaml").write_text(yaml.safe_dump(SETTING))
    assert load_suite(suite)[0].student.path == "a/b"


def test_a_file_that_is_nowhere_says_where_it_was_looked_for(tmp_path: Path):
    where = f"looked in {tmp_path}"
    fails(
        naming(tmp_path, ["alfworld-9b"]), "settings/alfworld-9b.yaml: no such file", where, "did you mean 'alfworld-"
    )
    fails(write(tmp_path, methods={"vanilla": None, "m": {"rule": "no.py"}}), "unknown rule 'no.py'", where)
    fails(write(tmp_path, methods=["vanilla", "mine"]), "no methods/mine.yaml", where)
    suite = write(tmp_path, common={"env": {"eval_panel": "panels/no.txt"}})
    assert f"env.eval_panel: panels/no.txt: no such file; {where}" in str(missing_file(load_suite(suite)[0], suite))


def test_a_wrong_parameter_suggests_no_other_method(tmp_path: Path):
    path = write(tmp_path, methods={"vanilla": None, "divopd": {"params": {"cap": 0}}})
    with pytest.raises(SuiteError) as caught:
        load_suite(path)
    assert "did you mean" not in str(caught.value) and "'cap' = 0" in str(caught.value)
