"""From observations to tokens and from responses to actions: one renderer for student and teacher.

The chat only grows: what an episode has shown stays in its context, and a response stays as it was sampled. So a turn's
prompt is the tokens so far, and every turn of a rollout is a span of one token sequence.
"""

from __future__ import annotations

import re
from typing import Any, Protocol

import numpy as np

from .config import PromptConfig
from .envs.base import Observation, Step

_MARK = "\u241f"  # stands for a response while the template around it is looked up


class Style(Protocol):
    """The words of a prompt. Text in, text out; knows no tokenizer."""

    def first(self, observation: Observation) -> str: ...

    def follow(self, action: str, step: Step) -> str: ...

    def action(self, response: str, allowed: tuple[str, ...]) -> str: ...


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

    @staticmethod
    def _state(text: str, allowed: tuple[str, ...]) -> str:
        actions = "".join(f"- {action}\n" for action in allowed)
        return f"Observation: {text}\n\n" + (f"Allowed actions:\n{actions}\n" if actions else "")


def make_style(config: PromptConfig, env: str) -> Style:
    """`compact`: the environment's own short form for small models; `chat`: full sentences."""
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
        user = {"role": "user", "content": _MARK}
        text = tokenizer.apply_chat_template([user], tokenize=False, add_generation_prompt=True)
        self._head, self._open = text.split(_MARK)
        turns = [{"role": "user", "content": ""}, {"role": "assistant", "content": _MARK}, user]
        text = tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
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

    def action(self, response: np.ndarray, allowed: tuple[str, ...]) -> str:
        """The command that a response names; the environment decides whether it means anything."""
        return self.style.action(self.tokenizer.decode(response, skip_special_tokens=True), allowed)
