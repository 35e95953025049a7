"""Where what a suite names is found: beside the suite's file first, then among the files that ship.

One order for settings, methods, panels, prompt templates, rule files and model folders: the folder of the suite's file,
the folder above it, the working directory, `experiments/` and the folder that holds it.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from divopd.config import RunConfig

TEMPLATES = (".yaml", ".yml", ".txt")  # endings of what is a file of one's own and no shipped template's name


def shipped() -> Path:
    """`experiments/` beside the package, else under the working directory."""
    beside = Path(__file__).resolve().parent.parent / "experiments"
    return beside if beside.is_dir() else Path.cwd() / "experiments"


def places(source: Path) -> list[Path]:
    """The folders that are looked in for a suite file `source`, first to last."""
    found: dict[Path, Path] = {}
    for folder in (source.parent, source.parent.parent, Path(), shipped(), shipped().parent):
        found.setdefault(folder.resolve(), folder)
    return list(found.values())


def find(names: Iterable[str], source: Path) -> Path | None:
    """The first of these relative (or absolute) paths that exists in one of the places, place by place."""
    names = list(names)
    candidates = (folder / name for folder in places(source) for name in names)
    return next((path for path in candidates if path.exists()), None)


def looked_in(source: Path) -> str:
    return "looked in " + ", ".join(str(folder) for folder in places(source))


def stems(folder: str, source: Path) -> list[str]:
    """Names of the YAML files that lie in this folder of any of the places."""
    files = (path for place in places(source) for path in place.glob(f"{folder}/*.yaml"))
    return sorted({path.name.removesuffix(".yaml") for path in files})


def located(path: str, source: Path) -> str:
    """The path as it is written where that works from here or nothing is found, else the absolute path of what is."""
    found = find([path], source)
    if found is None or (Path(path).exists() and Path(path).samefile(found)):
        return path
    return os.path.abspath(found)


def _named(cell: RunConfig) -> Iterator[tuple[str, str, str, bool]]:
    """(section, field, path, whether it can be nothing but a file) of what a cell names besides its rule."""
    for section in ("student", "teacher"):
        yield section, "path", getattr(cell, section).path, False  # or an id on the hub
    yield "env", "eval_panel", cell.env.eval_panel, True
    if cell.env.train_tasks.endswith(".txt"):
        yield "env", "train_tasks", cell.env.train_tasks, True
    if cell.prompt.template is not None and Path(cell.prompt.template).suffix in TEMPLATES:
        yield "prompt", "template", cell.prompt.template, True


def with_files(cell: RunConfig, source: Path) -> RunConfig:
    """The cell with the paths of what was found."""
    for section, field, path, _ in _named(cell):
        if (new := located(path, source)) != path:
            part = getattr(cell, section).model_copy(update={field: new})
            cell = cell.model_copy(update={section: part})
    return cell


def missing_file(cell: RunConfig, source: Path) -> str | None:
    """The first file that the cell names and that is in none of the places, in words; None if all are there."""
    for section, field, path, is_file in _named(cell):
        if is_file and not Path(path).exists():
            return f"{section}.{field}: {path}: no such file; {looked_in(source)}"
    return None


def nearest(word: str, valid: Iterable[str]) -> str:
    """The end of a message: `did you mean ...?` where a name is close, else all that there are."""
    names = sorted(set(valid))
    close = difflib.get_close_matches(word, names, n=1, cutoff=0.5)
    return f"; did you mean {close[0]!r}?" if close else f"; valid: {', '.join(names)}"
