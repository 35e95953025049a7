"""Prompt templates: texts with named fields, shipped (divopd/prompt_templates/) or a user's own (docs/prompts.md).

A template says how an observation is worded, not when: `PromptConfig.history` decides whether the chat grows, or every
turn is one new prompt that shows the last few observations and actions.
"""

from __future__ import annotations

import difflib
import re
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError, field_validator

from .config import PromptConfig, Strict
from .envs.base import Observation, Step
from .strict_yaml import YamlError, parse_yaml

SHIPPED = Path(__file__).parent / "prompt_templates"
_NOW = ("observation", "admissible")
_PAST = ("task", "history", "history_length", "step", "current_step")
FIELDS = {
    "first": ("task", *_NOW),
    "follow": ("action", *_NOW),
    "rewrite": (*_PAST, *_NOW),
    "exchange": ("step", "observation", "action"),
    "admissible": ("action",),
    "response": ("action",),
}
"""What each text of a template may name."""
_FORMS = ("<action>{action}</action>", "Action: {action}", "{action}")


class PromptError(ValueError):
    """A prompt template is missing or wrong; one line that names the file, the field and the mend."""


class Template(Strict):
    """The texts of a template. Doubled braces stand for single ones, as in Python's str.format."""

    description: str = ""
    system: str | None = None  # None: whatever the tokenizer's chat template puts there
    chat: dict[str, Any] = {}  # arguments of the tokenizer's chat template, such as {enable_thinking: false}
    first: str | None = None  # the first user message
    follow: str | None = None  # each later one, where the chat grows
    rewrite: str | None = None  # the only user message of a turn, where history is rewritten
    exchange: str = "[{step}] {observation}\n> {action}"  # an entry of {history}
    exchange_between: str = "\n"
    admissible: str = "{action}"  # an entry of {admissible}
    admissible_between: str = "\n"
    leave_out: list[str] = []  # commands that {admissible} does not list
    action: str = r"<action>(.*?)</action>"  # the last match's group is the action; without one, the last line is
    response: str | None = None  # what says an action, where it is not sampled; None: found from `action`

    @field_validator(*FIELDS)
    @classmethod
    def _known_fields(cls, text: str | None, info: Any) -> str | None:
        if text is not None:
            known = FIELDS[info.field_name]
            try:
                parts = list(string.Formatter().parse(text))
            except ValueError as error:
                raise ValueError(f"{error}; write {{{{ and }}}} for braces that are meant") from None
            for _, name, spec, conversion in parts:
                if name is not None and (name not in known or spec or conversion):
                    near = difflib.get_close_matches(name, known, n=1)
                    hint = f"did you mean {{{near[0]}}}?" if near else "write {{ and }} for braces that are meant"
                    raise ValueError(f"unknown field {{{name}}}: it may hold {', '.join(known)}; {hint}")
        return text

    @field_validator("action")
    @classmethod
    def _one_group(cls, pattern: str) -> str:
        try:
            groups = re.compile(pattern, flags=re.DOTALL).groups
        except re.error as error:
            raise ValueError(f"not a regular expression ({error})") from None
        if groups != 1:
            raise ValueError(f"the pattern has {groups} groups; it needs one, around the action")
        return pattern


@dataclass(slots=True)
class Past:
    """What a rewritten prompt may show of an episode: its task, and each observation with the action taken on it."""

    goal: str
    now: str
    exchanges: list[tuple[str, str]] = field(default_factory=list)

    def add(self, action: str, answer: str) -> None:
        self.exchanges.append((self.now, action))
        self.now = answer


