"""Words of a text as Lucene's English analyzer makes them: Anserini's default, with which the original searches.

Unicode word boundaries (UAX #29) with Lucene's additions: pictographs, Han and Hiragana characters are words of their
own; then possessive `'s` off, lower case, 33 stop words out, Porter stems. One difference is known: Lucene keeps Hebrew
quotation marks within words, and here they end them.
"""

from __future__ import annotations

import functools

import regex

from divopd.envs.webshop.porter import stem

_STOPPED = """a an and are as at be but by for if in into is it no not of on or such that the their then there these
they this to was will with"""
STOP_WORDS = frozenset(_STOPPED.split())
MAX_TOKEN = 255  # Lucene cuts longer words into pieces of this many characters

# Extended_Pictographic of Unicode 12; later versions dropped several signs that Lucene's tables still hold.
_PICTOGRAPHS = (
    r"\u00A9\u00AE\u203C\u2049\u2122\u2139\u2194-\u2199\u21A9\u21AA\u231A\u231B\u2328\u2388\u23CF\u23E9-\u23F3"
    r"\u23F8-\u23FA\u24C2\u25AA\u25AB\u25B6\u25C0\u25FB-\u25FE\u2600-\u2605\u2607-\u2612\u2614-\u2685\u2690-\u2705"
    r"\u2708-\u2712\u2714\u2716\u271D\u2721\u2728\u2733\u2734\u2744\u2747\u274C\u274E\u2753-\u2755\u2757\u2763-\u2767"
    r"\u2795-\u2797\u27A1\u27B0\u27BF\u2934\u2935\u2B05-\u2B07\u2B1B\u2B1C\u2B50\u2B55\u3030\u303D\u3297\u3299"
    r"\U0001F000-\U0001F0FF\U0001F10D-\U0001F10F\U0001F12F\U0001F16C-\U0001F171\U0001F17E\U0001F17F\U0001F18E"
    r"\U0001F191-\U0001F19A\U0001F1AD-\U0001F1E5\U0001F201-\U0001F20F\U0001F21A\U0001F22F\U0001F232-\U0001F23A"
    r"\U0001F23C-\U0001F23F\U0001F249-\U0001F3FA\U0001F400-\U0001F53D\U0001F546-\U0001F64F\U0001F680-\U0001F6FF"
    r"\U0001F774-\U0001F77F\U0001F7D5-\U0001F7FF\U0001F80C-\U0001F80F\U0001F848-\U0001F84F\U0001F85A-\U0001F85F"
    r"\U0001F888-\U0001F88F\U0001F8AE-\U0001F8FF\U0001F90C-\U0001F93A\U0001F93C-\U0001F945\U0001F947-\U0001FFFD"
)


def _token_pattern() -> regex.Pattern[str]:
    tail = r"[\p{WB=Format}\p{WB=Extend}\p{WB=ZWJ}]*"
    parts = {
        "letter": rf"[\p{{WB=ALetter}}\p{{WB=Hebrew_Letter}}]{tail}",
        "digit": rf"\p{{WB=Numeric}}{tail}",
        "kana": rf"(?:\p{{WB=Katakana}}{tail})+",
        "join": rf"(?:\p{{WB=ExtendNumLet}}{tail})",
        "in_word": rf"[\p{{WB=MidLetter}}\p{{WB=MidNumLet}}\p{{WB=Single_Quote}}]{tail}",
        "in_number": rf"[\p{{WB=MidNum}}\p{{WB=MidNumLet}}\p{{WB=Single_Quote}}]{tail}",
    }
    core = r"(?:(?:{letter}(?:{in_word}{letter})*|{digit}(?:{in_number}{digit})*)+|{kana})"
    word = "{join}*" + core + "(?:{join}+" + core + ")*{join}*"
    flag = r"\p{WB=Regional_Indicator}{2}"
    keycap = r"[0-9#*]\uFE0F?\u20E3"
    pictograph = rf"[{_PICTOGRAPHS}][\p{{WB=Format}}\p{{WB=Extend}}]*"
    picture = rf"{pictograph}(?:\u200D{pictograph})*"
    thai = rf"(?:\p{{LB=Complex_Context}}{tail})+"
    single = rf"[\p{{Script=Han}}\p{{Script=Hiragana}}]{tail}"
    return regex.compile("|".join([keycap, word.format(**parts), flag, picture, thai, single]), regex.V1)


_TOKEN = _token_pattern()


def tokens(text: str) -> list[str]:
    """The text's index terms in order."""
    found = []
    for word in _TOKEN.findall(text):
        for start in range(0, len(word), MAX_TOKEN):
            term = _term(word[start : start + MAX_TOKEN])
            if term:
                found.append(term)
    return found


@functools.lru_cache(maxsize=1 << 16)
def _term(word: str) -> str:
    """The index term of one word; empty for a stop word."""
    if len(word) >= 2 and word[-1] in "sS" and word[-2] in "'\u2019\uff07":
        word = word[:-2]
    word = word.lower()
    return "" if word in STOP_WORDS else stem(word)
