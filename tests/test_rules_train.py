"""Row weights in the loss and the learner, and a rule's state in runs that are killed and go on."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from divopd.learner import merge_rows
from divopd.objective import batch_loss
from divopd.runlog import read_table
from divopd.train import Trainer, train
from test_learner import BATCH, base_model, gradient, learner, rollout, same  # noqa: F401 (base_model is a fixture)
from train_runs import quiet, train_killed

N = len(BATCH)


def weighted_gradient(one: Any, weights: np.ndarray | None) -> tuple[dict[str, float], list[torch.Tensor]]:
    """As `gradient`, of BATCH with these row weights."""
    real = one.update
    one.update = lambda turns: real(turns, None, weights)
    return gradient(one, BATCH)


def test_a_weighted_loss_by_hand() -> None:
    student, teacher = torch.tensor([[-1.0], [-2.0], [-3.0]]), torch.tensor([[-2.0], [-1.0], [-1.0]])
    valid = torch.tensor([[True], [True], [False]])
    # row losses -A = student - teacher: 1, -1, and 0 for the dead row; weights 3, 1, 2 have mean 2: 1.5, 0.5, 1
    loss = batch_loss(student, student, teacher, valid, row_weights=torch.tensor([3.0, 1.0, 2.0]))
    assert float(loss) == pytest.approx((1.5 * 1 + 0.5 * -1) / 3)


def test_all_ones_are_no_weights_to_the_bit(base_model: Any) -> None:  # noqa: F811
    plain = learner(base_model)
    want = [plain.update(BATCH) for _ in range(3)]
    for value in (1.0, 0.25, 3.0):
        one = learner(base_model)
        assert [one.update(BATCH, None, np.full(N, value)) for _ in range(3)] == want
        for a, b in zip(plain.parameters, one.parameters, strict=True):
            assert torch.equal(a, b)


def test_the_gradient_is_that_of_weighted_rows(base_model: Any) -> None:  # noqa: F811
    """Against the sum of one-row updates, each times w_t / N; merged rows and dead rows with weights of their own."""
    weights = np.arange(N, dtype=np.float64)
    scaled = weights / weights.mean()
    stats, grads = weighted_gradient(learner(base_model), weights)
    loss, expected = 0.0, [torch.zeros_like(g) for g in grads]
    for turn, w in zip(BATCH, scaled, strict=True):
        alone, parts = gradient(learner(base_model, weight_decay=0.0), [turn])
        loss += w * alone["loss"] / N
        for total, part in zip(expected, parts, strict=True):
            total += w / N * part
    same(grads, expected)
    assert stats["loss"] == pytest.approx(loss, rel=1e-5)
    # the reported value does not follow the weights
    assert stats["objective"] == pytest.approx(learner(base_model).update(BATCH)["objective"])


def test_a_row_of_weight_zero_trains_nothing_and_counts_in_n(base_model: Any) -> None:  # noqa: F811
    live = rollout(0, 3)
    weights = np.array([1.0, 1.0, 0.0])  # scaled: 1.5, 1.5, 0, over N = 3 rows: 1/2 each
    both = learner(base_model)
    real = both.update
    both.update = lambda turns: real(turns, None, weights)  # type: ignore[method-assign]
    same(gradient(both, live)[1], gradient(learner(base_model), live[:2])[1])
    assert [s.weights.sum() for s in merge_rows(live, weights)] == pytest.approx([1.0])


# --- whole runs ------------------------------------------------------------------------------------------------------

RULE = '''
import numpy as np
from divopd.selection import Candidates, Rule, best_first, draws

class Remembers(Rule):
    """Rollouts that gave most turns so far come last; rows weigh by that and by depth. Source: a test."""

    def initial_state(self):
        return {"calls": 0, "given": {}}

    def advance(self, pool, budget, seed, state):
        given = [state["given"].get(tuple(map(int, r)), 0) for r in pool.rollout]
        rows = best_first(pool, draws(pool, seed) - np.array(given) - state["calls"] % 2 * pool.turn)[:budget]
        after = dict(state["given"])
        for r in pool.rollout[rows]:
            key = tuple(map(int, r))
            after[key] = after.get(key, 0) + 1
        weights = np.array([after[tuple(map(int, r))] for r in pool.rollout[rows]])
        return (rows, weights + pool.turn[rows]), {"calls": state["calls"] + 1, "given": after}
'''


def bytes_of(folder: Path) -> list[bytes]:
    return [(folder / name).read_bytes() for name in ("turns.parquet", "updates.parquet", "status.json")]


@pytest.fixture(scope="module")
def whole() -> dict[str, Any]:
    return {}


@pytest.fixture
def cell(tiny_cell: Any, tmp_path: Path, whole: dict[str, Any]) -> Any:
    """A cell with the rule above, and in `whole` the log of its undisturbed run."""
    if not whole:
        path = tmp_path / "remembers.py"
        path.write_text(RULE)
        whole["cell"] = tiny_cell(method={"name": "remembers", "rule": str(path)})
        trainer = Trainer(whole["cell"], tmp_path / "whole")
        assert trainer.run(quiet) == "done"
        whole |= {"log": bytes_of(tmp_path / "whole"), "state": trainer.pipeline.rule_state}
    return whole["cell"]


@pytest.mark.slow
@pytest.mark.parametrize(("where", "call"), [("_learn", 4), ("_publish", 5), ("_snapshot", 2)])
def test_a_rule_with_state_killed_and_resumed_ends_in_the_same_log(
    where: str, call: int, cell: Any, whole: dict[str, Any], tmp_path: Path
) -> None:
    train_killed(cell, tmp_path / "killed", Trainer, where, call)
    trainer = Trainer(cell, tmp_path / "killed")
    # the state is that of the resume point, after 2 or 4 of 6 updates
    resumed = trainer.pipeline.rule_state
    assert resumed["calls"] in (2, 3, 4, 5) and sum(resumed["given"].values()) == 8 * resumed["calls"]
    assert trainer.run(quiet) == "done"
    assert bytes_of(tmp_path / "killed") == whole["log"] and trainer.pipeline.rule_state == whole["state"]


@pytest.mark.slow
def test_state_and_weights_change_what_a_run_does(
    cell: Any, whole: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the tests above could not fail: a resume that forgot the state, or dropped the weights, would show."""
    assert json.loads(whole["log"][2])["status"] == "done" and whole["state"]["calls"] == 6
    forgetful = Trainer(cell, tmp_path / "forgetful")
    real = forgetful.pipeline.rule.initial_state()
    while not forgetful.pipeline.finished:
        forgetful.pipeline.rule_state = copy.deepcopy(real)
        forgetful.pipeline.run(
            trainer_workers(forgetful), lambda row: forgetful.log.add("updates", [row]), forgetful.watch
        )
    forgetful._finish("done")
    assert bytes_of(tmp_path / "forgetful") != whole["log"]
    learn = Trainer._learn
    monkeypatch.setattr(Trainer, "_learn", lambda self, turns, version, weights: learn(self, turns, version))
    train(cell, tmp_path / "even", quiet)
    losses = [read_table(tmp_path / name, "updates").to_pandas()["loss"][0] for name in ("even", "forgetful")]
    assert losses[0] != losses[1]  # the first batch is the same; only its weights are not


def trainer_workers(trainer: Trainer) -> Any:
    from divopd.pipeline.virtual import Workers

    return Workers(trainer._explore, trainer._learn, trainer._publish, trainer._save)
