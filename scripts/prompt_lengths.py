"""How long prompts get under a tokenizer: where the chat grows, the last turns of an episode may pass the prompt limit.

    python scripts/prompt_lengths.py experiments/laptop.yaml alfworld-0.5m --tokenizer Qwen/Qwen3-1.7B

Plays random allowed actions (`look around` where the environment lists none) with responses of a given length, and
prints the prompt tokens at each turn. Games come from the setting; no model is loaded.
"""

from __future__ import annotations

from pathlib import Path

import click
import numpy as np

from divopd.config import PromptConfig
from divopd.envs.registry import make_envs, train_tasks
from divopd.prompts import Renderer, make_style
from divopd.seeds import rng
from divopd.suite import load_suite

AT = (1, 5, 10, 15, 20, 25, 30)


@click.command(help=__doc__)
@click.argument("suite", type=click.Path(path_type=Path))
@click.argument("setting")
@click.option("--tokenizer", required=True, help="Folder or hub id of a tokenizer with a chat template.")
@click.option("--template", help="A shipped template or a template's file.  [default: the environment's]")
@click.option("--response-tokens", type=click.IntRange(1), default=100, show_default=True)
@click.option("--turns", type=click.IntRange(1), default=30, show_default=True)
@click.option("--episodes", type=click.IntRange(1), default=12, show_default=True)
def main(
    suite: Path, setting: str, tokenizer: str, template: str | None, response_tokens: int, turns: int, episodes: int
) -> None:
    from transformers import AutoTokenizer

    found = [cell for cell in load_suite(suite) if cell.setting == setting]
    if not found:
        raise click.ClickException(f"{suite} has no setting {setting!r}")
    config = found[0].env.model_copy(update={"max_turns": turns})
    prompt = PromptConfig(style="chat", template=template or config.name)
    renderer = Renderer(AutoTokenizer.from_pretrained(tokenizer), make_style(prompt, config.name))
    draws, env = rng(0, "prompt lengths"), make_envs(config, 1)[0]
    lengths = np.full((episodes, turns), np.nan)
    for row, task in zip(lengths, draws.choice(train_tasks(config), episodes, replace=False), strict=True):
        seen = env.reset(str(task))
        row[0], allowed = len(renderer.first(seen)), seen.allowed
        for turn in range(1, turns):
            action = str(draws.choice(allowed)) if allowed else "look around"
            step = env.step(action)
            if step.done:
                break
            row[turn] = row[turn - 1] + response_tokens + len(renderer.follow(action, step, False))
            allowed = step.allowed
    limit = prompt.max_prompt_tokens
    click.echo(
        f"{config.name}, {prompt.template}: prompt tokens with responses of {response_tokens}; the limit is {limit}"
    )
    for turn in (turn for turn in AT if turn <= turns):
        at = lengths[:, turn - 1]
        at = at[~np.isnan(at)]
        if len(at):
            click.echo(
                f"turn {turn:2}: mean {at.mean():6.0f}, longest {at.max():6.0f}, {(at > limit).sum()} of {len(at)} over"
            )


if __name__ == "__main__":
    main()
