"""Rules of installed packages, the commands that list and write rules, and the guide."""

from __future__ import annotations

import pickle
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from divopd import provenance, rules_registry
from divopd.cli import main
from divopd.scaffold import new_rule
from divopd.selection import (
    RuleError,
    apply_rule,
    available_rules,
    checked_select,
    load_rule,
    rule_files,
)
from rule_texts import FUNCTION, STATEFUL, six

ROOT = Path(__file__).resolve().parent.parent


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
