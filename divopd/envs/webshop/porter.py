"""Porter's stemmer (M. F. Porter, "An algorithm for suffix stripping", Program 14(3), 1980), as Lucene runs it.

Lucene follows Porter's own later program, which departs from the paper in three places: words of one or two letters
stay, step 2 turns `bli` (not `abli`) into `ble`, and it turns `logi` into `log`. What is no vowel is a consonant.
"""

from __future__ import annotations

_STEP2 = (
    ("ational", "ate"),
    ("tional", "tion"),
    ("enci", "ence"),
    ("anci", "ance"),
    ("izer", "ize"),
    ("bli", "ble"),
    ("alli", "al"),
    ("entli", "ent"),
    ("eli", "e"),
    ("ousli", "ous"),
    ("ization", "ize"),
    ("ation", "ate"),
    ("ator", "ate"),
    ("alism", "al"),
    ("iveness", "ive"),
    ("fulness", "ful"),
    ("ousness", "ous"),
    ("aliti", "al"),
    ("iviti", "ive"),
    ("biliti", "ble"),
    ("logi", "log"),
)
_STEP3 = (("icate", "ic"), ("ative", ""), ("alize", "al"), ("iciti", "ic"), ("ical", "ic"), ("ful", ""), ("ness", ""))
_STEP4 = ("al", "ance", "ence", "er", "ic", "able", "ible", "ant", "ement", "ment", "ent", "ion", "ou", "ism", "ate",
          "iti", "ous", "ive", "ize")  # fmt: skip


def stem(word: str) -> str:
    """The stem of a lower-case word."""
    if len(word) < 3:
        return word
    word = _step1(word)
    for rules in (_STEP2, _STEP3):
        for suffix, replacement in rules:
            if word.endswith(suffix):
                base = word[: -len(suffix)]
                word = base + replacement if _measure(base) > 0 else word
                break
    return _step5(_step4(word))


def _shape(word: str) -> list[bool]:
    """For each character: is it a consonant? `y` is one at the start and after a vowel."""
    shape: list[bool] = []
    for letter in word:
        if letter == "y":
            shape.append(not shape or not shape[-1])
        else:
            shape.append(letter not in "aeiou")
    return shape


def _measure(word: str) -> int:
    """How often a vowel is followed by a consonant."""
    shape = _shape(word)
    return sum(after and not before for before, after in zip(shape, shape[1:], strict=False))


def _doubled(word: str) -> bool:
    return len(word) > 1 and word[-1] == word[-2] and _shape(word)[-1]


def _short(word: str) -> bool:
    """Consonant, vowel, consonant other than w, x, y at the end."""
    return len(word) > 2 and _shape(word)[-3:] == [True, False, True] and word[-1] not in "wxy"


def _step1(word: str) -> str:
    if word.endswith(("sses", "ies")):
        word = word[:-2]
    elif word.endswith("s") and word[-2] != "s":
        word = word[:-1]
    if word.endswith("eed"):
        word = word[:-1] if _measure(word[:-3]) > 0 else word
    else:
        for suffix in ("ed", "ing"):
            base = word[: -len(suffix)]
            if word.endswith(suffix) and not all(_shape(base)):
                word = _mend(base)
                break
    if word.endswith("y") and not all(_shape(word[:-1])):
        word = word[:-1] + "i"
    return word


def _mend(base: str) -> str:
    """What stands after `ed` or `ing` is taken off."""
    if base.endswith(("at", "bl", "iz")):
        return base + "e"
    if _doubled(base):
        return base if base[-1] in "lsz" else base[:-1]
    return base + "e" if _measure(base) == 1 and _short(base) else base


def _step4(word: str) -> str:
    for suffix in sorted(_STEP4, key=len, reverse=True):
        if word.endswith(suffix):
            base = word[: -len(suffix)]
            fits = suffix != "ion" or base.endswith(("s", "t"))
            return base if fits and _measure(base) > 1 else word
    return word


def _step5(word: str) -> str:
    if word.endswith("e"):
        measure = _measure(word[:-1])
        if measure > 1 or (measure == 1 and not _short(word[:-1])):
            word = word[:-1]
    if word.endswith("ll") and _measure(word) > 1:
        word = word[:-1]
    return word
