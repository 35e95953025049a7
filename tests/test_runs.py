"""Which runs of a folder are compared: finished ones, of one configuration, of the suite that is asked for."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pyarrow.parquet as pq
import pytest
import yaml

from divopd import runlog
from divopd.analysis import runs
from divopd.analysis.html.page import table_view
from divopd.analysis.report import report
from divopd.config import EnvConfig, EvalConfig, PipelineConfig, PolicyConfig, PromptConfig, TrainConfig
from divopd.suite import load_suite
from synthetic import cell, write_grid, write_run


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_grid(tmp_path_factory.mktemp("results"))


def load_all(root: Path) -> list[runs.Run]:
    return [runs.load_run(folder) for folder in runs.find_runs(root)[0]]


def test_runs_that_differ_are_not_mixed_unless_named(results: Path, tmp_path: Path):
    found = load_all(results)
    runs.check_comparable(found)
    other = write_run(tmp_path, cell(seed=7))
    meta = json.loads((other / "meta.json").read_text())
    meta["identity"]["panel"] = "0" * 64
    (other / "meta.json").write_text(json.dumps(meta))
    mixed = [*found, runs.load_run(other)]
    with pytest.raises(runs.MixedRunsError, match="differ in panel.*--allow panel"):
        runs.check_comparable(mixed)
    runs.check_comparable(mixed, ["panel"])
    with pytest.raises(runs.MixedRunsError, match="cannot allow 'scheme' to differ; one of schema, code, panel"):
        runs.check_comparable(mixed, ["scheme"])
    again = write_run(tmp_path / "b", cell(seed=8, evaluation=EvalConfig(episodes=7)))
    with pytest.raises(runs.MixedRunsError, match="evaluation"):
        runs.check_comparable([*found, runs.load_run(again)])


@pytest.mark.parametrize("kind", ["panel", "rule_file", "student", "teacher", "code"])
def test_each_hash_stops_the_report_until_it_is_allowed_by_name(tmp_path: Path, kind: str):
    for seed in (0, 1):
        other = write_run(tmp_path, cell(seed=seed), updates=10)
    meta = json.loads((other / "meta.json").read_text())
    where = meta if kind == "code" else meta["identity"]
    where[kind] = "0" * 64
    (other / "meta.json").write_text(json.dumps(meta))
    with pytest.raises(runs.MixedRunsError, match=rf"differ in {kind} \(hash .* / 0000.*--allow {kind} to mix"):
        report(tmp_path, tmp_path / "out", tmp_path, "collect")
    assert not (tmp_path / "out" / "summary.csv").exists()
    with pytest.raises(runs.MixedRunsError, match=kind):  # another name does not help
        report(tmp_path, tmp_path / "out", tmp_path, "collect", allow=["train"])
    report(tmp_path, tmp_path / "out", tmp_path, "collect", allow=[kind])
    assert len(pd.read_csv(tmp_path / "out" / "summary.csv")) == 2


def test_logs_without_a_hash_of_the_code_go_by_their_commit(tmp_path: Path):
    found = []
    for seed, commit in ((0, "a" * 40), (1, "a" * 40), (2, "b" * 40)):
        run = runs.load_run(write_run(tmp_path, cell(seed=seed), updates=10))
        run.meta["git"] = {"commit": commit, "dirty": False}
        del run.meta["code"]
        found.append(run)
    runs.check_comparable(found[:2])
    with pytest.raises(runs.MixedRunsError, match="differ in code .*commit aaaa.*commit bbbb"):
        runs.check_comparable(found)


def test_another_schema_enters_only_by_name_and_with_every_column(tmp_path: Path):
    for seed in (0, 1):
        old = write_run(tmp_path, cell(seed=seed), updates=10)
    for name in ("meta.json", "status.json"):
        content = json.loads((old / name).read_text())
        (old / name).write_text(json.dumps(content | {"schema": 1}))
    for name, schema in runlog.SCHEMAS.items():
        table = runlog.read_table(old, name)
        table = table.append_column("of_old", table.column(0))  # a column that today's schema does not have
        metadata = (schema.metadata or {}) | {b"divopd_schema": b"1"}
        pq.write_table(table.replace_schema_metadata(metadata), old / f"{name}.parquet")
    said = report(tmp_path, tmp_path / "out", tmp_path, "collect")[1]
    assert f"has schema 1, this code reads {runlog.SCHEMA_VERSION}" in said and "or pass --allow schema" in said
    report(tmp_path, tmp_path / "out", tmp_path, "collect", allow=["schema"])
    assert set(pd.read_csv(tmp_path / "out" / "summary.csv")["schema"]) == {1, runlog.SCHEMA_VERSION}
    pq.write_table(pq.read_table(old / "updates.parquet").drop_columns(["horizon"]), old / "updates.parquet")
    assert (
        "updates.parquet lacks horizon" in report(tmp_path, tmp_path / "out", tmp_path, "collect", allow=["schema"])[1]
    )


def test_unfinished_and_unevaluated_runs_are_named_and_left_out(tmp_path: Path):
    runlog.RunLog.open(cell("alfworld-2m", seed=9).run_dir(tmp_path), cell("alfworld-2m", seed=9)).flush()
    with pytest.raises(runlog.RunLogError, match="no finished run.*seed9"):
        report(tmp_path, tmp_path / "out", tmp_path, "collect")
    trained = write_run(tmp_path, cell("alfworld-2m", seed=8))
    (trained / "evaluated.json").unlink()  # killed in the middle of its panel, say
    write_run(tmp_path, cell("alfworld-2m", seed=1))
    lines = report(tmp_path, tmp_path / "out", tmp_path, "collect")
    assert lines[0].startswith("1 runs ->")
    assert [line for line in lines if "left out, not finished" in line and "seed9" in line]
    assert [line for line in lines if "left out, not evaluated, run `divopd evaluate`" in line and "seed8" in line]
    assert pd.read_csv(tmp_path / "out" / "summary.csv")["seed"].tolist() == [1]


def test_runs_without_evaluation_say_what_to_do(tmp_path: Path):
    config = cell()
    runlog.RunLog.open(config.run_dir(tmp_path), config).finish("done")
    with pytest.raises(runlog.RunLogError, match="divopd evaluate"):
        report(tmp_path, tmp_path / "out", tmp_path, "collect")


@pytest.mark.parametrize(
    ("change", "kind", "says"),
    [
        ({"train": TrainConfig(learning_rate=1e-4)}, "train", "learning_rate 1e-06 / 0.0001"),
        ({"pipeline": PipelineConfig(load=3.0)}, "pipeline", "load None / 3.0"),
        ({"env": EnvConfig(max_turns=9)}, "env", "max_turns 30 / 9"),
        ({"prompt": PromptConfig(style="chat")}, "prompt", "style compact / chat"),
        ({"evaluation": EvalConfig(episodes=7)}, "evaluation", "episodes 140 / 7"),
        ({"rollout_temperature": 0.5}, "rollout_temperature", "1.0 / 0.5"),
        ({"student": PolicyConfig(path="models/none/alfworld-0.5m", dtype="bfloat16")}, "student", "bfloat16"),
        ({"teacher": PolicyConfig(path="models/none/other")}, "teacher", "hash"),
    ],
)
def test_runs_of_one_setting_made_otherwise_are_not_mixed(tmp_path: Path, change: dict, kind: str, says: str):
    whole = cell(method="divopd").model_copy(update=change)
    found = [runs.load_run(write_run(tmp_path, config, updates=10)) for config in (cell(), whole)]
    if says == "hash":  # of a checkpoint that is not there
        found[1].meta["identity"]["teacher"] = "0" * 64
    with pytest.raises(runs.MixedRunsError, match=f"differ in {kind} .*{says}.*--allow {kind} to mix") as caught:
        runs.check_comparable(found)
    assert "\n" not in str(caught.value)
    runs.check_comparable(found, [kind])
    runs.check_comparable(found, by_method=[kind])  # the suite says that methods differ there
    moved = cell("alfworld-2m").model_copy(update=change)
    runs.check_comparable([found[0], runs.load_run(write_run(tmp_path, moved, updates=10))])  # another setting


def test_runs_whose_rollouts_arrive_otherwise_are_not_mixed(tmp_path: Path):
    """Not even those of two settings: one table shows them as one vanilla. What arrives how is said below it."""
    by_rollout = cell("alfworld-2m", pipeline=PipelineConfig(arrives="rollout"))
    found = [runs.load_run(write_run(tmp_path, config, updates=10)) for config in (cell(), by_rollout)]
    with pytest.raises(runs.MixedRunsError, match=r"differ in arrivals \(arrives step / rollout\).*--allow arrivals"):
        runs.check_comparable(found)
    runs.check_comparable(found, ["arrivals"])
    with pytest.raises(runs.MixedRunsError, match="differ in arrivals"):
        runs.check_comparable(found, by_method=["pipeline"])  # then methods may differ, and these are one method
    report(tmp_path, tmp_path / "out", tmp_path, "collect", allow=["arrivals"])
    report(tmp_path, tmp_path / "out", tmp_path, "tables")
    said = "Arrivals: by explorer step, its rollouts as they ended; and by rollout, as they end."
    assert said in (tmp_path / "out" / "tables" / "main.md").read_text()
    report(tmp_path, tmp_path / "out", tmp_path, "page")
    assert said in (tmp_path / "out" / "report.md").read_text()
    assert said in table_view(tmp_path / "out" / "tables" / "main.csv", titled=False)  # of report.html
    summary = pd.read_csv(tmp_path / "out" / "summary.csv")
    assert summary["arrives"].tolist() == ["step", "rollout"] and set(summary["order"]) == {"ended"}


def test_where_a_checkpoint_or_cache_lies_makes_no_difference(tmp_path: Path):
    other = cell(method="divopd", env=EnvConfig(cache_dir="elsewhere"))
    other = other.model_copy(update={"teacher": PolicyConfig(path="models/copied/teacher")})
    found = [runs.load_run(write_run(tmp_path, config, updates=10)) for config in (cell(), other)]
    for run in found:
        run.meta["identity"]["teacher"] = "0" * 64
    runs.check_comparable(found)


def test_a_suites_report_takes_its_own_cells_alone(tmp_path: Path):
    (tmp_path / "settings").mkdir()
    setting = {"student": {"path": "models/none/a"}, "teacher": {"path": "models/none/t"}}
    (tmp_path / "settings" / "small.yaml").write_text(yaml.safe_dump(setting))
    suite = {"name": "synthetic", "settings": ["small"], "baseline": "divopd_base", "seeds": [0, 1]}
    methods = {"divopd_base": None, "divopd": {"config": {"pipeline": {"load": 3.0}}}}
    (tmp_path / "suite.yaml").write_text(yaml.safe_dump(suite | {"methods": methods}, sort_keys=False))
    cells, root = load_suite(tmp_path / "suite.yaml"), tmp_path / "results"
    for config in cells[:3]:
        write_run(root, config, updates=10)
    write_run(root, cells[0].model_copy(update={"seed": 5}), updates=10)  # of an earlier, longer list of seeds
    lines = report(root / "synthetic", tmp_path, tmp_path, "collect", suite=tmp_path / "suite.yaml")
    assert lines[0].startswith("3 runs")
    assert [line for line in lines if "not a cell of the suite" in line and "seed5" in line]
    assert [line for line in lines if "not finished" in line and "divopd/seed1" in line], lines
    assert set(pd.read_csv(tmp_path / "summary.csv")["baseline"]) == {"divopd_base"}
    meta = json.loads((cells[0].run_dir(root) / "meta.json").read_text())
    (cells[0].run_dir(root) / "meta.json").write_text(json.dumps(meta | {"code": "0" * 64}))
    with pytest.raises(runs.MixedRunsError, match="--allow code"):
        report(root / "synthetic", tmp_path, tmp_path, "collect", suite=tmp_path / "suite.yaml")
    (tmp_path / "suite.yaml").write_text(yaml.safe_dump(suite | {"methods": methods, "allow": ["code"]}))
    assert report(root / "synthetic", tmp_path, tmp_path, "collect", suite=tmp_path / "suite.yaml")[0].startswith("3")
    (tmp_path / "suite.yaml").write_text(yaml.safe_dump(suite | {"methods": methods, "common": {"train": {"beta": 2}}}))
    with pytest.raises(runlog.RunLogError, match="no finished run.*configured otherwise"):
        report(root / "synthetic", tmp_path, tmp_path, "collect", suite=tmp_path / "suite.yaml")


def test_a_baseline_that_no_run_has_is_one_clear_line(results: Path, tmp_path: Path):
    with pytest.raises(runlog.RunLogError, match="baseline 'vanila'.*divopd, divopd_base, vanilla$"):
        report(results, tmp_path, tmp_path, "collect", "vanila")