class TemplateStyle:
    """A template at work; `turns`: how many exchanges a rewritten prompt shows, None where the chat grows."""

    def __init__(self, template: Template, turns: int | None = None) -> None:
        self.template, self.turns = template, turns
        self.system, self.chat = template.system, template.chat
        self._action = re.compile(template.action, flags=re.DOTALL)

    @property
    def rewrites(self) -> bool:
        return self.turns is not None

    def first(self, observation: Observation) -> str:
        if self.template.first is None:
            return self.again(Past(observation.goal, observation.text), observation.allowed)
        return self.template.first.format(task=observation.goal, **self._now(observation.text, observation.allowed))

    def follow(self, action: str, step: Step) -> str:
        assert self.template.follow is not None
        return self.template.follow.format(action=action, **self._now(step.text, step.allowed))

    def again(self, past: Past, allowed: tuple[str, ...]) -> str:
        """The whole prompt of a turn, the last `turns` exchanges in it. Steps count from 1."""
        assert self.template.rewrite is not None and self.turns is not None
        numbered = list(enumerate(past.exchanges, start=1))[-self.turns :]
        entries = [
            self.template.exchange.format(step=step, observation=seen, action=action)
            for step, (seen, action) in numbered
        ]
        done = len(past.exchanges)
        return self.template.rewrite.format(
            task=past.goal,
            history=self.template.exchange_between.join(entries),
            history_length=len(entries),
            step=done,
            current_step=done + 1,
            **self._now(past.now, allowed),
        )

    def action(self, response: str, allowed: tuple[str, ...]) -> str:
        """The command that a response names; without the pattern its last line, which the environment may refuse."""
        found = self._action.findall(response)
        lines = response.strip().splitlines()
        return found[-1].strip() if found else lines[-1].strip() if lines else ""

    def response(self, action: str, allowed: tuple[str, ...]) -> str:
        """The template's `response`, or the first usual form that its pattern reads back. Raises PromptError."""
        forms = _FORMS if self.template.response is None else (self.template.response,)
        for form in forms:
            said = form.format(action=action)
            if self._action.findall(said) and self.action(said, allowed) == action:
                return said
        raise PromptError(
            f"prompt.template: the pattern {self.template.action!r} does not find {action!r} in "
            f"{' or '.join(repr(form.format(action=action)) for form in forms)}; give the template a `response` "
            "that it does find, such as 'Action: {action}'"
        )

    def _now(self, text: str, allowed: Sequence[str]) -> Mapping[str, str]:
        listed = [command for command in allowed if command not in self.template.leave_out]
        entries = [self.template.admissible.format(action=command) for command in listed]
        return {"observation": text, "admissible": self.template.admissible_between.join(entries)}


def template_path(config: PromptConfig) -> Path | None:
    """The file that `prompt.template` names: a shipped one by its name, else a .yaml or .txt file; None without one."""
    if config.template is None:
        return None
    path = Path(config.template)
    return path if path.suffix in (".yaml", ".yml", ".txt") else SHIPPED / f"{config.template}.yaml"


def read_template(path: Path) -> Template:
    """A template's file: .yaml with Template's keys, .txt with the text of `rewrite`. Raises PromptError."""
    if path.parent == SHIPPED and not path.is_file():
        have = ", ".join(sorted(p.stem for p in SHIPPED.glob("*.yaml")))
        raise PromptError(f"prompt.template: no template {path.stem!r}; it is one of {have}, or a .yaml or .txt file")
    try:
        text = path.read_text(encoding="utf-8-sig")  # a byte-order mark is no part of it
        content = {"rewrite": text} if path.suffix == ".txt" else parse_yaml(text)
    except (OSError, UnicodeDecodeError) as error:
        raise PromptError(f"prompt.template: {path} cannot be read ({getattr(error, 'strerror', error)})") from error
    except YamlError as error:
        raise PromptError(f"prompt.template: {path}: {error}") from error
    if not isinstance(content, dict):
        raise PromptError(f"prompt.template: {path}: expected a mapping of {', '.join(Template.model_fields)}")
    for key in content.keys() - Template.model_fields.keys():
        near = difflib.get_close_matches(str(key), Template.model_fields, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"valid: {', '.join(Template.model_fields)}"
        raise PromptError(f"prompt.template: {path}: unknown key {key!r}; {hint}")
    try:
        return Template.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise PromptError(f"prompt.template: {path}: {where}: {first['msg'].removeprefix('Value error, ')}") from None


def template_style(config: PromptConfig) -> TemplateStyle:
    """The style of `prompt.template` under `prompt.history`. Raises PromptError where a text is missing."""
    path = template_path(config)
    assert path is not None
    template = read_template(path)
    rewrites = config.history == "rewrite"
    for part in ("rewrite",) if rewrites else ("first", "follow"):
        if getattr(template, part) is None:
            raise PromptError(
                f"prompt.template: {config.template} has no text {part!r}, which prompt.history: {config.history} needs"
                + ("" if rewrites else "; a .txt file is one whole prompt: set prompt.history: rewrite")
            )
    return TemplateStyle(template, config.history_turns if rewrites else None)
