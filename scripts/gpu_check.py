"""The work of gpu_check.sh: each step is a process of its own, so that one that fails loses no other's numbers.

With --tiny, where importing torch takes longer than the work, they share one process.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import yaml
from gpu_steps import STEPS, Size

from divopd.plan.rates import Gpu, ModelRates, RatesFile, gpu_named

SECONDS = 590.0  # for all steps


def card(tiny: bool) -> tuple[Gpu, str]:
    """This machine's GPU in a rates file's words, and what the numbers were measured on."""
    import platform

    import torch
    import transformers

    script = f"scripts/gpu_check.sh{' --tiny' if tiny else ''}"
    versions = f"torch {torch.__version__}, transformers {transformers.__version__}"
    if not torch.cuda.is_available():
        return Gpu(), f"{script} on {platform.machine()} CPU, {versions}"
    facts = torch.cuda.get_device_properties(0)
    return gpu_named(facts.name, facts.total_memory / 2**30), f"{script} on one {facts.name}, {versions}"


def main() -> int:
    parser = argparse.ArgumentParser(description="Parity and speed on one GPU (scripts/gpu_check.sh).")
    parser.add_argument("--out", type=Path, default=Path("rates.yaml"))
    parser.add_argument("--tiny", action="store_true", help="tiny shapes, for a CPU")
    parser.add_argument("--steps", default="rollout,teacher,learner,cell")
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    size = Size(args.tiny)
    if args.work is not None:  # one step, in a process of its own
        print(json.dumps(STEPS[args.steps](size, args.work)))
        return 0
    wanted = args.steps.split(",")
    names = ["models"] if {"rollout", "teacher", "cell"} & set(wanted) else []
    for name in wanted:
        names += [f"learner{i}" for i in range(len(size.learners))] if name == "learner" else [name]
    if unknown := [name for name in names if name not in STEPS]:
        parser.error(f"no step {unknown[0]!r}; steps: rollout, teacher, learner, cell")
    work = Path(tempfile.mkdtemp(prefix="gpu_check."))
    try:
        return measure(size, names, work, args.out)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def apart(name: str, work: Path, seconds: float) -> tuple[list[dict[str, Any]], str]:
    """A step in its own process: what it measured, or nothing and why."""
    command = [sys.executable, __file__, "--steps", name, "--work", str(work)]
    try:
        run = subprocess.run(command, capture_output=True, text=True, timeout=max(1.0, seconds))
    except subprocess.TimeoutExpired:
        return [], f"stopped: {SECONDS:.0f} s for all steps were over"
    said = run.stderr.strip().splitlines() or ["?"]
    return (json.loads(run.stdout.strip().splitlines()[-1]), "") if run.returncode == 0 else ([], said[-1])


def together(name: str, size: Size, work: Path) -> tuple[list[dict[str, Any]], str]:
    """A step in this process."""
    try:
        return STEPS[name](size, work), ""
    except (Exception, SystemExit) as error:
        return [], f"{type(error).__name__}: {' '.join(str(error).split())}"


def measure(size: Size, names: list[str], work: Path, out: Path) -> int:
    """Run the steps, each for as long as is left, and write what they measured; 1 where one failed."""
    gpu, source = card(size.tiny)
    rates: dict[str, dict[str, Any]] = {}
    checks: dict[str, Any] = {}
    failed, deadline = 0, time.monotonic() + SECONDS
    for name in names:
        start = time.monotonic()
        found, why = together(name, size, work) if size.tiny else apart(name, work, deadline - start)
        checks[f"step_{name}"] = f"failed: {why}" if why else f"{time.monotonic() - start:.0f} s"
        print(f"{'FAILED' if why else 'ok    '} {name}: {checks[f'step_{name}']}", flush=True)
        failed += bool(why)
        for part in found:
            checks |= part.get("checks", {})
            if "model" in part:
                mine = rates.setdefault(part["model"], {})
                mine |= part["rates"] | ({"sync_seconds": part["sync_seconds"]} if "sync_seconds" in part else {})
    measured = {name: ModelRates.model_validate(values) for name, values in rates.items()}
    content = RatesFile(source=source, gpu=gpu, models=measured, checks=checks)
    out.write_text(yaml.safe_dump(content.model_dump(mode="json"), sort_keys=False))
    print(f"written to {out}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
