"""`divopd plan`. Heavy imports wait until it runs."""

from __future__ import annotations

from pathlib import Path

import click

from divopd.cli_suite import takes_suite


@click.command()
@takes_suite()
@click.option(
    "--rates", default="paper", show_default=True,
    help="paper, assumed, or a YAML that scripts/gpu_check.sh wrote.",
)  # fmt: skip
@click.option("--gpus", help="What limits throughput at these numbers of GPUs instead, such as 1,8,64.")
@click.option("--method", "methods", multiple=True, help="With --gpus: of these methods.  [default: divopd]")
@click.option(
    "--results", type=click.Path(path_type=Path), default=Path("results"), show_default=True,
    help="Finished runs, from which small models' costs are read.",
)  # fmt: skip
@click.option("--csv", "csv_file", type=click.Path(path_type=Path), help="Also write the table here.")
def plan(
    suite_file: Path, rates: str, gpus: str | None, methods: tuple[str, ...], results: Path, csv_file: Path | None
) -> None:
    """What a suite will cost, a cell and in all: GPU-hours, tokens, memory a rank, disk. Nothing is run or fetched."""
    from divopd.plan import report
    from divopd.plan.rates import read_rates
    from divopd.suite import load_suite

    cells = load_suite(suite_file)
    source = rates if rates in ("paper", "assumed") else read_rates(Path(rates))
    large = [cell for cell in cells if report.big(cell)]
    small = [cell for cell in cells if not report.big(cell)]
    if gpus is not None:
        if not large:
            raise click.ClickException(f"{suite_file}: its models run on a CPU core; --gpus is for large ones")
        rows = report.scaling_table(large, source, _numbers(gpus), methods or ("divopd",))
        _show(rows, csv_file)
        return
    if large:
        _show(report.gpu_table(large, source), csv_file)
        click.echo(f"models to fetch: {report.downloads(large):.0f} GiB, once")
        click.echo("Estimates: docs/scaling.md has the formulae and what each number comes from.")
    if small:
        _show(report.core_table(small, results), csv_file if not large else None)


def _numbers(text: str) -> list[int]:
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        numbers = []
    if not numbers or min(numbers) < 1:
        raise click.BadParameter(f"{text!r}: numbers of GPUs, such as 1,8,64", param_hint="--gpus")
    return numbers


def _show(rows: list[tuple[str, ...]], csv_file: Path | None) -> None:
    import csv

    from divopd.plan.report import lines

    for line in lines(rows):
        click.echo(line)
    if csv_file is not None:
        with csv_file.open("w", newline="", encoding="utf-8") as handle:
            csv.writer(handle).writerows(rows)
