"""Rules as functions, weights and state."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from divopd.selection import (
    Candidates,
    Rule,
    RuleError,
    apply_rule,
    checked_select,
    load_rule,
)
from divopd.types import DropReason, Turn
from rule_texts import FUNCTION, STATEFUL, six

# --- columns ---------------------------------------------------------------------------------------------------------


def test_optional_columns() -> None:
    scores, mask = np.array([-1.0, -2.0, -3.0], np.float32), np.array([True, False, True])
    turn = Turn((0, 0, 0), 0, 0, np.arange(9), 2, 5, scores, scores, mask)
    cut = Turn((0, 0, 0), 1, 0, np.arange(9), 2, 5, scores, scores, mask, prompt_truncated=True)
    pool = Candidates.from_turns([turn, cut], 0)
    assert np.isnan(pool.entropy).all() and pool.reason.tolist() == ["", str(DropReason.PROMPT_TRUNCATED)]
    names = [f for f in Candidates.__dataclass_fields__ if f not in ("group", "age", "update", "entropy", "reason")]
    recorded = Candidates.from_columns({name: getattr(pool, name) for name in names}, 0)
    assert np.isnan(recorded.entropy).all() and recorded.reason.tolist() == ["", ""]
    with pytest.raises(ValueError, match="read-only"):
        recorded.entropy[0] = 1.0
    assert len(Candidates.from_columns({name: getattr(pool, name)[:0] for name in names}, 0)) == 0


def test_entropy_is_summed_over_valid_tokens_where_a_turn_has_it() -> None:
    class Scored(Turn):
        student_entropy = np.array([0.5, 7.0, 0.25], np.float32)

    scores, mask = np.array([-1.0, -2.0, -3.0], np.float32), np.array([True, False, True])
    turn = Scored((0, 0, 0), 0, 0, np.arange(9), 2, 5, scores, scores, mask)
    assert Candidates.from_turns([turn], 0).entropy.tolist() == [0.75]


# --- functions -------------------------------------------------------------------------------------------------------


def test_a_function_is_a_rule_and_its_keywords_are_parameters(write: Callable[..., Path]) -> None:
    path = write(FUNCTION)
    rule = load_rule(path)
    assert isinstance(rule, Rule) and (rule.name, rule.gated, rule.reads) == ("mine", True, "pool")
    assert rule.model_dump() == {"skip": 2, "back": False} and type(rule).__doc__ == "From the row `skip` on."
    assert checked_select(rule, six(), 3, 0).tolist() == [2, 3, 4]
    set_up = load_rule(path, {"skip": "4", "back": True})
    assert checked_select(set_up, six(), 3, 0).tolist() == [3, 2, 1]
    assert pickle.loads(pickle.dumps(set_up)) == set_up != rule
    for params, words in (({"skip": 0}, "'skip' = 0"), ({"skipp": 1}, "'skipp'; it has: skip, back")):
        with pytest.raises(RuleError, match=words):
            load_rule(path, params)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("def f(pool, budget, seed, alpha: int = 1): ...", "'alpha' needs a place after"),
        ("def f(pool, budget, seed, *, alpha=1): ...", "'alpha' needs"),
        ("def f(pool, budget, seed, *, alpha: int): ...", "'alpha' needs"),
        ("def f(pool, budget, seed, **more): ...", "'more' needs"),
        ("def f(pool, budget, seed, *, alpha: Nothing = 1): ...", "types cannot be read"),
        ("def f(pool, budget, seed): ...\ndef g(pool, budget, seed): ...", "0 subclasses of Rule and 2 functions"),
        ("def f(turns, budget, seed): ...", "0 subclasses of Rule and 0 functions"),
        ("from divopd.selection import load_rule\nf = type(load_rule('divopd'))", "0 subclasses"),
    ],
)
def test_what_is_no_rule_is_said_in_one_line(write: Callable[..., Path], text: str, words: str) -> None:
    with pytest.raises(RuleError, match=words) as caught:
        load_rule(write(f"from __future__ import annotations\n{text}\n"))
    assert "\n" not in str(caught.value)


def test_a_default_that_does_not_fit_its_type_is_an_error(write: Callable[..., Path]) -> None:
    with pytest.raises(RuleError, match="parameter 'alpha' = 'much'"):
        load_rule(write("def f(pool, budget, seed, *, alpha: float = 'much'): ...\n"))


# --- weights and state -----------------------------------------------------------------------------------------------


def chooses(result: Any) -> Rule:
    class Chooses(Rule):
        def select(self, pool: Candidates, budget: int, seed: int) -> Any:
            return result

    return Chooses()


def test_weights_come_with_their_rows() -> None:
    chosen = apply_rule(chooses((np.array([3, 1]), [2, 0.5])), six(), 2, 0, None)
    assert chosen.rows.tolist() == [3, 1] and chosen.state is None
    assert chosen.weights is not None and chosen.weights.tolist() == [2.0, 0.5]
    # a list of two is two rows
    assert apply_rule(chooses([3, 1]), six(), 2, 0, None).weights is None


@pytest.mark.parametrize(
    ("weights", "words"),
    [
        ([1.0], r"weights of shape \(1,\) for 2 rows"),
        ([1.0, -0.1], "not all finite and >= 0"),
        ([1.0, np.nan], "not all finite"),
        ([np.inf, 1.0], "not all finite"),
        ([0.0, 0.0], "all 0"),
        (["a", "b"], "weights where numbers are due"),
    ],
)
def test_weights_that_are_none(weights: Any, words: str) -> None:
    with pytest.raises(RuleError, match=f"Chooses, update 9: .*{words}"):
        apply_rule(chooses((np.array([3, 1]), weights)), six(), 2, 0, None)


def test_state_goes_from_update_to_update(write: Callable[..., Path]) -> None:
    rule = load_rule(write(STATEFUL), {"at": 1})
    first = apply_rule(rule, six(), 2, 0, rule.initial_state())
    second = apply_rule(rule, six(), 2, 0, pickle.loads(pickle.dumps(first.state)))
    assert first.rows.tolist() == [1, 2] and second.rows.tolist() == [3, 4] and second.state == {"next": 5}
    assert checked_select(rule, six(), 2, 0).tolist() == [1, 2]


def test_state_that_cannot_be_saved_is_named() -> None:
    class Open(Rule):
        def advance(self, pool: Candidates, budget: int, seed: int, state: Any) -> Any:
            return np.arange(budget), lambda: 0

    with pytest.raises(RuleError, match="rule Open, update 9: its state cannot be saved"):
        checked_select(Open(), six(), 2, 0)


# --- what a rule raises ----------------------------------------------------------------------------------------------

ENDS = {"sys.exit(0)": "SystemExit: 0", "1 / 0": "ZeroDivisionError: division by zero", "raise Own('x')": "Own: x"}


@pytest.mark.parametrize("raises", ENDS)
@pytest.mark.parametrize("where", ["import", "select", "helper", "initial_state", "state", "make"])
def test_whatever_a_rule_raises_names_its_line(write: Callable[..., Path], where: str, raises: str) -> None:
    """`sys.exit(0)` would end the training with exit code 0 and no word."""
    lines = ["import sys", "import numpy as np", "from divopd.selection import Rule", "class Own(BaseException): ...",
             "def act(here):", f"    if here: {raises}", "class State:", "    def __reduce__(self): act(True)",
             "class Mine(Rule):", "    def model_post_init(self, _): act(WHERE == 'make')",
             "    def initial_state(self): act(WHERE == 'initial_state')",
             "    def advance(self, pool, budget, seed, state):", "        act(WHERE == 'select')",
             "        np.vectorize(lambda x: act(WHERE == 'helper'))(np.zeros(1))",
             "        return np.arange(budget), State() if WHERE == 'state' else None", f"WHERE = {where!r}",
             "act(WHERE == 'import')"]  # fmt: skip
    path = write("\n".join(lines) + "\n", f"{where}_{len(raises)}.py")
    with pytest.raises(RuleError) as caught:
        checked_select(load_rule(path), six(), 3, 0)
    said = str(caught.value)
    assert ENDS[raises] in said and said.endswith(f"{path}, line 6)"), said
    assert where not in ("select", "helper") or f"rule {path.stem}, update 9: select() failed with" in said


def test_a_syntax_error_names_its_line(write: Callable[..., Path]) -> None:
    path = write("x = 1\ndef f(pool, budget, seed:\n    pass\n")
    with pytest.raises(RuleError, match=r"mine\.py cannot be imported: SyntaxError: .*mine\.py, line 2\)$"):
        load_rule(path)


def test_ctrl_c_within_a_rule_stays_ctrl_c(write: Callable[..., Path]) -> None:
    rule = load_rule(write("def mine(pool, budget, seed):\n    raise KeyboardInterrupt\n"))
    with pytest.raises(KeyboardInterrupt):
        checked_select(rule, six(), 3, 0)
