"""Look at an episode in the terminal: play it by hand, or watch a checkpoint play it as training would."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from .config import EnvConfig, PolicyConfig, PromptConfig, RunConfig
from .envs.base import Observation, Step, TextEnv
from .envs.registry import eval_tasks, make_envs
from .suite import SuiteError, read_setting

Echo = Callable[[str], None]
Ask = Callable[[str], str]
"""Prompt -> the line typed; raises EOFError where input ends."""
SHOWN = 60  # allowed commands listed at once
HELP = "A number or a command in words plays a turn. ? lists the commands, help shows this, q or Ctrl-D ends."
_BLANK = re.compile(r"(<query>|\bOBJ\b)")  # what a listed template leaves open: search[<query>], move OBJ to OBJ
_NAMES = "OBJ: "  # starts the line of things that ScienceWorld's templates may name; no command
_CHOICE = re.compile(r"^\d+:\t", re.MULTILINE)  # ScienceWorld asks which of several things is meant, by its number


@dataclass(frozen=True)
class Setting:
    """What playing needs of a setting's file."""

    env: EnvConfig
    prompt: PromptConfig
    student: PolicyConfig
    teacher: PolicyConfig


def setting_of(env: str, file: Path | None) -> Setting:
    """A setting's file, by default the environment's small one. Raises SuiteError for one of another environment."""
    file = file or Path("experiments/settings") / f"{env}-0.5m.yaml"
    cell = RunConfig.model_validate(
        {"suite": "play", "setting": file.stem, "method": {"name": "vanilla", "rule": "vanilla"}}
        | read_setting(file).config
    )
    if cell.env.name != env:
        raise SuiteError(f"{file} is a setting of {cell.env.name}: name one of {env}'s with --setting")
    return Setting(cell.env, cell.prompt, cell.student, cell.teacher)


def task_of(env: EnvConfig, task: str) -> str:
    """A task id, or the panel's task at that position."""
    if not task.isdecimal():
        return task
    panel = eval_tasks(env, 1 + int(task))
    return panel[int(task)]


def by_hand(config: EnvConfig, task: str, echo: Echo, ask: Ask) -> bool:
    """One episode, a command a line (`HELP`). What is no command costs no turn. Success."""
    [env] = make_envs(_with_list(config), 1)
    try:
        observation = env.reset(task)
        echo(_opening(task, observation))
        echo(HELP)
        allowed, text, turns = observation.allowed, observation.text, 0
        echo(_numbered(allowed))
        while turns < config.max_turns:
            try:
                action = _chosen(f"[{turns + 1}/{config.max_turns}] > ", allowed, text, echo, ask)
            except EOFError:
                break
            if action is None:
                continue
            step = env.step(action)
            turns += step.valid or step.done
            echo(_answer(action, step) if step.valid else _answer(action, step) + "No turn is spent; ? or help.\n")
            if step.done or step.success:
                echo(_ending(step, turns))
                return step.success
            if step.allowed != allowed:
                echo(_numbered(step.allowed))
            allowed, text = step.allowed, step.text
        echo(f"no success after {turns} turn(s)")
        return False
    finally:
        env.close()


def _with_list(config: EnvConfig) -> EnvConfig:
    """By hand ScienceWorld lists its templates, as the others list commands, unless the setting says what it lists."""
    if config.name != "scienceworld" or config.source == "sketch":
        return config
    return config.model_copy(update={"options": {"listing": "templates"} | config.options})


def _chosen(prompt: str, allowed: Sequence[str], text: str, echo: Echo, ask: Ask) -> str | None:
    """The action of one typed line; None where it is none. Raises EOFError at the end of input and for `q`."""
    line = ask(prompt).strip()
    commands = _commands(allowed)
    if line == "q":
        raise EOFError
    if line == "help":
        echo(HELP)
        return None
    if line in ("", "?"):
        echo(_numbered(allowed))
        return None
    if line.isdecimal() and not _CHOICE.search(text):
        if not 0 < int(line) <= len(commands):
            echo(f"There is no number {line}: " + (f"1 to {len(commands)}." if commands else "no command is listed."))
            return None
        line = commands[int(line) - 1]
    return _filled(line, ask) if line in commands else line


