"""What `divopd rules` prints about a rule, and the files that `divopd new-rule` writes."""

from __future__ import annotations

import inspect
import keyword
import re
import sys
from pathlib import Path

from divopd.rules_base import Rule, RuleError
from divopd.rules_registry import rule_files

RULE = '''import numpy as np

from divopd.selection import Candidates, best_first


def {name}(pool: Candidates, budget: int, seed: int, *, power: float = 1.0) -> np.ndarray:
    """Turns with the longest responses first.

    By response tokens ^ power, descending, ties by (rollout, turn), NaN last.

    Change the score, the parameters after the star (each with a type and a default; a suite sets them under `params`)
    and this text: its first line is what `divopd rules` lists. Say what, by which formula, and from where.
    Source: ours.
    """
    # pool: rollout, group, turn, version, age, first_seen, arrival, prompt_tokens, response_tokens, valid_tokens,
    # disagreement, student_nll, teacher_nll, entropy, reward, success, rollout_turns, valid, reason; pool.update
    score = pool.response_tokens.astype(float) ** power
    return best_first(pool, score)[:budget]
'''
TEST = '''"""`{name}` against a pool worked out by hand. What holds for every rule: tests/test_rules_contract.py."""

from pathlib import Path

import numpy as np

from divopd.selection import Candidates, checked_select, load_rule

RULE = Path(__file__).parent.parent / "baselines" / "{name}.py"


def test_longest_responses_come_first() -> None:
    n = 4
    columns = {{
        "rollout": [(0, 0, 0), (0, 0, 0), (0, 1, 0), (0, 1, 0)], "turn": [0, 1, 0, 1], "arrival": np.arange(n),
        "response_tokens": [5, 9, 7, 9], "valid_tokens": [5, 9, 7, 9], "prompt_tokens": [10, 20, 10, 20],
        "disagreement": [1.0, 0.5, 2.0, -1.0], "student_nll": np.ones(n), "teacher_nll": np.ones(n),
        "version": np.zeros(n), "first_seen": np.zeros(n), "reward": np.zeros(n), "rollout_turns": [2, 2, 2, 2],
        "success": [True, True, False, False], "valid": np.ones(n),
    }}  # fmt: skip
    pool = Candidates.from_columns(columns, update=0)
    # 9 tokens twice: the tie goes to the lower rollout; then 7
    assert checked_select(load_rule(RULE), pool, 3, seed=0).tolist() == [1, 3, 2]
'''


def new_rule(name: str, root: Path) -> tuple[Path, Path]:
    """Write baselines/NAME.py and tests/test_rule_NAME.py under `root`; returns their paths.

    Raises RuleError, before anything is written, for a name that is none or that something bears already.
    """
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or keyword.iskeyword(name) or name in ("np", "best_first"):
        raise RuleError(f"{name!r} cannot be a rule's name: a letter, then letters, digits and _, all lower case")
    rule, test = root / "baselines" / f"{name}.py", root / "tests" / f"test_rule_{name}.py"
    if name in rule_files():
        raise RuleError(f"there is a rule {name!r} already: {rule_files()[name]}")
    for path in (rule, test):
        if path.exists():
            raise RuleError(f"{path} exists already; choose another name or remove it")
    for path, text in ((rule, RULE), (test, TEST)):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.format(name=name), encoding="utf-8")
    return rule, test


def parameters(rule: type[Rule]) -> list[str]:
    """'name: type = default', with the bounds that the type sets, of each parameter."""
    signs = {"gt": ">", "ge": ">=", "lt": "<", "le": "<="}
    out = []
    for name, field in rule.model_fields.items():
        kind = getattr(field.annotation, "__name__", str(field.annotation))
        bounds = [f"{sign} {getattr(b, key)}" for b in field.metadata for key, sign in signs.items() if hasattr(b, key)]
        out.append(f"{name}: {kind} = {field.get_default()!r}" + (f" ({', '.join(bounds)})" if bounds else ""))
    return out


def docstring(rule: type[Rule]) -> str:
    """The rule's own, else its file's."""
    return inspect.cleandoc(rule.__doc__ or sys.modules[rule.__module__].__doc__ or "")


def summary(rule: type[Rule]) -> str:
    """One line: name, what it does, its parameters."""
    first = docstring(rule).partition("\n")[0]
    fields = ", ".join(f"{name}={field.get_default()!r}" for name, field in rule.model_fields.items())
    return f"{rule.name:24}{first}{f'  [{fields}]' if fields else ''}"


def description(rule: type[Rule]) -> str:
    """All there is to say about a rule: its docstring, its parameters, what it is offered, where it is."""
    which, limit = (
        "valid turns" if rule.gated else "all turns, dead rows too",
        "B" if rule.reads == "batch" else "c * B",
    )
    fields = [f"  {line}" for line in parameters(rule)] or ["  none"]
    end = [f"sees: {which}, up to {limit}", f"file: {rule_files().get(rule.address, rule.address)}"]
    return "\n".join([rule.name, "", docstring(rule), "", "parameters:", *fields, *end])
