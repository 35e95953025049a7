"""From observations to tokens and from responses to actions: one renderer for student and teacher.

Where the chat grows, what an episode has shown stays in its context, and a response stays as it was sampled: a turn's
prompt is the tokens so far, and every turn of a rollout is a span of one token sequence. Where history is rewritten
(`Renderer.rewrites`), every turn has a prompt and a token sequence of its own.
"""

from __future__ import annotations

import re
from typing import Any, Protocol

import numpy as np

from .config import PromptConfig
from .envs.base import Observation, Step
from .templates import Past, PromptError, template_style

__all__ = ["ChatStyle", "Past", "PromptError", "Renderer", "Style", "make_style"]

_MARK = "\u241f"  # stands for a response while the template around it is looked up


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
    """Tokens of an episode, from its chat template."""

    def __init__(self, tokenizer: Any, style: Style) -> None:
        self.tokenizer = tokenizer
        self.style = style
        self.eos: int = tokenizer.eos_token_id
        self.rewrites: bool = getattr(style, "rewrites", False)
        system, chat = getattr(style, "system", None), getattr(style, "chat", {})
        user = {"role": "user", "content": _MARK}
        first = [user] if system is None else [{"role": "system", "content": system}, user]
        text = tokenizer.apply_chat_template(first, tokenize=False, add_generation_prompt=True, **chat)
        self._head, self._open = text.split(_MARK)
        turns = [{"role": "user", "content": ""}, {"role": "assistant", "content": _MARK}, user]
        text = tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True, **chat)
        # after the response: its end marker, which the policy samples itself, then the next user turn's opening
        self._close = text.split(_MARK)[1].removeprefix(tokenizer.eos_token)

    def _ids(self, text: str) -> np.ndarray:
        return np.array(self.tokenizer.encode(text, add_special_tokens=False), dtype=np.int64)

    def first(self, observation: Observation) -> np.ndarray:
        """Tokens of the first prompt, up to where the response starts."""
        return self._ids(self._head + self.style.first(observation) + self._open)

    def follow(self, action: str, step: Step, truncated: bool) -> np.ndarray:
        """Tokens between one response and the next; a truncated response gets the end marker that it lacks."""
        text = self._close + self.style.follow(action, step) + self._open
        return self._ids(self.tokenizer.eos_token + text if truncated else text)

    def again(self, past: Past, allowed: tuple[str, ...]) -> np.ndarray:
        """Tokens of a later turn's whole prompt, where history is rewritten."""
        style: Any = self.style
        return self._ids(self._head + style.again(past, allowed) + self._open)

    def action(self, response: np.ndarray, allowed: tuple[str, ...]) -> str:
        """The command that a response names; the environment decides whether it means anything."""
        return self.style.action(self.tokenizer.decode(response, skip_special_tokens=True), allowed)

    def response(self, action: str, allowed: tuple[str, ...]) -> np.ndarray:
        """Tokens of the shortest response that names a command, its end marker included."""
        return np.append(self._ids(self.style.response(action, allowed)), self.eos)
