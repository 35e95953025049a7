"""How commands take a suite's file: as an argument or after `--suite`, all of them alike."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click


def takes_suite(required: bool = True, help: str = "The same as SUITE_FILE.") -> Callable[[Callable[..., Any]], Any]:
    """Give a command `suite_file`, from its last argument or from --suite; None where it is not `required`."""

    def decorate(command: Callable[..., Any]) -> Any:
        @functools.wraps(command)
        def with_suite(*args: Any, suite_argument: Path | None, suite_option: Path | None, **others: Any) -> Any:
            if suite_argument and suite_option and suite_argument != suite_option:
                raise click.UsageError(f"two suites, {suite_argument} and {suite_option}: give one")
            suite_file = suite_argument or suite_option
            if required and suite_file is None:
                raise click.UsageError("no suite: give SUITE_FILE, such as experiments/demo.yaml")
            return command(*args, suite_file=suite_file, **others)

        path = click.Path(path_type=Path)
        argument = click.argument("suite_argument", metavar="[SUITE_FILE]", type=path, required=False)
        return argument(click.option("--suite", "suite_option", type=path, help=help)(with_suite))

    return decorate
