"""Shared pieces: random tiny models with the real tokenizer, and cells small enough to run in seconds."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from divopd import homes

homes.settle()
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
OFFICIAL = Path(__file__).resolve().parent.parent.parent / "shared" / "data"


LONGEST = (
    "test_ray_workers", "test_workflow", "test_ray_spread", "test_ray", "test_sharded", "test_scienceworld_jvm",
    "test_ray_nodes", "test_types", "test_ray_road", "test_cloning", "test_contract", "test_models",
    "test_html_browser", "test_learner_scale", "test_figures", "test_console",
)  # fmt: skip


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files that take long come first: at the end one of them would keep a process waiting for the other."""
    places = {name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.path.stem, len(places)))


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    import torch

    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def tokenizer() -> Any:
    from divopd.cloning.tokenizer import build_tokenizer
    from divopd.envs.alfworld.plugin import words

    return build_tokenizer(*words())


@pytest.fixture(scope="session")
def tiny_models(tmp_path_factory: pytest.TempPathFactory, tokenizer: Any) -> Path:
    """A folder with `student` and `teacher`: untrained, 20,000 parameters each, and different."""
    from divopd.cloning.model import ModelSize, new_model

    root = tmp_path_factory.mktemp("models")
    for name, seed in (("student", 0), ("teacher", 1)):
        new_model(ModelSize(32, 2, 2, 48, 2), tokenizer, seed).save_pretrained(root / name)
        tokenizer.save_pretrained(root / name)
    return root


@pytest.fixture(scope="session")
def game_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compiled games, shared by all tests of a process."""
    return tmp_path_factory.mktemp("games")


@pytest.fixture
def tiny_cell(tiny_models: Path, game_cache: Path, tmp_path: Path) -> Callable[..., Any]:
    """A cell on four generated games with short episodes; keyword arguments replace top-level fields."""
    from divopd.config import RunConfig

    panel = tmp_path / "panel.txt"
    panel.write_text("gen/eval/0\ngen/eval/1\ngen/eval/2\n")

    def make(rule: str = "divopd", **changes: Any) -> RunConfig:
        fields: dict[str, Any] = {
            "suite": "tiny",
            "setting": "tiny",
            "method": {"name": rule, "rule": rule},
            "student": {"path": str(tiny_models / "student")},
            "teacher": {"path": str(tiny_models / "teacher")},
            "env": {
                "train_tasks": "gen/train/0:4",
                "eval_panel": str(panel),
                "max_turns": 6,
                "cache_dir": str(game_cache),
            },
            "prompt": {"max_prompt_tokens": 48, "max_response_tokens": 3},
            "train": {"updates": 6, "batch_rows": 8, "learning_rate": 1e-3},
            "pipeline": {"tasks_per_step": 4, "load": 2.0, "save_every": 2},
            "evaluation": {"every_updates": 3, "episodes": 3, "batch": 2},
        }
        return RunConfig.model_validate(fields | changes)

    return make


@pytest.fixture(scope="session")
def diverged(tmp_path_factory: pytest.TempPathFactory, game_cache: Path) -> tuple[Path, Path]:
    """A suite of a whole and three diverged runs, trained and evaluated: its results, not to be changed, its file."""
    from diverged_suite import write_suite
    from divopd.evaluate import evaluate_run
    from divopd.runlog import mark_evaluated
    from divopd.suite import load_suite
    from divopd.train import train
    from train_runs import quiet

    root = tmp_path_factory.mktemp("diverged")
    suite = write_suite(root, game_cache)
    for cell in load_suite(suite):
        run = cell.run_dir(root / "results")
        assert train(cell, run, quiet) == ("done" if cell.method.name == "vanilla" else "diverged")
        evaluate_run(run, quiet)
        mark_evaluated(run)
    return root / "results" / "diverging", suite


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    """A Ray cluster of two cores, for the tests of one file."""
    import ray

    os.environ.setdefault("RAY_worker_niceness", "0")
    ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    yield
    ray.shutdown()


@pytest.fixture
def ray_cell(tiny_cell: Callable[..., Any]) -> Callable[..., Any]:
    """The tiny cell on the cluster; `placement` and `pipeline` are added to."""
    from ray_runs import PLACEMENT

    def make(rule: str = "divopd", placement: Any = None, pipeline: Any = None, **changes: Any) -> Any:
        base = {"tasks_per_step": 4, "load": 2.0, "save_every": 2, "kind": "ray"}
        return tiny_cell(rule, placement=PLACEMENT | (placement or {}), pipeline=base | (pipeline or {}), **changes)

    return make


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Writes a file, of a rule if it is not named."""

    def file(text: str, name: str = "mine.py") -> Path:
        path = tmp_path / name
        path.write_text(text)
        return path

    return file


@pytest.fixture
def collected_sweep(tmp_path: Path) -> tuple[Path, Path]:
    """A suite of three methods at two loads, run in appearance and collected: its results and its file."""
    import yaml

    from divopd.analysis.report import report
    from divopd.suite import load_suite
    from synthetic import write_run

    (tmp_path / "settings").mkdir()
    (tmp_path / "settings" / "alfworld-0.5m.yaml").write_text(
        yaml.safe_dump({"student": {"path": "models/none/a"}, "teacher": {"path": "models/none/b"}})
    )
    methods = {name: {"config": {"pipeline": {"tasks_per_step": tasks}}} for name, tasks in
               (("vanilla", 2), ("divopd_base", 6), ("divopd", 6))}  # fmt: skip
    suite = tmp_path / "suite.yaml"
    content = {
        "name": "synthetic",
        "settings": ["alfworld-0.5m"],
        "methods": methods,
        "sweep": "pipeline.tasks_per_step",
    }
    suite.write_text(yaml.safe_dump(content))
    for cell in load_suite(suite):
        write_run(tmp_path / "results", cell, updates=20)
    results = tmp_path / "results" / "synthetic"
    report(results, results, results / "figures", "collect", suite=suite)
    return results, suite
