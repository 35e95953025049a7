"""What a tokenizer's chat template puts around messages, and which tokens end an assistant's turn.

A tokenizer's eos token may end a text and not a turn (Gemma: `<eos>` and `<end_of_turn>`), so the end is read off the
template itself. Rendering is the same on every day: a template that asks for today's date is told the configuration's,
and what it draws at random is drawn from one seed.
"""

from __future__ import annotations

import datetime
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .templates import PromptError

_MARK = "\u241f"  # stands for a message while the template around it is looked up
_PROBE = 'Look: <a> & "b", {c} \\ d\n\n- E  f'  # words that a template must leave as they are
_BLANK = "\t \t"  # no template puts this around a message by itself
_TAG = re.compile(r"<[^<>\s]+>|\[[^\[\]\s]+\]")


@dataclass(frozen=True, slots=True)
class Chat:
    """Texts around messages, and the ids that end a response: the first closes a turn, any ends sampling."""

    head: str  # before the first user message
    open: str  # between a user message and the response to it
    close: str  # between the end marker of a response and the next user message
    ends: tuple[int, ...]
    source: str  # what says so
    strips: tuple[bool, bool]  # whether the template cuts blanks off the start and end of a user message
    dated: bool  # it asks for today's date

    def fit(self, text: str) -> str:
        """A user message as the template would show it."""
        text = text.lstrip() if self.strips[0] else text
        return text.rstrip() if self.strips[1] else text


class _Template:
    """A tokenizer's chat template under a fixed date."""

    def __init__(self, tokenizer: Any, options: Mapping[str, Any], date: datetime.date) -> None:
        self.tokenizer, self.options, self.dated = tokenizer, options, False
        self.name = f"the chat template of {_name(tokenizer)}"
        self._now = datetime.datetime.combine(date, datetime.time())
        if getattr(tokenizer, "chat_template", "") is None:
            raise PromptError(
                f"{_name(tokenizer)} has no chat template: take the model's instruction-tuned version, or add a "
                "chat_template.jinja to its folder"
            )

    def strftime_now(self, form: str) -> str:
        """The one source of today's date that transformers offers to templates."""
        self.dated = True
        return self._now.strftime(form)

    def render(self, *messages: tuple[str, str], prompt: bool = True) -> str:
        """(role, content) pairs as text. Raises PromptError for whatever the template raises."""
        chat = [{"role": role, "content": content} for role, content in messages]
        options = {"strftime_now": self.strftime_now, **self.options}
        state = random.getstate()
        random.seed(0)  # Jinja's own `random` and `lipsum` draw here
        try:
            text = self.tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=prompt, **options)
        except Exception as error:  # a template can raise anything
            system = any(role == "system" for role, _ in messages)
            mend = "leave `system` out of the prompt template" if system else "it must take user and assistant turns"
            raise PromptError(f"{self.name} raises {' '.join(str(error).split()) or repr(error)}: {mend}") from error
        finally:
            random.setstate(state)
        return str(text).removeprefix("\ufeff")

    def around(self, *messages: tuple[str, str], prompt: bool = True) -> list[str]:
        """The text between and around the messages that are `_MARK`, each of which must be there once."""
        parts = self.render(*messages, prompt=prompt).split(_MARK)
        if len(parts) != 1 + sum(content == _MARK for _, content in messages):
            roles = " or ".join(dict.fromkeys(role for role, content in messages if content == _MARK))
            raise PromptError(f"{self.name} does not show each {roles} message once: it cannot be used for turns")
        return parts

    def strips(self, before: Sequence[tuple[str, str]]) -> tuple[bool, bool]:
        """Whether blanks around a user message are cut off. Raises PromptError where its words are changed."""
        text = self.render(*before, ("user", f"{_BLANK}{_PROBE}{_BLANK}"))
        if _PROBE not in text:
            raise PromptError(f"{self.name} changes the words of a user message: it must show them as they are")
        return f"{_BLANK}{_PROBE}" not in text, f"{_PROBE}{_BLANK}" not in text


def _name(tokenizer: Any) -> str:
    return str(tokenizer.name_or_path or "this tokenizer")


def read_chat(
    tokenizer: Any, system: str | None, options: Mapping[str, Any], declared: Sequence[int], date: datetime.date
) -> Chat:
    """Look up a tokenizer's chat template, with `options` as its arguments.

    `declared`: ids by which the checkpoint's generation_config ends a response. Raises PromptError, one line, for a
    template that is missing, raises or does not show messages as they are, and where nothing says how a turn ends.
    """
    template = _Template(tokenizer, options, date)
    before = [] if system is None else [("system", system)]
    strips = template.strips(before)
    head, opening = template.around(*before, ("user", _MARK))
    _, after, _ = template.around(("user", "?"), ("assistant", _MARK), ("user", _MARK))
    _, last = template.around(("user", "?"), ("assistant", _MARK), prompt=False)
    vocabulary = set(tokenizer.get_vocab().values())
    ends, source = _ends(tokenizer, after, last, tuple(index for index in declared if index in vocabulary))
    blanks, marker = after[: len(after) - len(after.lstrip())], tokenizer.convert_ids_to_tokens(ends[0])
    close = after.removeprefix(blanks).removeprefix(marker) if after.startswith(blanks + marker) else after
    return Chat(head, opening, close, ends, source, strips, template.dated)


def _ends(tokenizer: Any, after: str, last: str, declared: tuple[int, ...]) -> tuple[tuple[int, ...], str]:
    """Ids that end a response, and what says so. `after`, `last`: text after a response that is followed, and not."""
    eos = tokenizer.eos_token_id
    known = {tokenizer.convert_ids_to_tokens(index): index for index in (*declared, eos) if index is not None}
    inner, outer = _marker(tokenizer, after, known), _marker(tokenizer, last, known)
    # what comes after a response only where a turn follows opens that turn, unless the model is said to end with it
    found = inner if inner == outer or inner in known.values() else outer if outer in known.values() else None
    if found is not None and found == eos:
        return (eos,), "the chat template and the tokenizer's eos"
    if found is not None:
        return (found, *(index for index in dict.fromkeys(declared) if index != found)), "the chat template"
    if declared:
        return tuple(sorted(dict.fromkeys(declared), key=lambda index: index != eos)), "generation_config.json"
    if eos is not None:
        return (eos,), "the tokenizer's eos"
    raise PromptError(
        f"nothing says how a response of {_name(tokenizer)} ends: its chat template closes no turn, and no eos token "
        "is named; set eos_token in its tokenizer_config.json"
    )


def _marker(tokenizer: Any, text: str, known: Mapping[str, int]) -> int | None:
    """The special token that a text begins with, blanks aside."""
    text = text.lstrip()
    named = {**tokenizer.get_added_vocab(), **known}
    tag = _TAG.match(text)
    if tag is not None and (index := tokenizer.get_vocab().get(tag[0])) is not None:
        named[tag[0]] = index
    fits = [name for name in named if name and text.startswith(name)]
    if not fits or (max(fits, key=len) == tokenizer.bos_token and tokenizer.bos_token not in known):
        return None
    return named[max(fits, key=len)]
