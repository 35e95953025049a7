"""What installs the suite: pins in step, no machine's paths, the house's limits on size."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml

from divopd.provenance import file_hash

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
SOURCES = sorted([*(ROOT / "divopd").rglob("*.py"), *(ROOT / "baselines").glob("*.py")])


def tracked() -> list[Path]:
    """Files under version control, or all of them where there is no git."""
    try:
        run = subprocess.run(["git", "-C", str(ROOT), "ls-files"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return SOURCES
    return [path for name in run.stdout.splitlines() if (path := ROOT / name).is_file()]


def test_conda_installs_the_locked_versions():
    dependencies = yaml.safe_load((ROOT / "environment.yml").read_text())["dependencies"]
    assert next(entry["pip"] for entry in dependencies if isinstance(entry, dict)) == ["-r requirements/core-py312.txt"]
    assert "python =3.12" in dependencies


def test_licence_and_citation():
    assert "Apache License" in (ROOT / "LICENSE").read_text()[:200]
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["license"] == PROJECT["license"] == "Apache-2.0"


def test_ci_runs_the_tests():
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    assert "make test" in script.read_text()


def test_no_file_names_a_machine():
    # written in pieces, so that this file passes too
    pattern = re.compile("|".join(["/ro" + "ot/", "/wo" + r"rk\b", "/tm" + "p/", "/ho" + "me/", "py" + r"pi\.org"]))
    for path in tracked():
        if path.suffix in {".safetensors", ".png", ".pdf", ".parquet", ".xz", ".gz"}:
            continue
        text = path.read_text(encoding="utf-8", errors="replace")
        found = pattern.search(text)
        assert found is None, f"{path.relative_to(ROOT)}: {found.group()}"


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_modules_and_functions_stay_small(path: Path):
    text = path.read_text()
    assert len(text.splitlines()) <= 300
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno - node.lineno < 50, f"{node.name} is too long"


def fake(folder: Path, name: str, script: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def find_python(folder: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """Run the search with nothing but `folder` on PATH."""
    command = ["/bin/sh", str(ROOT / "workflow" / "find_python.sh")]
    return subprocess.run(command, capture_output=True, text=True, env={"PATH": str(folder), **env})


def test_find_python_passes_over_a_shim_that_does_not_run(tmp_path: Path):
    fake(tmp_path, "g++", "exit 0")
    fake(tmp_path, "python3.12", "exit 127")
    fake(tmp_path, "python3.11", "exit 0")
    run = find_python(tmp_path)
    assert (run.returncode, run.stdout.strip()) == (0, str(tmp_path / "python3.11"))


@pytest.mark.parametrize(("have", "says"), [(["g++"], "needs Python 3.11 or 3.12"), (["python3.11"], "g++")])
def test_find_python_says_in_one_line_what_is_missing(tmp_path: Path, have: list[str], says: str):
    for name in have:
        fake(tmp_path, name, "exit 0")
    run = find_python(tmp_path)
    assert run.returncode == 1
    assert says in run.stderr
    assert len(run.stderr.splitlines()) == 1


def test_find_python_names_the_version_that_will_not_do(tmp_path: Path):
    fake(tmp_path, "g++", "exit 0")
    fake(tmp_path, "python3", "case $2 in *venv*) exit 1;; *) echo 3.13.0;; esac")
    run = find_python(tmp_path)
    assert run.returncode == 1 and len(run.stderr.splitlines()) == 1 and "python3 (3.13.0)" in run.stderr


def test_python_can_be_named(tmp_path: Path):
    fake(tmp_path, "g++", "exit 0")
    fake(tmp_path, "mine", "exit 0")
    fake(tmp_path, "python3.11", "exit 0")
    assert find_python(tmp_path, PYTHON="mine").stdout.strip() == str(tmp_path / "mine")


@pytest.mark.parametrize("sums", sorted((ROOT / "models").glob("*/SHA256SUMS")), ids=lambda p: p.parent.name)
def test_checkpoints_are_those_that_were_hashed(sums: Path):
    listed = dict(reversed(line.split("  ", 1)) for line in sums.read_text().splitlines())
    present = [path for path in sums.parent.rglob("*") if path.is_file() and path != sums]
    assert {path.relative_to(sums.parent).as_posix(): file_hash(path) for path in present} == listed


def test_readme_shows_the_reference_results():
    """Every row of the README's results table, rounded as there, from the committed results."""
    import pandas as pd

    table = pd.read_csv(ROOT / "results" / "demo-reference" / "tables" / "main.csv").set_index(["setting", "method"])
    text, setting, seen = (ROOT / "README.md").read_text(), "", 0
    for line in re.findall(r"^\|(.*±.*)\|$", text, flags=re.MULTILINE):
        name, method, start, peak, final, gain = (cell.strip() for cell in line.split("|"))
        setting = name or setting
        row = table.loc[(setting, method)]
        bound = "" if pd.isna(row.bound_trained_tokens) else row.bound_trained_tokens
        assert (start, peak) == (f"{100 * row.start:.1f}", f"{100 * row.peak:.1f}")
        few = f" (of {row.final5_count})" if row.final5_count < 5 else ""
        assert final == f"{100 * row.final5_mean:.1f} ± {100 * row.final5_std:.1f}{few}"
        speedup = f"{row.speedup_trained_tokens:.2f}×"
        assert gain == (f"– ({bound}{speedup})" if bound else speedup)
        seen += 1
    assert seen == len(table)
