"""The `divopd` command. Heavy imports wait until a subcommand needs them."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from divopd import __version__, homes
from divopd.cli_audit import audit, redraw, sweep
from divopd.cli_plan import plan
from divopd.cli_play import play
from divopd.cli_replay import replay
from divopd.cli_run import run
from divopd.cli_suite import takes_suite
from divopd.interrupts import interrupted, terminable

if TYPE_CHECKING:
    from divopd.config import RunConfig

# by name, so that --help imports none of them: errors whose one line says all that a user needs
EXPECTED = ("SuiteError", "RuleError", "RunLogError", "SetupError", "EnvError", "PolicyError", "MixedRunsError",
            "WorkerLostError", "StarvedError", "ReplayError", "RolloutError", "LossError", "PromptError",
            "DivergedError")  # fmt: skip
PROGRESS = click.option(
    "--progress",
    type=click.Choice(["auto", "bar", "lines", "none"]),
    default="auto",
    help="bar on a terminal, else lines",
)


class Main(click.Group):
    """Ends every expected failure in one line and exit code 1, Ctrl-C in one that says what is kept; --debug shows the
    trace.
    """

    def invoke(self, ctx: click.Context) -> Any:
        try:
            with terminable():
                return super().invoke(ctx)
        except (click.exceptions.Exit, click.ClickException):
            raise
        except (KeyboardInterrupt, click.Abort) as stop:
            raise interrupted(ctx.invoked_subcommand, stop) from None
        except Exception as error:
            if ctx.params.get("debug"):
                raise
            text = " ".join(str(error).split())
            if type(error).__name__ in EXPECTED:
                raise click.ClickException(text) from None
            if isinstance(error, PermissionError | IsADirectoryError | NotADirectoryError | FileNotFoundError):
                raise click.ClickException(f"{error.filename}: {error.strerror}") from None
            kind = type(error).__name__
            raise click.ClickException(f"{kind}: {text} (unexpected; `divopd --debug ...` shows where)") from None


@click.group(cls=Main, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="divopd")
@click.option("--debug", is_flag=True, help="Show the full trace of an error.")
def main(debug: bool) -> None:
    """A reproducible suite for asynchronous on-policy distillation of multi-turn agents (arXiv 2609.34838)."""
    homes.settle()
    if logging.lastResort is not None:  # so that warnings can be told from progress in a job's log
        logging.lastResort.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))


@main.command()
@takes_suite(required=False, help="The same as SUITE_FILE; with -s, -m and -n.")
@click.option("--setting", "-s", help="Setting of the suite.")
@click.option("--method", "-m", help="Method of the suite.")
@click.option("--seed", "-n", type=int, default=0, show_default=True)
@click.option(
    "--config", "config_file", type=click.Path(path_type=Path), help="A resolved cell instead (a run's config.yaml)."
)
@click.option(
    "--out", type=click.Path(path_type=Path), default=Path("results"), show_default=True, help="Root of results."
)
@click.option(
    "--replace", is_flag=True, help="Start over where the folder holds a run of another configuration or rule."
)
@PROGRESS
def train(
    suite_file: Path | None, setting: str | None, method: str | None, seed: int, config_file: Path | None, out: Path,
    replace: bool, progress: Any,
) -> None:  # fmt: skip
    """Train one cell, or go on where it was killed."""
    from divopd import doctor, runlog

    config = _cell(suite_file, setting, method, seed, config_file)
    doctor.require(config, out)
    run_dir = config.run_dir(out)
    if not replace:
        runlog.require_same(run_dir, config)  # at once: what works takes a second to import
    _work("divopd.train", "train", config, (config, run_dir), "update", progress, replace=replace)
    click.echo(f"{run_dir}: {runlog.read_json(run_dir, 'status.json')['status']}")


@main.command()
@click.argument("run_dir", type=click.Path(path_type=Path))
@PROGRESS
def evaluate(run_dir: Path, progress: Any) -> None:
    """Evaluate the checkpoints of a run that have not been evaluated yet."""
    from divopd import runlog

    config = runlog.read_config(run_dir)
    runlog.read_json(run_dir, "status.json")
    _work("divopd.evaluate", "evaluate_run", config, (run_dir,), "checkpoint", progress)
    runlog.mark_evaluated(run_dir)


@main.command()
@click.argument("results_dir", type=click.Path(path_type=Path))
@click.option(
    "--out", type=click.Path(path_type=Path),
    help="Where CSVs, tables/, report.md and report.html go.  [default: RESULTS_DIR]",
)  # fmt: skip
@click.option("--figures", type=click.Path(path_type=Path), help="Where figures go.  [default: OUT/figures]")
@click.option(
    "--stage", "stages", type=click.Choice(["all", "collect", "tables", "figures", "page", "html"]), default=["all"],
    show_default=True, multiple=True,
    help="These stages only, in this order; all but collect read the CSVs in OUT.",
)  # fmt: skip
@click.option("--baseline", help="Method that speedups compare with.  [default: the suite's, else vanilla]")
@click.option(
    "--allow",
    multiple=True,
    help="Compare runs that differ in this (schema, code, panel, student, teacher, rule_file, train, ...).",
)
@takes_suite(required=False, help="The same as SUITE_FILE: collect its cells alone.")
def report(
    results_dir: Path, out: Path | None, figures: Path | None, stages: tuple[str, ...], baseline: str | None,
    allow: tuple[str, ...], suite_file: Path | None,
) -> None:  # fmt: skip
    """Collect runs into CSVs, and draw tables and figures from them."""
    from divopd.analysis.report import report as work

    if not results_dir.is_dir():  # before anything makes the folder of a typing error
        raise click.ClickException(f"{results_dir}: no such folder, so no finished run")
    out = out or results_dir
    for stage in stages:
        for line in work(results_dir, out, figures or out / "figures", stage, baseline, allow, suite_file):
            click.echo(line)


@main.command()
@takes_suite()
@click.option("--workers", type=click.IntRange(1), default=1, show_default=True, help="Processes.")
@PROGRESS
def prepare(suite_file: Path, workers: int, progress: Any) -> None:
    """Compile the games that a suite plays, once, so that its runs need not."""
    from divopd.envs.prepare import prepare as work
    from divopd.progress import Progress
    from divopd.suite import load_suite

    with Progress("prepare", "task", progress) as bar:
        click.echo(f"{work(load_suite(suite_file), workers, bar)} tasks ready")


@main.command()
@takes_suite()
@click.option("--episodes", type=click.IntRange(1), default=140, show_default=True)
def panel(suite_file: Path, episodes: int) -> None:
    """Success of a suite's teachers and untrained students on the panel, with 95 % Wilson intervals."""
    from divopd.panel import scores
    from divopd.suite import load_suite

    for score in scores(load_suite(suite_file), episodes):
        click.echo(score.line())


