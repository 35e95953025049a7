"""The suite that a workflow runs: one file that every job reads, with what `--config` and further files changed."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from divopd.files import atomic_write
from divopd.suite_spec import SuiteError, read_yaml, suite_spec


def suite_file(config: Mapping[str, Any], files: Sequence[Path], results: Path = Path("results")) -> Path:
    """The suite file itself where `config` is what it says; else `results`/<name>/suites/<hash>.yaml, a merged suite.

    `config` is what Snakemake made of the `files`, each over those before it, and of `--config`. A merged suite's name
    depends on its content: it is never changed under jobs that read it, and another override leaves it as it is. It
    finds settings and methods where the first file would. Raises SuiteError that names the file, or the merged suite.
    """
    contents = [read_yaml(file) for file in files]  # Snakemake's own reader takes a key twice
    plain = json.loads(json.dumps(config, default=str))
    if len(files) == 1 and plain == json.loads(json.dumps(contents[0], default=str)):
        return files[0]
    try:
        spec = suite_spec(plain, Path("--config" if len(files) == 1 else "--configfile"))
    except SuiteError as error:
        raise SuiteError(f"{error} (merged from {', '.join(map(str, files))} and --config)") from None
    folder = results / spec.name / "suites"
    origin = files[0] if spec.beside is None else files[0].parent / spec.beside
    text = yaml.safe_dump(plain | {"beside": os.path.relpath(origin, folder)}, sort_keys=False, allow_unicode=True)
    path = folder / f"{hashlib.sha256(text.encode()).hexdigest()[:12]}.yaml"
    if not path.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        atomic_write(path, text.encode())
    return path
