"""The nouns of product titles, which the reward compares: the original asks spaCy at every purchase."""

from __future__ import annotations

import functools
import json
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from divopd.envs.base import EnvError
from divopd.envs.fields import entry, texts

SPACY_MODEL = "en_core_web_lg"
Nouns = Sequence[str]
_WORD = re.compile(r"[^\W_]+")


class NounSource:
    """`source(title)`: the title's nouns and proper nouns, lower case, in any order, repeated as in the title."""

    def __init__(self, look_up: Callable[[str], Nouns]) -> None:
        self._look_up = functools.lru_cache(maxsize=1 << 16)(look_up)

    def __call__(self, title: str) -> Nouns:
        return self._look_up(title)

    @classmethod
    def of(cls, source: NounSource | Mapping[str, Nouns] | Callable[[str], Nouns] | Path) -> NounSource:
        """From a mapping title -> nouns, a function, or a JSON file that holds such a mapping.

        A title that a mapping or file lacks is given to spaCy, if it is installed.
        """
        if isinstance(source, NounSource):
            return source
        if isinstance(source, Path):
            source = read_nouns(source)
        if not isinstance(source, Mapping):
            return cls(source)
        known = source

        def look_up(title: str) -> Nouns:
            found = known.get(title)
            return spacy_nouns(title) if found is None else found

        return cls(look_up)


def spacy_nouns(title: str) -> Nouns:
    """Ask spaCy. Raises `EnvError` where it or its English model is not installed."""
    if not title.strip():
        return []
    return [token.text.lower() for token in _spacy()(title) if token.pos_ in ("NOUN", "PROPN")]


@functools.cache
def _spacy() -> Callable[[str], Sequence[Any]]:
    try:
        import spacy

        return spacy.load(SPACY_MODEL)
    except (ImportError, OSError) as error:
        raise EnvError(
            "a product title has no known nouns: give a nouns file (JSON, title -> list of nouns) or install "
            f"spaCy with {SPACY_MODEL}"
        ) from error


def read_nouns(path: Path) -> Mapping[str, Nouns]:
    """A JSON file title -> nouns. Raises `EnvError` for what is none.

    spaCy gives a noun as often as it stands in the title, and the reward counts that. A file in which no title has a
    noun twice lists distinct nouns; each is then repeated as often as it stands in the title as a word of its own.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError) as error:
        raise EnvError(f"cannot read the nouns file {path}: {error}") from error
    if not isinstance(content, dict) or not all(isinstance(nouns, list) for nouns in content.values()):
        raise EnvError(f"the nouns file {path} is no JSON object title -> list of nouns")
    with entry(f"the nouns file {path}"):
        content = {title: texts(nouns, repr(title)) for title, nouns in content.items()}
    if all(len(set(nouns)) == len(nouns) for nouns in content.values()):
        content = {title: _repeated(title.lower(), nouns) for title, nouns in content.items()}
    return content


def _repeated(title: str, nouns: Nouns) -> Nouns:
    words = Counter(_WORD.findall(title))
    return [noun for noun in nouns for _ in range(words[noun] or max(1, _alone(title, noun)))]


def _alone(title: str, noun: str) -> int:
    """How often a noun that is no plain word (`red,40`) stands in the title with no letter or digit beside it."""
    return len(re.findall(rf"(?<![^\W_]){re.escape(noun)}(?![^\W_])", title))
