"""What every selection rule must do. A new file in baselines/ is tested by being there; so is the README's example."""

from __future__ import annotations

import ast
import pickle
import re
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from divopd.pool import Pool
from divopd.selection import Candidates, Rule, apply_rule, checked_select, load_rule, shipped_rules
from divopd.types import DropReason, Turn

ROOT = Path(__file__).resolve().parent.parent
SUMS = ("disagreement", "student_nll", "teacher_nll")


def pool_of(n: int, rollouts: int, kind: str = "plain", gated: bool = True, update: int = 40) -> Candidates:
    """n turns of some rollouts, as the pool offers them: arrival order, some with NaN, all tied, or dead."""
    rng = np.random.default_rng(n)
    owner = np.sort(rng.integers(0, max(rollouts, 1), n))
    turn = np.arange(n) - np.searchsorted(owner, owner)
    tied = kind == "ties"
    columns: dict[str, Any] = {
        "rollout": np.stack([owner // 16, owner % 16, np.zeros(n, int)], axis=1),
        "turn": turn,
        "version": update - (owner % 3),
        "first_seen": update - (0 if tied else 1) * (owner % 2),
        "arrival": 1000 + np.arange(n),
        "prompt_tokens": np.full(n, 100) if tied else 100 + 20 * turn,
        "response_tokens": np.full(n, 8) if tied else rng.integers(4, 20, n),
        "reward": np.zeros(n),
        "success": owner % 4 == 0,
        "rollout_turns": np.bincount(owner, minlength=1)[owner],
        "valid": np.ones(n, bool),
        "student_nll": np.ones(n) if tied else rng.exponential(5.0, n),
        "teacher_nll": np.ones(n) if tied else rng.exponential(5.0, n),
    }
    columns["valid_tokens"] = columns["response_tokens"] - (0 if tied else 1)
    columns["disagreement"] = columns["teacher_nll"] - columns["student_nll"]
    if kind == "nan" or not gated:
        dead = np.ones(n, bool) if kind == "nan" else rng.random(n) < 0.2
        for name in SUMS:
            columns[name] = np.where(dead, np.nan, columns[name])
        if not gated:
            columns["valid"], columns["valid_tokens"] = ~dead, np.where(dead, 0, columns["valid_tokens"])
    return Candidates.from_columns(columns, update)


def shuffled(pool: Candidates, seed: int) -> Candidates:
    order = np.random.default_rng(seed).permutation(len(pool))
    names = [f for f in Candidates.__dataclass_fields__ if f not in ("group", "age", "update")]
    return Candidates.from_columns({name: getattr(pool, name)[order] for name in names}, pool.update)


def chosen_turns(rule: Rule, pool: Candidates, budget: int, seed: int = 0) -> list[tuple[int, ...]]:
    rows = checked_select(rule, pool, budget, seed)
    return [(*map(int, pool.rollout[i]), int(pool.turn[i])) for i in rows]


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The rule that the README shows, as its first line names it, below a folder of its own."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.DOTALL)
    code = next(block for block in blocks if "baselines/" in block)
    name = re.match(r"# baselines/(\w+\.py)\n", code)
    assert name, "the example's first line says where it is saved"
    path = tmp_path_factory.mktemp("readme") / name[1]
    path.write_text(code)
    return path


@pytest.fixture(params=[*shipped_rules(), "README.md"])
def rule(request: pytest.FixtureRequest) -> Rule:
    return load_rule(request.getfixturevalue("example") if request.param == "README.md" else request.param)


def file_of(rule: Rule) -> Path:
    return Path(str(sys.modules[type(rule).__module__].__file__))


@pytest.mark.parametrize("kind", ["plain", "ties", "nan"])
@pytest.mark.parametrize(("n", "rollouts"), [(0, 0), (1, 1), (9, 1), (64, 10), (256, 17), (300, 300)])
def test_batches_are_distinct_in_budget_and_full(rule: Rule, n: int, rollouts: int, kind: str) -> None:
    pool = pool_of(n, rollouts, kind, rule.gated)
    for budget in (1, 64):
        assert len(checked_select(rule, pool, budget, 3)) == min(budget, n)
    assert len(checked_select(rule, pool, 0, 3)) == 0


@pytest.mark.parametrize("kind", ["plain", "ties", "nan"])
def test_choice_is_a_function_of_the_columns_and_the_seed(rule: Rule, kind: str) -> None:
    pool = pool_of(200, 20, kind, rule.gated)
    first = chosen_turns(rule, pool, 64, seed=5)
    again = chosen_turns(load_rule(file_of(rule)), pool_of(200, 20, kind, rule.gated), 64, seed=5)
    assert first == again
    for seed in range(3):
        assert chosen_turns(rule, shuffled(pool, seed), 64, seed=5) == first


def test_the_pool_is_left_as_it_was(rule: Rule) -> None:
    pool, twin = pool_of(128, 9, gated=rule.gated), pool_of(128, 9, gated=rule.gated)
    checked_select(rule, pool, 64, 0)
    for name in Candidates.__dataclass_fields__:
        column = getattr(pool, name)
        np.testing.assert_array_equal(column, getattr(twin, name))
        assert name == "update" or not column.flags.writeable


def test_weights_are_one_a_row_and_follow_it(rule: Rule) -> None:
    """Whatever the order of the pool's rows, a turn that is chosen weighs the same."""
    pool = pool_of(200, 20, gated=rule.gated)
    weights = []
    for one in (pool, shuffled(pool, 1)):
        chosen = apply_rule(rule, one, 64, 5, rule.initial_state())
        given = np.ones(64) if chosen.weights is None else chosen.weights
        weights.append(dict(zip(one.arrival[chosen.rows].tolist(), given.tolist(), strict=True)))
    assert len(weights[0]) == 64 and weights[0] == weights[1]


def test_what_a_rule_remembers_survives_a_resume_point(rule: Rule) -> None:
    """Six updates straight on, or with rule and state pickled after each and rows shuffled: the same choices."""
    pools = [pool_of(150, 12, gated=rule.gated, update=update) for update in range(40, 46)]
    state, resumed, resumed_state = rule.initial_state(), rule, rule.initial_state()
    for pool in pools:
        mixed = shuffled(pool, 7)
        first = apply_rule(rule, pool, 32, 5, state)
        second = apply_rule(resumed, mixed, 32, 5, resumed_state)
        state, resumed_state = first.state, second.state
        assert (pool.arrival[first.rows] == mixed.arrival[second.rows]).all()
        resumed, resumed_state = pickle.loads(pickle.dumps((resumed, resumed_state)))
    assert resumed == rule and resumed_state == state


def test_seeds_matter_only_where_a_rule_draws(rule: Rule) -> None:
    pool = pool_of(200, 20, gated=rule.gated)
    results = {tuple(chosen_turns(rule, pool, 64, seed)) for seed in range(4)}
    assert len(results) in (1, 4)  # none of it is random, or all of it follows the seed


def test_a_pool_of_stale_turns_offers_nothing(rule: Rule) -> None:
    pool, scores = Pool(4, 4, 2, 8), np.array([-1.0], np.float32)
    one = np.ones(1, bool)
    pool.put([Turn((0, i, 0), 0, 0, np.arange(4), 2, 3, scores, scores, one) for i in range(8)], 0.0)
    assert not pool.ready(9, rule)
    offered = pool.draw(9, rule)
    rows = checked_select(rule, Candidates.from_turns(offered, 9), 4, 0)
    assert offered == [] and pool.settle(offered, rows, 9) == []
    assert pool.discards == {DropReason.STALE: 8}


@pytest.fixture(scope="module")
def million() -> dict[bool, Candidates]:
    return {gated: pool_of(10**6, 50_000, gated=gated) for gated in (True, False)}


def test_a_million_rows_take_seconds(rule: Rule, million: dict[bool, Candidates]) -> None:
    start = time.process_time()
    rows = checked_select(rule, million[rule.gated], 100_000, 0)
    assert len(rows) == 100_000
    assert time.process_time() - start < 5


def test_a_rule_is_one_short_documented_file(rule: Rule) -> None:
    text = file_of(rule).read_text()
    assert len(text.splitlines()) <= 60
    bodies = [node for node in ast.parse(text).body if isinstance(node, ast.ClassDef | ast.FunctionDef)]
    assert any("Source:" in (ast.get_docstring(node) or "") for node in bodies), "the docstring says where it is from"
