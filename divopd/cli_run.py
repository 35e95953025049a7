"""`divopd run`. Heavy imports wait until it runs."""

from __future__ import annotations

import sys
from pathlib import Path

import click


@click.command()
@click.argument("suite_file", type=click.Path(path_type=Path), required=False)
@click.option("--suite", "suite_option", type=click.Path(path_type=Path), help="The same as SUITE_FILE.")
@click.option("--cores", type=click.IntRange(1), help="Jobs at a time.  [default: all cores]")
@click.option("--verbose", is_flag=True, help="Snakemake's own output, and what its jobs print.")
@click.argument("further", nargs=-1, type=click.UNPROCESSED, metavar="[-- SNAKEMAKE ARGUMENTS]")
def run(
    suite_file: Path | None, suite_option: Path | None, cores: int | None, verbose: bool, further: tuple[str, ...]
) -> None:
    """Run a suite's whole workflow, or what is left of it: train, evaluate, tables, figures, report.

    It is Snakemake that runs it, and --configfile SUITE_FILE does the same. Here one line a job is shown, a run that
    was killed is no obstacle to the next, and Ctrl-C ends the jobs.
    """
    from divopd.console.lock import BusyError
    from divopd.console.runner import Run
    from divopd.suite import load_suite, read_yaml

    if suite_option is not None and suite_file is not None:
        further = (str(suite_file), *further)
    suite = suite_option or suite_file
    if suite is None:
        raise click.UsageError("give a suite file, such as experiments/demo.yaml")
    if not Path("workflow/Snakefile").is_file():
        raise click.ClickException("no workflow/Snakefile here: run it from the root of the repository")
    load_suite(suite)  # a fault of the suite is said at once, and in one line
    try:
        sys.exit(Run(suite, read_yaml(suite)["name"], cores or _cores(), verbose, further)())
    except BusyError as error:
        raise click.ClickException(str(error)) from None


def _cores() -> int:
    import os

    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
