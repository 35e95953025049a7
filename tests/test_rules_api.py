"""Rules as functions, weights, state, rules of installed packages, and the commands that show and write rules."""

from __future__ import annotations

import pickle
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from divopd import provenance, rules_registry
from divopd.cli import main
from divopd.scaffold import new_rule
from divopd.selection import (
    Candidates,
    Rule,
    RuleError,
    apply_rule,
    available_rules,
    checked_select,
    load_rule,
    rule_files,
)
from divopd.types import DropReason, Turn

ROOT = Path(__file__).resolve().parent.parent


def six(update: int = 9) -> Candidates:
    """Six turns of one rollout, s(u) = 0, by arrival."""
    scores, mask = np.array([-1.0], np.float32), np.ones(1, bool)
    turns = [Turn((0, 0, 0), i, 9, np.arange(4), 2, 3, scores, scores, mask, arrival=i) for i in range(6)]
    return Candidates.from_turns(turns, update)


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

FUNCTION = '''
import numpy as np
from pydantic import PositiveInt
from divopd.selection import Candidates

def _helper(pool): return pool.arrival

def mine(pool: Candidates, budget: int, seed: int, *, skip: PositiveInt = 2, back: bool = False) -> np.ndarray:
    """From the row `skip` on."""
    order = np.roll(np.argsort(_helper(pool)), -skip)
    return (order[::-1] if back else order)[:budget]
'''


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    def file(text: str, name: str = "mine.py") -> Path:
        path = tmp_path / name
        path.write_text(text)
        return path

    return file


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


STATEFUL = '''
import numpy as np
from divopd.selection import Rule

class Mine(Rule):
    """The next two rows at each update."""
    at: int = 0

    def initial_state(self):
        return {"next": self.at}

    def advance(self, pool, budget, seed, state):
        rows = (state["next"] + np.arange(budget)) % len(pool)
        return (rows, np.ones(len(rows))), {"next": state["next"] + budget}
'''


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


