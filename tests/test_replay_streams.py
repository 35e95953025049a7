"""Replayed streams keep the virtual clock's order of events, and are what their description says."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from divopd.analysis.collect import selection_use
from divopd.config import RunConfig
from divopd.diagnostics import DEPTHS
from divopd.pipeline.virtual import Task
from divopd.replay import Replay, ReplayError, Source
from divopd.replay.compare import TOLERANCES, Variant, comparison, planned
from divopd.replay.report import RuleChoice, comparison_summary, replay_stream
from divopd.selection import available_rules, load_rule
from divopd.streams import StreamSpec, Synthetic, read_stream
from divopd.types import Rollout, Turn
from replay_runs import Explore, drive, small
from synthetic import cell

STREAMS = Path(__file__).parent.parent / "experiments" / "streams"


# --- the closed stream keeps the run's order of events ---------------------------------------------------------------


def played(spec: StreamSpec, run_seed: int) -> Explore:
    """The stream's rollouts as real turns, for the real pipeline. Sums of log-probs sit in a turn's first token."""
    source, step = Synthetic(spec, run_seed), iter(range(10_000))

    def explore(tasks: Sequence[Task], version: int, *_: Any) -> tuple[list[Rollout], int]:
        block, lengths = source.block(next(step), version)
        rollouts, row = [], 0
        for (name, task, _unused), n in zip(tasks, lengths, strict=True):
            rollouts.append(Rollout(name, task))
            context = np.zeros(spec.tokens.max_prompt + 1000, np.int64)  # one for all turns, as where the chat grows
            for i in range(n):
                rollouts[-1].turns.append(real_turn({k: v[row] for k, v in block.items()}, context, name, i, version))
                row += 1
        return rollouts, 0

    return explore


def real_turn(row: dict[str, Any], context: np.ndarray, name: Any, index: int, version: int) -> Turn:
    start, n = int(row["prompt_tokens"]), int(row["response_tokens"])
    student, teacher = np.zeros(n), np.zeros(n)
    if row["valid"]:
        student[0], teacher[0] = -row["student_nll"], -row["teacher_nll"]
    mask = np.full(n, bool(row["valid"]))
    turn = Turn(name, index, version, context, start, start + n, student, teacher, np.ones(n, bool), mask)
    turn.prompt_truncated = row["reason"] == "prompt_truncated"
    turn.rollout_turns, turn.rollout_success, turn.reward = (
        int(row["rollout_turns"]),
        bool(row["success"]),
        row["reward"],
    )
    return turn


@pytest.mark.parametrize("rule", ["vanilla", "divopd", "divopd_base", "top_b"])
@pytest.mark.parametrize("arrives", [{}, {"arrives": "rollout"}, {"order": "task"}, {"sync": "wait"}])
@pytest.mark.parametrize("steps", [1, 3])
def test_a_closed_stream_is_what_the_virtual_pipeline_does(rule: str, steps: int, arrives: dict[str, str]) -> None:
    spec = small(pipeline={"tasks_per_step": 5, "load": 2.0, "steps_in_flight": steps} | arrives)
    values = {"train": {"updates": spec.updates, **spec.queue.model_dump()}, "pipeline": spec.pipeline.model_dump()}
    config = RunConfig.model_validate(cell(method=rule, seed=3).model_dump() | values)
    batches = drive(config, played(spec, 3))
    assert replay_stream(spec, RuleChoice.parse(rule), 3).batches == batches


def test_a_steps_rollouts_can_arrive_at_once() -> None:
    def times(arrives: str) -> pd.Series[int]:
        spec = small(pipeline={"tasks_per_step": 5, "load": 2.0, "arrives": arrives})
        turns = replay_stream(spec, RuleChoice.parse("vanilla"), 0).turns
        return turns.groupby("explorer_batch")["arrival_time"].nunique()

    assert (times("step") == 1).all() and (times("rollout") > 1).any()


@pytest.mark.parametrize("rule", sorted(available_rules()))
def test_every_rule_replays_a_stream(rule: str) -> None:
    outcome = replay_stream(small(), RuleChoice.parse(rule), 1)
    summary = outcome.summary()
    assert summary["updates"] == 12 and 0 <= summary["never_selected_share"] <= 1
    assert len({a for batch in outcome.batches for a in batch}) == 120 == (outcome.turns["selected_at"] >= 0).sum()
    assert outcome.depths()["selected"].sum() == 120 and len(outcome.depths()) == 2 * len(DEPTHS)
    assert outcome.batches == replay_stream(small(), RuleChoice.parse(rule), 1).batches
    if load_rule(rule).gated:
        assert summary["dead_rows"] == 0


def test_online_and_final_use_of_rollouts_agree() -> None:
    """The use after the last update by the log's definition, and after update q by cutting a longer replay there."""
    specs = [small(updates=n, queue={"batch_rows": 6}) for n in (12, 7)]
    longer, shorter = (replay_stream(spec, RuleChoice.parse("vanilla_256"), 2) for spec in specs)
    assert shorter.batches == longer.batches[:7]
    cut = longer.turns[longer.turns["arrival_time"] <= longer.updates["time_start"].iloc[6]].copy()
    late = (cut["selected_at"] > 6) | (cut["dropped_at"] > 6)
    cut.loc[late, "selected_at"] = -1
    cut.loc[late, "dropped"] = None
    want = selection_use(cut)
    assert longer.use(7) == pytest.approx(want)
    assert want["undecided_rollouts"] > 0


