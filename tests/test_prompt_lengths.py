"""scripts/prompt_lengths.py counts what the renderer makes."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import numpy as np
from click.testing import CliRunner, Result

from divopd.blank import byte_tokenizer
from divopd.config import PromptConfig
from divopd.envs.registry import make_envs, train_tasks
from divopd.prompts import Renderer, make_style
from divopd.seeds import rng
from divopd.suite import load_suite

ROOT = Path(__file__).resolve().parent.parent
SUITE = ROOT / "experiments" / "demo.yaml"


def lengths(folder: Path, setting: str = "webshop-0.5m", response: int = 7) -> Result:
    command = runpy.run_path(str(ROOT / "scripts" / "prompt_lengths.py"))["main"]
    arguments = [str(SUITE), setting, "--tokenizer", str(folder), "--response-tokens", str(response)]
    return CliRunner().invoke(command, [*arguments, "--turns", "5", "--episodes", "3"])


def test_prompts_are_as_long_as_the_renderers(tmp_path: Path):
    tokenizer = byte_tokenizer()
    tokenizer.save_pretrained(tmp_path)
    few, many = (lengths(tmp_path, response=n).output for n in (7, 1007))
    first, fifth = (int(re.search(rf"^turn  {n}: mean +(\d+)", few, re.M)[1]) for n in (1, 5))
    config = next(cell.env for cell in load_suite(SUITE) if cell.setting == "webshop-0.5m")
    renderer = Renderer(tokenizer, make_style(PromptConfig(style="chat", template="webshop"), "webshop"))
    env = make_envs(config, 1)[0]
    tasks = rng(0, "prompt lengths").choice(train_tasks(config), 3, replace=False)
    assert first == round(np.mean([len(renderer.first(env.reset(str(task)))) for task in tasks]))
    # four responses lie before the fifth prompt, and the same actions are drawn whatever their length
    assert int(re.search(r"^turn  5: mean +(\d+)", many, re.M)[1]) == fifth + 4 * 1000


def test_an_unknown_setting_is_named(tmp_path: Path):
    result = lengths(tmp_path, setting="webshop-3b")
    assert result.exit_code == 1 and "no setting 'webshop-3b'" in result.output
