"""The rule registry and the contract check: mistakes of users and of rules are one line that names them."""

from __future__ import annotations

import pickle
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from divopd.selection import Candidates, Rule, RuleError, checked_select, load_rule
from divopd.types import Turn


def six() -> Candidates:
    """Six turns, at update 9."""
    scores, mask = np.array([-1.0], np.float32), np.ones(1, bool)
    turns = [Turn((0, 0, 0), i, 9, np.arange(4), 2, 3, scores, scores, mask, arrival=i) for i in range(6)]
    return Candidates.from_turns(turns, 9)


@pytest.mark.parametrize(
    ("name", "params", "words"),
    [
        ("divpod", {}, ["divpod", "divopd", "baselines/"]),
        ("divopd", {"capp": 3}, ["divopd", "'capp'", "it has: cap"]),
        ("divopd", {"cap": "many"}, ["divopd", "'cap'", "'many'"]),
        ("divopd", {"cap": 0}, ["divopd", "'cap'", "greater than 0"]),
        ("nowhere/rule.py", {}, ["nowhere/rule.py"]),
    ],
)
def test_mistakes_are_one_line(name: str, params: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(RuleError) as caught:
        load_rule(name, params)
    assert "\n" not in str(caught.value)
    assert all(word in str(caught.value) for word in words)


OWN_RULE = '''
from __future__ import annotations
import numpy as np
from divopd.selection import Candidates, Rule

class Newest(Rule):
    """Newest first."""
    def select(self, pool: Candidates, budget: int, seed: int) -> np.ndarray:
        return np.argsort(-pool.arrival, kind="stable")[:budget]
'''


def test_a_rule_of_the_users_own(tmp_path: Any) -> None:
    path = tmp_path / "newest.py"
    path.write_text(OWN_RULE)
    rule = load_rule(path)
    assert rule.name == "newest"
    assert checked_select(rule, six(), 2, 0).tolist() == [5, 4]
    assert pickle.loads(pickle.dumps(rule)) == rule


def test_pickled_rules_keep_their_parameters() -> None:
    assert pickle.loads(pickle.dumps(load_rule("divopd", {"cap": 3}))) == load_rule("divopd", {"cap": 3})


@pytest.mark.parametrize(
    ("text", "words"), [("import nothing_of_the_kind", "cannot be imported"), ("x = 1", "0 subclasses")]
)
def test_a_broken_rule_file(tmp_path: Any, text: str, words: str) -> None:
    path = tmp_path / "broken.py"
    path.write_text(text)
    with pytest.raises(RuleError, match=f"broken.py.*{words}"):
        load_rule(path)


@pytest.mark.parametrize(
    ("result", "words"),
    [
        ([0, 0], "row 0 2 times"),
        ([6], "row 6, outside 0..5"),
        ([-1], "row -1"),
        ([0, 1, 2, 3], "4 rows for a budget of 3"),
        ([0.0, 1.0], "float64"),
        ([True, False], "bool"),
        ([[0, 1]], "shape"),
        (None, "shape"),
        ([4], "returned 1 of 3 rows: batches are full"),
        ([], "returned 0 of 3 rows"),
        ("raise", "ZeroDivisionError"),
    ],
)
def test_broken_contracts_name_the_rule(result: Any, words: str) -> None:
    class Broken(Rule):
        def select(self, pool: Candidates, budget: int, seed: int) -> np.ndarray:
            return 1 // 0 if result == "raise" else result

    with pytest.raises(RuleError, match=rf"Broken, update 9: .*{words}"):
        checked_select(Broken(), six(), 3, 0)


def test_an_empty_choice_is_an_integer_array() -> None:
    class Nothing(Rule):
        def select(self, pool: Candidates, budget: int, seed: int) -> np.ndarray:
            return []  # type: ignore[return-value]

    assert checked_select(Nothing(), six(), 0, 0).dtype == np.int64


def test_choosing_needs_no_torch() -> None:
    code = "import sys, divopd.pool, divopd.diagnostics, divopd.selection as s; s.available_rules()"
    subprocess.run([sys.executable, "-c", code + "; assert 'torch' not in sys.modules"], check=True)