# --- installed packages ----------------------------------------------------------------------------------------------


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A distribution `others` on sys.path, as pip leaves one: a package, and dist-info that names its rules."""
    package, info = tmp_path / "others_rules", tmp_path / "others-1.0.dist-info"
    package.mkdir()
    info.mkdir()
    (package / "__init__.py").write_text("")
    (package / "tools.py").write_text("FROM = 2\n")
    (package / "rules.py").write_text(
        FUNCTION.replace("import numpy as np", "import numpy as np\nfrom .tools import FROM")
        + '\ndef other(pool: Candidates, budget: int, seed: int) -> np.ndarray:\n    """Another."""\n'
        + "    return np.arange(FROM, FROM + budget)\n"
    )
    (package / "one.py").write_text(STATEFUL)
    (package / "broken.py").write_text("import nothing_of_the_kind\n")
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: others\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[divopd.rules]\nothers_mine = others_rules.rules:mine\nothers_second = others_rules.rules:other\n"
        "others_state = others_rules.one\nothers_broken = others_rules.broken\nothers_none = others_rules.tools:FROM\n"
        "divopd = others_rules.one\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    return package


def test_installed_rules_are_found_by_name(installed: Path) -> None:
    assert rule_files()["others_mine"].samefile(installed / "rules.py")
    assert "baselines" in str(rule_files()["divopd"])  # a shipped name stays the shipped rule's
    mine, state = load_rule("others_mine", {"skip": 3}), load_rule("others_state")
    assert (mine.name, state.name, load_rule("others_second").name) == ("others_mine", "others_state", "others_second")
    assert checked_select(mine, six(), 2, 0).tolist() == [3, 4]
    assert checked_select(load_rule("others_second"), six(), 2, 0).tolist() == [2, 3]
    for rule in (mine, state):
        assert pickle.loads(pickle.dumps(rule)) == rule
    assert provenance.rule_path("others_state").samefile(installed / "one.py")  # its source is in a run's identity


def test_installed_rules_that_cannot_be_had_are_named(installed: Path) -> None:
    with pytest.raises(RuleError, match="others_broken .* cannot be imported: ModuleNotFoundError"):
        load_rule("others_broken")
    with pytest.raises(RuleError, match="others_none .* is no rule"):
        load_rule("others_none")
    with pytest.raises(RuleError, match="unknown rule 'others_mime'; nearest: others_mine"):
        load_rule("others_mime")


# --- commands --------------------------------------------------------------------------------------------------------


def run(*args: Any) -> Any:
    return CliRunner().invoke(main, [str(a) for a in args])


def test_rules_shows_everything_about_one(write: Callable[..., Path]) -> None:
    shown = run("rules", "divopd").output
    doc = (available_rules()["divopd"].__doc__ or "").splitlines()
    assert all(line.strip() in shown for line in doc)
    assert "cap: int = 4 (> 0)" in shown and "sees: valid turns, up to c * B" in shown
    assert "sees: all turns, dead rows too, up to B\n" in run("rules", "vanilla").output
    assert "skip: int = 2 (> 0)" in run("rules", write(FUNCTION)).output
    unknown = run("rules", "divpod")
    assert unknown.exit_code == 1 and "unknown rule 'divpod'" in unknown.output


def test_rules_lists_one_a_line() -> None:
    lines = run("rules").output.splitlines()
    assert [line.split()[0] for line in lines] == list(rule_files())
    assert all(len(line.split(maxsplit=1)) == 2 for line in lines)


def test_new_rule_writes_a_rule_and_a_test_that_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("divopd.selection.rules_dir", lambda: tmp_path / "baselines")
    result = run("new-rule", "my_rule")
    assert result.exit_code == 0, result.output
    rule, test = tmp_path / "baselines" / "my_rule.py", tmp_path / "tests" / "test_rule_my_rule.py"
    assert str(rule) in result.output and str(test) in result.output
    assert 15 <= len(rule.read_text().splitlines()) <= 25
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", tmp_path, test]
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0 and "1 passed" in done.stdout, done.stdout
    tools = [[sys.executable, "-m", "ruff", *how, "--config", ROOT / "pyproject.toml", rule, test]
             for how in (["check"], ["format", "--check"])]  # fmt: skip
    for tool in tools:
        done = subprocess.run([str(c) for c in tool], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
    assert checked_select(load_rule(rule), six(), 2, 0).tolist() == [0, 1]
    again = run("new-rule", "my_rule")
    assert again.exit_code == 1 and "exists already" in again.output


@pytest.mark.parametrize("name", ["2fast", "With", "a-b", "", "class", "a.b", "best_first", "divopd"])
def test_new_rule_refuses_bad_and_existing_names(name: str, tmp_path: Path) -> None:
    with pytest.raises(RuleError, match="already" if name == "divopd" else "cannot be a rule's name"):
        new_rule(name, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_new_rule_leaves_a_test_of_that_name_alone(tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_rule_mine.py").write_text("mine")
    with pytest.raises(RuleError, match="exists already"):
        new_rule("mine", tmp_path)
    assert not (tmp_path / "baselines").exists()


def test_the_guides_examples_are_rules(tmp_path: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "rules.md").read_text(), flags=re.DOTALL)
    prelude = "import numpy as np\nfrom pydantic import PositiveFloat\n"
    prelude += "from divopd.selection import Candidates, Choice, Rule, best_first, per_token\n"
    chosen = []
    for i, block in enumerate(blocks):
        path = tmp_path / f"example{i}.py"
        path.write_text(prelude + block)
        rule = load_rule(path)
        chosen.append(apply_rule(rule, six(), 2, 0, rule.initial_state()))
    assert [c.rows.tolist() for c in chosen] == [[0, 1]] * 3 and [c.state for c in chosen] == [None, None, 1]


def test_the_guide_lists_every_shipped_rule() -> None:
    text = (ROOT / "docs" / "rules.md").read_text()
    rows = [line.split("`")[1] for line in text.splitlines() if line.startswith("| `")]
    assert rows == sorted(rows, key=rows.index) and set(rows) == set(rules_registry.shipped_rules()), (
        "docs/rules.md: its tables have one row a file of baselines/"
    )
    assert len(rows) == len(set(rows))
