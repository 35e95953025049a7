"""`divopd play`: an episode in the terminal."""

from __future__ import annotations

import sys
from pathlib import Path

import click

# envs.registry.environments, which imports more than --help needs
ENVIRONMENTS = sorted(path.parent.name for path in Path(__file__).parent.glob("envs/*/plugin.py"))


@click.command()
@click.argument("environment", type=click.Choice(ENVIRONMENTS))
@click.option("--task", default="0", show_default=True, help="Task id, or a position in the panel.")
@click.option("--setting", "file", type=click.Path(path_type=Path), help="Setting file.  [default: the 0.5 M one]")
@click.option("--by", "who", default="hand", show_default=True, help="hand, student, teacher, or a checkpoint's path.")
@click.option("--temperature", type=click.FloatRange(min=0, min_open=True), default=0.4, show_default=True)
@click.option("--seed", type=int, default=0, show_default=True)
def play(environment: str, task: str, file: Path | None, who: str, temperature: float, seed: int) -> None:
    """Step through an episode, by hand or with a checkpoint (Enter shows its next turn; all at once in a pipe).

    By hand a command's number or words play a turn, ? lists the commands, help explains, q or Ctrl-D ends.
    """
    from divopd import play as work
    from divopd.config import PolicyConfig

    def ask(prompt: str) -> str:
        try:
            return input(prompt)
        except (EOFError, KeyboardInterrupt):
            click.echo()  # the prompt's line is still open
            raise EOFError from None

    def wait() -> None:
        if sys.stdin.isatty():
            try:
                ask("-- Enter --")
            except EOFError:
                click.echo("stopped")
                raise click.exceptions.Exit from None

    setting = work.setting_of(environment, file)
    name = work.task_of(setting.env, task)
    if who == "hand":
        work.by_hand(setting.env, name, click.echo, ask)
    else:
        from transformers.utils import logging

        logging.disable_progress_bar()
        policy = {"student": setting.student, "teacher": setting.teacher}.get(who) or PolicyConfig(path=who)
        work.watch(setting, policy, name, temperature, seed, click.echo, wait)
