"""The small models' tokenizer: whole words, and entity names with their number ("drawer 2") as one token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

PAD, UNKNOWN, ACT, END = "<pad>", "<unk>", "<act>", "<end>"
# An assistant turn is <act> action <end>; what stands between an <end> and the next <act> is the user's turn.
CHAT_TEMPLATE = (
    "{% for message in messages %}{% if message.role == 'assistant' %}{{ message.content }}<end>"
    "{% else %}{{ message.content }}<act>{% endif %}{% endfor %}"
)
_TOKEN = r"[a-z]+ [0-9]+|[a-z]+|[0-9]+"


def build_tokenizer(words: Sequence[str], entities: Sequence[str]) -> Any:
    """A `PreTrainedTokenizerFast` over words and entity names, in that order, after the special tokens."""
    from tokenizers import Regex, Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Split
    from transformers import PreTrainedTokenizerFast

    names = list(dict.fromkeys([PAD, UNKNOWN, ACT, END, *words, *entities]))
    tokenizer = Tokenizer(WordLevel({name: i for i, name in enumerate(names)}, unk_token=UNKNOWN))
    # "removed" and inverted: keep what matches, drop the blanks between
    tokenizer.pre_tokenizer = Split(Regex(_TOKEN), behavior="removed", invert=True)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token=PAD, unk_token=UNKNOWN, eos_token=END, additional_special_tokens=[ACT]
    )
    fast.chat_template = CHAT_TEMPLATE
    return fast
