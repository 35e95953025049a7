"""`divopd audit`, `divopd sweep` and `divopd redraw`. Heavy imports wait until a command needs them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from divopd.cli_suite import takes_suite

# not divopd.cli's: that module registers these commands
PROGRESS = click.option(
    "--progress",
    type=click.Choice(["auto", "bar", "lines", "none"]),
    default="auto",
    help="bar on a terminal, else lines",
)


@click.command()
@click.argument("run_dir", type=click.Path(path_type=Path))
@click.option("--update", type=click.IntRange(0), required=True, help="The update whose pool is looked at.")
@click.option("--rule", "names", multiple=True, help="Only this rule (repeatable).  [default: all]")
@click.option("--sketch", type=click.IntRange(1), help="Project gradients to so many numbers.  [default: as needed]")
@click.option("--seeds", type=click.IntRange(1), default=32, show_default=True, help="Draws of rules that draw.")
@click.option("--whole", is_flag=True, help="Beside it the gradients of the loss over the whole vocabulary.")
@click.option("--rescue", type=click.IntRange(0), default=0, help="Times that the teacher plays on from each turn.")
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Where the audit goes.")
@PROGRESS
def audit(
    run_dir: Path, update: int, names: tuple[str, ...], sketch: int | None, seeds: int, whole: bool, rescue: int,
    out: Path, progress: Any,
) -> None:  # fmt: skip
    """Compare the gradient of each rule's batch with the pool's, at one update of a finished run."""
    from transformers.utils import logging

    from divopd.analysis.audit import write
    from divopd.audit.measure import rules_for
    from divopd.audit.rebuild import rebuild
    from divopd.audit.study import study
    from divopd.progress import Progress
    from divopd.runlog import read_config

    logging.disable_progress_bar()  # of loading weights, in the middle of ours
    config = read_config(run_dir)
    rules = rules_for(config.method, names)  # first: an unknown rule is found at once
    with Progress("rebuild", "update", progress) as bar:
        moment = rebuild(run_dir, update, bar)
    result = study(moment, rules, seeds, sketch, whole, rescue, lambda stage, unit: Progress(stage, unit, progress))
    title = f"{config.setting}, {config.method.name}, seed {config.seed}, update {update}"
    for line in write(result, title, config.env.name, out):
        click.echo(line)


@click.command()
@click.argument("results_dir", type=click.Path(path_type=Path))
@takes_suite(help="The same as SUITE_FILE: one with a sweep.")
@click.option(
    "--figures", type=click.Path(path_type=Path), help="Where the figure goes.  [default: RESULTS_DIR/figures]"
)
def sweep(results_dir: Path, suite_file: Path, figures: Path | None) -> None:
    """Table and figure by the quantity that a suite sweeps, from what `divopd report` collected."""
    from divopd.analysis.sweeps import sweep as work

    for line in work(results_dir, suite_file, figures or results_dir / "figures"):
        click.echo(line)


@click.command()
@click.argument("results", type=click.Path(path_type=Path), default="results")
@click.option("--figures", type=click.Path(path_type=Path), default="figures", show_default=True)
@click.option("--jobs", type=click.IntRange(1), default=1, show_default=True, help="Suites drawn at once.")
def redraw(results: Path, figures: Path, jobs: int) -> None:
    """Tables, figures and pages of every suite in RESULTS again, from its CSVs alone."""
    from divopd.analysis import redraw as work

    folders, failed = work.suites(results), 0
    for done, (folder, error) in enumerate(work.redraw(folders, figures, jobs), 1):
        click.echo(f"redraw {done}/{len(folders)}: {error or folder}", err=error is not None)
        failed += error is not None
    if failed:
        raise click.ClickException(f"{failed} of {len(folders)} suites could not be drawn; the others are")
