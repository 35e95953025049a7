"""`divopd redraw`: tables, figures and pages of many suites again, from the CSVs that their reports left."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import as_completed
from pathlib import Path

from divopd.analysis import sweeps
from divopd.analysis.report import report
from divopd.runlog import RunLogError
from divopd.worker_pool import WorkerPool


def suites(results: Path) -> list[Path]:
    """The folders in `results` that hold a collected suite. Raises RunLogError where there is none."""
    found = [path.parent for path in sorted(results.glob("*/summary.csv"))]
    if not found:
        raise RunLogError(f"{results} holds no collected suite; run `divopd run` or `divopd report` first")
    return found


def redraw(folders: Sequence[Path], figures: Path, jobs: int) -> Iterator[tuple[Path, str | None]]:
    """Draw suites again, `jobs` at once, and give each as it ends: its folder, and what went wrong (None: nothing).

    Pages come when all is drawn: they show the figures of sweeps, which are suites of their own.
    """
    largest_first = sorted(folders, key=lambda folder: -(folder / "summary.csv").stat().st_size)
    whole = []
    # fork: pandas and matplotlib are imported once for all, and nothing has started a thread yet
    with WorkerPool(jobs, "fork") as pool:
        tasks = {pool.submit(_draw, folder, figures / folder.name): folder for folder in largest_first}
        for task in as_completed(tasks):
            if task.result() is None:
                whole.append(tasks[task])
            yield tasks[task], task.result()
    for folder in whole:
        report(folder, folder, figures / folder.name, "page")


def _draw(folder: Path, figures: Path) -> str | None:
    try:
        report(folder, folder, figures, "tables")
        if (folder / "sweep.csv").exists():  # by what is swept, which says more than a dozen learning curves
            sweeps.draw_again(folder, figures)
        else:
            report(folder, folder, figures, "figures")
    except (RunLogError, OSError) as error:
        return str(error)
    return None