def test_a_stream_of_dead_rows_is_given_up() -> None:
    tokens = {"first_prompt": 50, "observation": 5, "response": 5, "max_prompt": 40}
    with pytest.raises(ReplayError, match="50 explorer steps without an update"):
        replay_stream(small(tokens=tokens), RuleChoice.parse("divopd"), 0)


def test_a_stream_that_ends_before_its_first_batch() -> None:
    class Empty(Synthetic):
        explorers = 0

        def __init__(self) -> None:
            super().__init__(small())
            self.explorers = 0

    source: Source = Empty()
    with pytest.raises(ReplayError, match="ended before a batch was full"):
        Replay(source, load_rule("vanilla"), 5).run().summary()


# --- beside the paper ------------------------------------------------------------------------------------------------


def test_what_counts_as_a_hit_by_hand() -> None:
    spec = small(paper_setting="webshop-qwen2.5-7b", cap=4)
    ours = {"effective_rollouts": 8.3 * 1.16, "top_rollout_token_share": 0.237 + 0.039, "turns_per_rollout": 6.1,
            "kl_per_token": 0.035, "never_selected_share_100": 0.587, "selected_gini_100": 0.7}  # fmt: skip
    table = comparison(spec, {"vanilla": ours}, {}, lambda variant: {}).set_index("quantity")
    assert table["verdict"].to_dict() == {
        "effective_rollouts": "miss", "top_rollout_token_share": "hit", "turns_per_rollout": "hit",
        "kl_per_token": "hit", "never_selected_share": "hit", "selected_gini": "miss",
    }  # fmt: skip
    assert table.loc["effective_rollouts", "difference"] == pytest.approx(0.16 * 8.3)
    assert table.loc["effective_rollouts", "tolerance"] == pytest.approx(0.15 * 8.3)
    assert set(table["kind"]) == {"calibrated"}
    assert "| small | calibrated | batch_diagnostics | 3 of 4 |" in comparison_summary(table.reset_index())


def test_the_papers_other_runs_are_planned() -> None:
    spec = read_stream(STREAMS / "alfworld.yaml")
    plan = planned(spec, available_rules())
    labels = [(table, variant.rule, variant.label) for table, variant, _ in plan]
    assert ("staleness", "vanilla", "max_staleness=4") in labels and ("teacher_tokens", "divopd", "cap=3") in labels
    assert ("producer_load", "divopd_base", "tasks_per_step=6") in labels
    changed = Variant("vanilla", {}, {"pipeline": {"tasks_per_step": 2}}).spec(spec)
    assert changed.pipeline.tasks_per_step == 2 and changed.pipeline.turn_seconds == spec.pipeline.turn_seconds
    assert planned(spec, ["top_b"]) == [] and planned(small(), ["vanilla"]) == []


@pytest.mark.parametrize("name", ["alfworld", "scienceworld", "webshop"])
def test_vanilla_is_calibrated(name: str) -> None:
    """Every number of the paper that a stream was calibrated to by vanilla is within its stated tolerance."""
    spec = read_stream(STREAMS / f"{name}.yaml")
    outcome = replay_stream(spec, RuleChoice.parse("vanilla"), 0)
    row = outcome.summary() | {f"{key}_100": value for key, value in outcome.use(100).items()}
    missing = dict.fromkeys(TOLERANCES, float("nan"))
    table = comparison(
        spec, {"vanilla": row}, {"vanilla": outcome.depths()}, lambda v: missing if v.label else missing | row
    )
    fitted = table[table["kind"] == "calibrated"]
    assert len(fitted) >= 6
    assert fitted.loc[fitted["verdict"] == "miss", ["quantity", "paper", "replay"]].to_dict("records") == []


def test_speed() -> None:
    """250 updates of 18 rules in 30 s on one core are 1.67 s a rule; twice that here, as other work shares the core."""
    spec, start = read_stream(STREAMS / "alfworld.yaml"), time.process_time()
    replay_stream(spec, RuleChoice.parse("divopd"), 0).summary()
    assert time.process_time() - start < 3.3