@main.command()
@click.argument("recipe_file", type=click.Path(path_type=Path))
@click.option("--model", "names", multiple=True, help="Only this one (repeatable).  [default: all, in order]")
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Where the checkpoints go.")
@click.option("--work", type=click.Path(path_type=Path), default=Path(".cache/recipe"), show_default=True)
def models(recipe_file: Path, names: tuple[str, ...], out: Path, work: Path) -> None:
    """Make the small checkpoints of a recipe: demonstrations, cloning, DAgger. Goes on where it was stopped."""
    from pydantic import ValidationError

    from divopd.cloning.recipe import Recipe, read_recipe
    from divopd.suite import SuiteError

    try:
        spec = read_recipe(recipe_file)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        raise SuiteError(f"{recipe_file}: {key}: {first['msg']}") from error
    for name in names:
        if name not in spec.models:
            raise SuiteError(f"{recipe_file}: no model {name!r}; it has {', '.join(spec.models)}")
    recipe = Recipe(spec, out, work, click.echo)
    for name in names or spec.models:
        recipe.make(name)
    recipe.write_hashes()


@main.command()
@click.argument("name", required=False)
def rules(name: str | None) -> None:
    """List the selection rules, or show all about one: a name, or the path of a .py file."""
    from divopd import scaffold, selection

    if name is not None:
        click.echo(scaffold.description(selection.rule_class(name)))
        return
    broken: list[selection.RuleError] = []
    for rule in selection.available_rules(broken).values():
        click.echo(scaffold.summary(rule))
    if broken:
        raise selection.RuleError("; ".join(map(str, broken)))


@main.command("new-rule")
@click.argument("name")
def new_rule(name: str) -> None:
    """Write a rule to start from, with its test: baselines/NAME.py and tests/test_rule_NAME.py."""
    from divopd import scaffold, selection

    for path in scaffold.new_rule(name, selection.rules_dir().parent):
        click.echo(f"wrote {path}")
    click.echo("then: a row in docs/rules.md, and the rule's name under `methods` of a suite")


@main.command()
@takes_suite(required=False)
@click.option("--out", type=click.Path(path_type=Path), default=Path("results"), show_default=True)
def doctor(suite_file: Path | None, out: Path) -> None:
    """Check Python, packages, engines, device and output folder, and with a suite all that its cells need.

    That is GPUs and their memory, driver, vLLM and Ray, Java, models, tokenizers, official data, templates and disk.
    """
    from divopd import doctor as checks
    from divopd.suite import load_suite

    results = checks.examine(out, load_suite(suite_file) if suite_file else [])
    for check in results:
        mark = "ok     " if check.ok else "MISSING" if check.needed else "note   "
        click.echo(f"{mark} {check.name}: {check.detail}")
    failed = sum(check.needed and not check.ok for check in results)
    if failed:
        raise click.ClickException(f"{failed} check(s) failed")


for command in (audit, plan, play, redraw, replay, run, sweep):
    main.add_command(command)


def _cell(
    suite_file: Path | None, setting: str | None, method: str | None, seed: int, config_file: Path | None
) -> RunConfig:
    from divopd import lookup, suite

    if config_file is not None:
        if suite_file or setting or method:
            raise click.UsageError("give --config, or --suite with --setting and --method, not both")
        return suite.read_config_file(config_file)
    if suite_file is None or setting is None or method is None:
        raise click.UsageError("give --suite, --setting and --method, or --config")
    cell = suite.find_cell(suite.load_suite(suite_file), setting, method, seed)
    if missing := lookup.missing_file(cell, suite_file):
        raise suite.SuiteError(f"{suite_file}: {missing}")
    return cell


def _work(
    module: str, name: str, config: RunConfig, args: tuple[Any, ...], unit: str, style: Any, **options: Any
) -> None:
    """Call module.name(*args, progress, **options), importing it here: that brings torch."""
    import importlib

    from divopd.progress import Progress

    function: Callable[..., Any] = getattr(importlib.import_module(module), name)
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()  # of loading weights, in the middle of ours
    with Progress(f"{config.setting}/{config.method.name}/{config.seed}", unit, style) as progress:
        function(*args, progress, **options)


if __name__ == "__main__":
    main()
