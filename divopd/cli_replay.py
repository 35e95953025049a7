"""`divopd replay`. Heavy imports wait until it runs."""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.option("--run", "run_dirs", type=click.Path(path_type=Path), multiple=True, help="Folder of a finished run.")
@click.option("--stream", "stream_files", type=click.Path(path_type=Path), multiple=True, help="Stream file.")
@click.option("--rule", "rule_names", multiple=True, help="NAME, NAME:key=value or a .py file.  [default: all rules]")
@click.option("--updates", type=click.IntRange(1), help="Updates to replay.  [default: the stream's, or the run's]")
@click.option("--seed", "seeds", type=int, multiple=True, default=[0], show_default=True, help="Of streams.")
@click.option("--load", type=click.FloatRange(0, min_open=True), help="Arrival / drain of streams to aim at.")
@click.option("--out", type=click.Path(path_type=Path), default=Path("results/replay"), show_default=True)
def replay(
    run_dirs: tuple[Path, ...], stream_files: tuple[Path, ...], rule_names: tuple[str, ...], updates: int | None,
    seeds: tuple[int, ...], load: float | None, out: Path,
) -> None:  # fmt: skip
    """What rules would train on: feed arrival streams, recorded or synthetic, to selection rules. No model needed."""
    from divopd.replay import ReplayError
    from divopd.replay.report import Report, RuleChoice
    from divopd.selection import available_rules
    from divopd.streams import read_stream

    if not run_dirs and not stream_files:
        raise click.UsageError("give --run, --stream or several of them")
    lists = {"--run": run_dirs, "--stream": stream_files, "--rule": rule_names, "--seed": seeds}
    for option, given in lists.items():
        if len(set(given)) < len(given):  # it would count twice in every mean
            raise click.UsageError(f"{option}: {max(given, key=given.count)} is there twice")
    try:
        specs = [read_stream(path) for path in stream_files]
        if load is not None:
            specs = [spec.with_load(load) for spec in specs]
        rules = [RuleChoice.parse(name) for name in rule_names or available_rules()]
        for rule in rules:
            rule.build({})  # an unknown rule is said before anything is replayed
        report = Report(rules, updates)
        for run_dir in run_dirs:
            report.run(run_dir)
        for spec in specs:
            report.stream(spec, seeds)
        click.echo(report.write(out))
    except ReplayError as error:
        raise click.ClickException(str(error)) from None
    click.echo(f"written to {out}")
