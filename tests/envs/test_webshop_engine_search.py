"""Words and ranking of WebShop's search: Lucene's rules on hand-made texts."""

from __future__ import annotations

import math
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from divopd.envs.webshop.analyzer import tokens
from divopd.envs.webshop.porter import stem
from divopd.envs.webshop.search import Index, stored_length


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The men's T-Shirts and the dogs’ beds", ["men", "t", "shirt", "dog", "bed"]),
        ("3.5mm, 1,005.00 usb2.0 a_b don't", ["3.5mm", "1,005.00", "usb2.0", "a_b", "don't"]),
        ("size:40 color:red 2'x3' x.5", ["size", "40", "color:r", "2", "x3", "x", "5"]),
        ("★ great™ ❤️ 👨‍💼 no no", ["★", "great", "™", "❤️", "👨‍💼"]),
        ("琥珀 ねこ テスト 한국어", ["琥", "珀", "ね", "こ", "テスト", "한국어"]),
        ("--- !!! ... ___ \n", []),
        ("a" * 300, ["a" * 255, "a" * 45]),
    ],
)
def test_tokens(text: str, expected: list[str]) -> None:
    assert tokens(text) == expected


PORTER = """
caresses caress ponies poni ties ti caress caress cats cat feed feed agreed agre plastered plaster bled bled
motoring motor sing sing conflated conflat troubled troubl sized size hopping hop tanned tan falling fall
hissing hiss fizzed fizz failing fail filing file happy happi sky sky relational relat conditional condit
rational ration valenci valenc hesitanci hesit digitizer digit conformabli conform radicalli radic differentli
differ vileli vile analogousli analog vietnamization vietnam predication predic operator oper feudalism feudal
decisiveness decis hopefulness hope callousness callous formaliti formal sensitiviti sensit sensibiliti sensibl
triplicate triplic formative form formalize formal electriciti electr electrical electr hopeful hope goodness
good revival reviv allowance allow inference infer airliner airlin gyroscopic gyroscop adjustable adjust
defensible defens irritant irrit replacement replac adjustment adjust dependent depend adoption adopt homologou
homolog communism commun activate activ angulariti angular homologous homolog effective effect bowdlerize
bowdler probate probat rate rate cease ceas controll control roll roll is is as as possibly possibl apology
apolog say sai
"""


def test_porters_own_examples() -> None:
    """From the paper, rule by rule, and Lucene's departures from it."""
    pairs = PORTER.split()
    assert {word: stem(word) for word in pairs[::2]} == dict(zip(pairs[::2], pairs[1::2], strict=True))


def test_stored_lengths_are_lucenes() -> None:
    """SmallFloat.byte4ToInt(intToByte4(n)): exact to 40, then rounded down to four leading bits above 24."""
    known = {0: 0, 23: 23, 31: 31, 39: 39, 40: 40, 41: 40, 42: 42, 56: 56, 57: 56, 60: 60, 88: 88, 100: 96, 1000: 984}
    assert {length: stored_length(length) for length in known} == known


def test_a_score_by_hand() -> None:
    """Three texts of 2, 3 and 1 words, mean 2. `red`: two of three have it; `shoe`: one."""
    index = Index(["b", "a", "c"], ["red shoe", "red red table", "lamp"])
    idf_red, idf_shoe = math.log(1 + 1.5 / 2.5), math.log(1 + 2.5 / 1.5)

    def part(idf: float, count: int, length: int) -> float:
        return idf * count / (count + 0.9 * (0.6 + 0.4 * length / 2))

    found = dict(index.search("red shoes"))
    assert found[0] == pytest.approx(part(idf_red, 1, 2) + part(idf_shoe, 1, 2), rel=1e-6)
    assert found[1] == pytest.approx(part(idf_red, 2, 3), rel=1e-6)
    assert 2 not in found and index.search("nothing") == index.search("") == []
    assert dict(index.search("red red"))[1] == pytest.approx(2 * found[1], rel=1e-6), "a repeated word counts twice"


def test_ties_go_by_id() -> None:
    index = Index(["c", "a", "b"], ["red", "red", "red"])
    assert [number for number, _ in index.search("red")] == [1, 2, 0]
    assert [number for number, _ in index.search("red", 2)] == [1, 2]
    assert Index([], []).search("red") == []


WORDS = st.lists(st.sampled_from(["red", "blue", "shoe", "lamp", "table", "desk", "oak"]), max_size=8)


@settings(max_examples=60, deadline=None)
@given(st.lists(WORDS, min_size=1, max_size=30), WORDS.filter(bool), st.integers(1, 40))
def test_any_query_equals_the_formula(texts: list[list[str]], query: list[str], k: int) -> None:
    """Common and rare words, cut lists and whole ones: the formula document by document."""
    index = Index([f"{number:02d}" for number in range(len(texts))], map(" ".join, texts))
    mean = sum(map(len, texts)) / len(texts)
    scores = []
    for number, text in enumerate(texts):
        score = 0.0
        for word, boost in Counter(query).items():
            having = sum(word in other for other in texts)
            idf = boost * math.log(1 + (len(texts) - having + 0.5) / (having + 0.5))
            count = text.count(word)
            score += idf * count / (count + 0.9 * (0.6 + 0.4 * len(text) / mean)) if count else 0.0
        if score > 0:
            scores.append((number, score))
    found = index.search(" ".join(query), k)
    assert len(found) == min(k, len(scores))
    best = sorted((score for _, score in scores), reverse=True)[:k]
    assert [score for _, score in found] == pytest.approx(best, rel=1e-5)
    assert all(score == pytest.approx(dict(scores)[number], rel=1e-5) for number, score in found)
