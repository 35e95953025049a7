"""From observations to tokens and from responses to actions: one renderer for student and teacher.

Where the chat grows, what an episode has shown stays in its context, and a response stays as it was sampled: a turn's
prompt is the tokens so far, and every turn of a rollout is a span of one token sequence. Where history is rewritten
(`Renderer.rewrites`), every turn has a prompt and a token sequence of its own.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from .chat import read_chat
from .config import CHAT_DATE, PolicyConfig, PromptConfig
from .envs.base import Observation, Step
from .templates import Past, PromptError, template_style

__all__ = ["ChatStyle", "Past", "PromptError", "Renderer", "Style", "make_renderer", "make_style"]


class Style(Protocol):
    """The words of a prompt. Text in, text out; knows no tokenizer.

    Templates (divopd/templates.py) have more: `system`, `chat`, `rewrites`, `again`.
    """

    def first(self, observation: Observation) -> str: ...

    def follow(self, action: str, step: Step) -> str: ...

    def action(self, response: str, allowed: tuple[str, ...]) -> str: ...

    def response(self, action: str, allowed: tuple[str, ...]) -> str:
        """What one says for an action: `action` reads it back."""
        ...


class ChatStyle:
    """Instruction-tuned models: task, observation and allowed actions in each user turn, the action between tags."""

    def first(self, observation: Observation) -> str:
        return (
            f"You act in a text world, one action a turn. Your task: {observation.goal}\n\n"
            f"{self._state(observation.text, observation.allowed)}"
            "Think first if you need to, then give exactly one action between <action> and </action>."
        )

    def follow(self, action: str, step: Step) -> str:
        return self._state(step.text, step.allowed) + "Next action between <action> and </action>."

    def action(self, response: str, allowed: tuple[str, ...]) -> str:
        found = re.findall(r"<action>(.*?)</action>", response, flags=re.DOTALL)
        return found[-1].strip() if found else response.strip().splitlines()[-1] if response.strip() else ""

    def response(self, action: str, allowed: tuple[str, ...]) -> str:
        return f"<action>{action}</action>"

    @staticmethod
    def _state(text: str, allowed: tuple[str, ...]) -> str:
        actions = "".join(f"- {action}\n" for action in allowed)
        return f"Observation: {text}\n\n" + (f"Allowed actions:\n{actions}\n" if actions else "")


def make_style(config: PromptConfig, env: str) -> Style:
    """`compact`: the environment's own short form for small models; `chat`: full sentences, or a template.

    Raises PromptError for a template that cannot be used.
    """
    if config.style == "chat" and config.template is not None:
        return template_style(config)
    if config.template is not None or config.history == "rewrite":
        needs = "prompt.style: chat" if config.template is not None else "a prompt.template, such as the environment's"
        raise PromptError(f"prompt.{'template' if config.template else 'history: rewrite'} needs {needs}")
    if config.style == "chat":
        return ChatStyle()
    from .envs.registry import plugin

    return plugin(env).style()


class Renderer:
    """Tokens of an episode, from its chat template. `ends`: ids that end a response, the first closes a turn."""

    def __init__(
        self, tokenizer: Any, style: Style, declared: Sequence[int] = (), date: datetime.date = CHAT_DATE
    ) -> None:
        """`declared`: end ids of the checkpoint's generation_config; `date`: today, to the template.

        Raises PromptError where the template cannot be used.
        """
        self.tokenizer = tokenizer
        self.style = style
        self.rewrites: bool = getattr(style, "rewrites", False)
        self.chat = read_chat(tokenizer, getattr(style, "system", None), getattr(style, "chat", {}), declared, date)
        self.ends = self.chat.ends
        self.eos = self.ends[0]

    def _ids(self, text: str) -> np.ndarray:
        return np.array(self.tokenizer.encode(text, add_special_tokens=False), dtype=np.int64)

    def first(self, observation: Observation) -> np.ndarray:
        """Tokens of the first prompt, up to where the response starts."""
        return self._prompt(self.style.first(observation))

    def _prompt(self, text: str) -> np.ndarray:
        return self._ids(self.chat.head + self.chat.fit(text) + self.chat.open)

    def follow(self, action: str, step: Step, unclosed: bool) -> np.ndarray:
        """Tokens between one response and the next; an `unclosed` one gets the end marker that it lacks."""
        tokens = self._ids(self.chat.close + self.chat.fit(self.style.follow(action, step)) + self.chat.open)
        return np.append(self.eos, tokens) if unclosed else tokens

    def again(self, past: Past, allowed: tuple[str, ...]) -> np.ndarray:
        """Tokens of a later turn's whole prompt, where history is rewritten."""
        style: Any = self.style
        return self._prompt(style.again(past, allowed))

    def action(self, response: np.ndarray, allowed: tuple[str, ...]) -> str:
        """The command that a response names; the environment decides whether it means anything."""
        ended = len(response) and response[-1] in self.ends  # by what the tokenizer may not call a special token
        words = response[:-1] if ended else response
        return self.style.action(self.tokenizer.decode(words, skip_special_tokens=True), allowed)

    def response(self, action: str, allowed: tuple[str, ...]) -> np.ndarray:
        """Tokens of the shortest response that names a command, its end marker included."""
        return np.append(self._ids(self.style.response(action, allowed)), self.eos)


def make_renderer(policy: PolicyConfig, prompt: PromptConfig, env: str, tokenizer: Any = None) -> Renderer:
    """The renderer of a checkpoint, which need not be loaded. Raises PolicyError or PromptError.

    `tokenizer`: the checkpoint's, where it is loaded already.
    """
    from .policies.hf import declared_ends, load_tokenizer

    tokenizer = tokenizer or load_tokenizer(policy)
    return Renderer(tokenizer, make_style(prompt, env), declared_ends(policy), prompt.date)