def _filled(template: str, ask: Ask) -> str | None:
    """A template with what is typed in its blanks, asked for one by one; None where one stays empty."""
    parts = _BLANK.split(template)
    for i in range(1, len(parts), 2):
        parts[i] = ask(f"{''.join(parts)}   {parts[i].strip('<>')}: ").strip()
        if not parts[i]:
            return None
    return "".join(parts)


def _commands(allowed: Sequence[str]) -> list[str]:
    return [command for command in allowed if not command.startswith(_NAMES)]


class Spoken:
    """An environment that tells what happens to it, and waits before each turn if asked to."""

    def __init__(self, env: TextEnv, echo: Echo, wait: Callable[[], None]) -> None:
        self.name, self._env, self._echo, self._wait, self._turns = env.name, env, echo, wait, 0

    def reset(self, task: str) -> Observation:
        observation = self._env.reset(task)
        self._echo(_opening(task, observation))
        self._turns = 0
        return observation

    def step(self, action: str) -> Step:
        self._wait()
        step = self._env.step(action)
        self._turns += 1
        self._echo(f"[{self._turns}] > {_answer(action, step)}")
        if step.done or step.success:
            self._echo(_ending(step, self._turns))
        return step

    def close(self) -> None:
        self._env.close()


def watch(setting: Setting, policy: PolicyConfig, task: str, temperature: float, seed: int, echo: Echo,
          wait: Callable[[], None]) -> bool:  # fmt: skip
    """One episode by a checkpoint, through the code that training plays with, then the teacher's view of each turn."""
    from .checks import checkpoint
    from .doctor import SetupError
    from .policies.hf import HFPolicy, load_model, load_tokenizer
    from .prompts import make_renderer
    from .rollout import PlaySettings, play, score
    from .seeds import rng
    from .timing import Stopwatch
    from .train import check_tokenizers

    for needed in (checkpoint(policy), checkpoint(setting.teacher)):
        if not needed.ok:
            raise SetupError(f"{needed.name}: {needed.detail}")
    tokenizer = load_tokenizer(policy)
    vocabulary = check_tokenizers(tokenizer, load_tokenizer(setting.teacher))
    renderer = make_renderer(policy, setting.prompt, setting.env.name, tokenizer)
    actor = HFPolicy(load_model(policy), renderer.ends)
    limits = PlaySettings(
        setting.env.max_turns, setting.prompt.max_prompt_tokens, setting.prompt.max_response_tokens, temperature
    )
    spoken = [Spoken(env, echo, wait) for env in make_envs(setting.env, 1)]
    try:
        [rollout] = play(actor, renderer, spoken, [((0, 0, 0), task, rng(seed, "play", task))], 0, limits, Stopwatch())
    finally:
        spoken[0].close()
    score(HFPolicy(load_model(setting.teacher), renderer.eos), [rollout], vocabulary, Stopwatch())
    echo(
        f"{'success' if rollout.success else rollout.stop} after {len(rollout.turns)} turn(s); student - teacher, nats:"
    )
    for turn in rollout.turns:
        if turn.student_logprobs is not None and turn.teacher_logprobs is not None:
            gap = float((turn.student_logprobs - turn.teacher_logprobs).sum())
            echo(f"  {turn.index + 1:3}  {gap:+7.2f}  {turn.action}")
    return rollout.success


def _opening(task: str, observation: Observation) -> str:
    return f"task {task}: {observation.goal}\n\n{observation.text}\n"


def _answer(action: str, step: Step) -> str:
    mark = "  (not understood)" if not step.valid else "" if step.progress else "  (no progress)"
    return f"{action}{mark}\n{step.text}\n"


def _ending(step: Step, turns: int) -> str:
    return f"{'success' if step.success else 'over without success'} after {turns} turn(s), reward {step.reward:g}"


def _numbered(allowed: Sequence[str]) -> str:
    commands = _commands(allowed)
    if not commands:
        return "(this environment lists no commands here: type one)"
    lines = [f"  {i + 1:3} {command}" for i, command in enumerate(commands[:SHOWN])]
    if len(commands) > SHOWN:
        lines.append(f"  ... and {len(commands) - SHOWN} more")
    return "\n".join([*lines, *(f"      {names}" for names in allowed if names.startswith(_NAMES))])
