"""Stop before an install that would fetch the CUDA build of torch for a machine without a GPU.

Asks pip what it would install for the requirement it is given, which costs seconds. Asks nothing where an index was
named (TORCH_INDEX), where the CUDA build is wanted (TORCH_CUDA=1) or where there is a GPU. To stop it prints one line
and exits with 1.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

CUDA = re.compile(r"nvidia|cuda|triton")
ADVICE = (
    "error: no GPU here, and the package index would serve the CUDA build of torch (gigabytes): run "
    "`make {target} TORCH_INDEX=<CPU wheel index; PyTorch's install page names it>`, "
    "or `make {target} TORCH_CUDA=1` to take the CUDA build anyway"
)


def has_gpu() -> bool:
    return shutil.which("nvidia-smi") is not None or Path("/proc/driver/nvidia").exists()


def would_install(requirement: str) -> list[str]:
    """Names of what pip would fetch; none where it cannot say, which the install itself will then explain."""
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--quiet", "--report", "-", requirement]
    try:
        report = json.loads(subprocess.run(command, capture_output=True, text=True).stdout)
        return [entry["metadata"]["name"].lower() for entry in report["install"]]
    except (ValueError, KeyError, TypeError):
        return []


def main() -> int:
    if os.environ.get("TORCH_INDEX") or os.environ.get("TORCH_CUDA") or has_gpu():
        return 0
    if any(CUDA.match(name) for name in would_install(sys.argv[1])):
        print(ADVICE.format(target=os.environ.get("TARGET") or "demo"), file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
