"""Is this machine ready? Each check looks at one thing that a run needs and says what to do where it is missing."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from divopd.config import PolicyConfig, RunConfig
from divopd.provenance import package_versions

# environment -> what plays it: module -> package
ENGINES = {
    "alfworld": {"alfworld": "alfworld", "textworld": "textworld", "fast_downward": "fast-downward-textworld"},
    "scienceworld": {"scienceworld": "scienceworld", "py4j": "py4j"},
    "webshop": {"rapidfuzz": "rapidfuzz"},
}


class SetupError(RuntimeError):
    """Something a run needs is missing; one line with the mend."""


@dataclass(frozen=True, slots=True)
class Check:
    """One line of `divopd doctor`. `needed`: False for what only some uses need."""

    name: str
    ok: bool
    detail: str
    needed: bool = True


def examine(out: Path, cells: Iterable[RunConfig] = ()) -> list[Check]:
    """All checks of this machine, and of the checkpoints and panels that the cells name."""
    version = sys.version_info
    checks = [
        Check("python", (3, 11) <= version[:2] <= (3, 12), f"{version[0]}.{version[1]} (3.11 or 3.12 needed)"),
        compiler(),
        *_packages(),
        *map(engine, ENGINES),
        _device(),
        writable(out),
    ]
    policies = {p.path: p for cell in cells for p in (cell.student, cell.teacher)}
    checks += [checkpoint(policy) for policy in policies.values()]
    panels = {cell.env.eval_panel for cell in cells}
    checks += [
        Check(
            f"panel {path}", Path(path).is_file(), "found" if Path(path).is_file() else "missing: restore it from git"
        )
        for path in sorted(panels)
    ]
    return checks


def require(config: RunConfig, out: Path) -> None:
    """Raise SetupError for the first thing without which this cell cannot run."""
    for check in (engine(config.env.name), checkpoint(config.student), checkpoint(config.teacher), writable(out)):
        if not check.ok:
            raise SetupError(f"{check.name}: {check.detail}")


def compiler() -> Check:
    """g++ builds the ALFWorld planner at installation; nothing needs it afterwards."""
    path = shutil.which(os.environ.get("CXX", "g++"))
    detail = path or "missing: install g++ (Debian: apt-get install g++), then `make install`"
    return Check("g++", path is not None, detail, needed=not engine("alfworld").ok)


def engine(env: str) -> Check:
    """The packages that play an environment are there; found, not imported."""
    packages = ENGINES[env]
    missing = [package for module, package in packages.items() if importlib.util.find_spec(module) is None]
    if missing:
        needs = " (it needs g++ to build the planner)" if env == "alfworld" else ""
        return Check(f"{env} engine", False, f"missing {', '.join(missing)}: run `make install`{needs}")
    return Check(f"{env} engine", True, ", ".join(f"{p} {package_versions((p,))[p]}" for p in packages.values()))


def checkpoint(policy: PolicyConfig) -> Check:
    """A local folder must hold a model; a hub id (organisation/name) is taken on trust."""
    name, folder = f"checkpoint {policy.path}", Path(policy.path)
    if (folder / "config.json").is_file() and any(folder.glob("*.safetensors")):
        return Check(name, True, "found")
    is_hub_id = policy.path.count("/") == 1 and not policy.path.startswith((".", "/")) and not folder.parent.is_dir()
    if is_hub_id and not folder.exists():
        return Check(name, True, "a hub id: fetched or taken from the local cache when a run starts")
    return Check(name, False, "missing or incomplete: restore it from git, or rebuild it with `make models`")


def writable(out: Path) -> Check:
    """A file can be made under `out`, or under the nearest folder above it that exists."""
    folder = out.absolute()
    while not folder.exists():
        folder = folder.parent
    try:
        probe = folder / f".divopd-probe-{os.getpid()}"
        probe.touch()
        probe.unlink()
    except OSError as error:
        return Check(f"output {out}", False, f"not writable ({error.strerror}): choose another --out")
    return Check(f"output {out}", True, f"writable, {shutil.disk_usage(folder).free / 2**30:.0f} GiB free")


def _packages() -> list[Check]:
    names = ("torch", "transformers", "pandas", "pyarrow", "snakemake")
    found = package_versions(names)
    return [Check(name, bool(found[name]), found[name] or "missing: run `make install`") for name in names]


def _device() -> Check:
    if importlib.util.find_spec("torch") is None:
        return Check("device", False, "torch is missing")
    # in a process of its own: a broken CUDA installation can end the interpreter
    code = (
        "import torch; n = torch.cuda.device_count(); "
        "print(n, torch.version.cuda, *map(torch.cuda.get_device_name, range(n)))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    if run.returncode:
        return Check("device", False, f"torch does not import: {run.stderr.strip().splitlines()[-1]}")
    gpus, cuda, *names = run.stdout.split(maxsplit=2)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    build = "CPU build" if cuda == "None" else f"CUDA {cuda} build"
    named = f" ({names[0].strip()})" if names else ""
    return Check("device", True, f"torch {build}, {gpus} GPU(s){named}, {cores} core(s)")
