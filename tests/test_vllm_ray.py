"""vLLM inside Ray actors, for real: `make vllm-test`, as it needs packages of its own."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from divopd.config import EngineConfig, PolicyConfig, RunConfig
from divopd.runlog import read_json, read_table
from divopd.train import train
from ray_runs import SMALL, check_log, fleets

if importlib.util.find_spec("vllm") is None:
    pytest.skip("vllm is not installed here: `make vllm-test` runs these tests", allow_module_level=True)
pytestmark = pytest.mark.slow

GPU = torch.cuda.is_available()
EQUAL = 5e-3 if GPU else 5e-5  # nats, as in test_vllm.py


@pytest.fixture
def cell(ray_cell: Callable[..., RunConfig]) -> RunConfig:
    """Student and teacher on vLLM, an engine each, on one GPU where there is one."""
    share = {"gpus": 0.3} if GPU else {}
    engine = EngineConfig(cache_gib=0.25, episodes=16, gpu_memory=0.25)
    student, teacher = (
        PolicyConfig(path=f"models/alfworld/{name}", backend="vllm", engine=engine).model_dump()
        for name in ("student-0.5m", "teacher")
    )
    return ray_cell(
        placement={kind: SMALL | share for kind in ("explorers", "scorers", "learners")} | {"evaluators": {"count": 0}},
        student=student,
        teacher=teacher,
        prompt={"max_prompt_tokens": 160, "max_response_tokens": 4},
        train={"updates": 8, "batch_rows": 8, "learning_rate": 1e-3},
    )


def engine_processes(seat: Any) -> list[psutil.Process]:
    """What a seat's actor has started for its engine: its core and worker. vLLM names them, which does not always take:
    then they look as multiprocessing has started them, which nothing else below an actor is."""
    below = [(process, title(process)) for process in psutil.Process(seat.pid).children(recursive=True)]
    found = [process for process, name in below if "VLLM" in name or "spawn_main" in name]
    assert len(found) == (1 if GPU else 2), below
    return found


def title(process: psutil.Process) -> str:
    """Its name and what follows; nothing where it has just ended."""
    with suppress(psutil.NoSuchProcess):
        return " ".join([process.name(), *process.cmdline()])
    return ""


def test_a_cell_trains_whoever_dies(
    cluster: None, cell: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Engines live in actors, and get weights from the learner directly. Sampler and learner agree after each sync. A
    killed actor takes its engine with it, and a killed engine costs its actor; at the end nothing is left of any."""
    found, started = fleets(monkeypatch), []

    def kill(done: int, total: int, words: str) -> None:
        explorer, scorer = found[0].of("explorer")[0], found[0].of("scorer")[0]
        if done == 1:
            started.extend([engine_processes(scorer), engine_processes(explorer)])
            psutil.Process(explorer.pid).kill()
        if done == 4:  # with turns of version 1 at least: a new explorer has played them
            gone, alive = psutil.wait_procs(started[1], timeout=30)
            assert gone and not alive
            started.append(engine_processes(explorer))
            started[2][0].kill()

    assert train(cell, tmp_path / "run", kill) == "done"
    check_log(cell, tmp_path / "run")
    assert all(started) and psutil.wait_procs(sum(started, []), timeout=30)[1] == []
    status = read_json(tmp_path / "run", "status.json")
    assert status["replaced"] == {"explorer": 2, "scorer": 0, "learner": 0, "evaluator": 0}
    assert status["weights"]["direct"] >= 3 and status["weights"]["store"] == 0
    rows = read_table(tmp_path / "run", "parity").to_pylist()
    assert len({row["version"] for row in rows}) > 1 and "alarms" not in status
    assert all(row["tokens"] and 0 < row["max_gap"] < EQUAL for row in rows)
