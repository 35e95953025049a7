"""Replay gives a run's own batches again, and says what it cannot read."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from divopd import runlog
from divopd.cli_replay import replay as command
from divopd.config import RunConfig
from divopd.pipeline.virtual import Task
from divopd.replay import Recorded, Replay, batches_match
from divopd.replay.report import Report, RuleChoice, replay_run, replay_stream
from divopd.runlog import RunLogError
from divopd.seeds import seed
from divopd.selection import RuleError, available_rules, load_rule
from divopd.streams import StreamSpec, Synthetic
from divopd.types import Rollout, Turn
from replay_runs import drive, logged_run, same, small
from synthetic import cell

# --- a run's own rule ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", sorted(available_rules()))
def test_its_own_rule_gives_a_run_again(rule: str, tmp_path: Path) -> None:
    """Exactly: batches in order, every diagnostic of every update, and the fate of every turn."""
    run_dir, batches = logged_run(tmp_path, rule)
    source = Recorded(run_dir)
    outcome = replay_run(source, RuleChoice.parse(rule))
    assert outcome.batches == batches
    assert batches_match(source, outcome) == len(batches) == 14
    same(outcome.updates, source.updates)
    logged = source.turns.copy()
    dead = ~source.rows.column("valid")
    logged.loc[dead, "valid_tokens"] = 0
    logged.loc[dead, ["disagreement", "student_nll", "teacher_nll"]] = np.nan
    same(outcome.turns, logged)


@pytest.mark.parametrize("pipeline", [
    {"steps_in_flight": 3}, {"load": 0.6}, {"load": None, "runs_per_task": 2}, {"arrives": "rollout"},
    {"arrives": "rollout", "steps_in_flight": 3}, {"order": "task"}, {"sync": "wait"},
    {"sync": "wait", "steps_in_flight": 3}, {"sync": "wait", "arrives": "rollout"}, {"sync": "wait", "load": 0.6},
])  # fmt: skip
def test_its_own_rule_under_other_clocks(pipeline: dict[str, Any], tmp_path: Path) -> None:
    run_dir, batches = logged_run(tmp_path, "divopd", **pipeline)
    outcome = replay_run(Recorded(run_dir), RuleChoice.parse("divopd"))
    assert outcome.batches == batches
    same(outcome.updates, Recorded(run_dir).updates)


@pytest.mark.slow
def test_a_real_run_again(tiny_cell: Any, tmp_path: Path) -> None:
    from divopd.train import train

    config = tiny_cell("divopd")
    assert train(config, tmp_path / "run", lambda *_: None) == "done"
    source = Recorded(tmp_path / "run")
    outcome = replay_run(source, RuleChoice.parse("divopd"))
    assert batches_match(source, outcome) == config.train.updates
    same(outcome.updates, source.updates)


def test_a_wrong_batch_is_seen(tmp_path: Path) -> None:
    run_dir, _ = logged_run(tmp_path, "divopd")
    source = Recorded(run_dir)
    outcome = replay_run(source, RuleChoice.parse("divopd"))
    outcome.batches[3] = outcome.batches[3][:-1]
    assert batches_match(source, outcome) == 13


# --- another rule over a recorded run --------------------------------------------------------------------------------


def two_turn_rollouts(tasks: Sequence[Task], version: int, *_: Any) -> tuple[list[Rollout], int]:
    """Two rollouts a step of two turns, 2 s long; row tokens 10 and 20; the larger gap is in the second turn."""
    out = []
    for name, task, _unused in tasks:
        context, rollout = np.zeros(20, dtype=np.int64), Rollout(name, task)
        for i, end in enumerate((10, 20)):
            scores, mask = np.full(1, -1.0, dtype=np.float32), np.ones(1, dtype=bool)
            turn = Turn(name, i, version, context, end - 1, end, scores, scores - i, mask)
            turn.rollout_turns = 2
            rollout.turns.append(turn)
        out.append(rollout)
    return out, 0


CLOCK = {"tasks_per_step": 2, "arrives": "rollout", "turn_seconds": 1.0, "response_token_seconds": 0.0,
         "teacher_token_seconds": 0.0, "update_seconds": 0.5, "update_token_seconds": 0.1, "load": None}  # fmt: skip


def test_another_rules_clock_and_ages_by_hand(tmp_path: Path) -> None:
    """Steps start at 0, 2, 4, ..; four turns arrive at their end; B = 2 rows.

    Vanilla, B rows at arrival: row tokens 10 + 20, so 0.5 + 3 = 3.5 s an update: 2-5.5 on step 0, 5.5-9 on step 0's
    other rollout. Steps 0 to 2 play version 0, step 3 (6 s) version 1.

    top_b takes the two second turns, 40 tokens: 4.5 s. Its first read finds what has arrived at 2: the first rollout's
    turns alone, 30 tokens, 2-5.5; its second at 5.5 has steps 0 and 1, six turns, and takes two second turns (4.5 s),
    5.5-10; the third at 10 meets version 0 (steps 0 to 2, age 2), version 1 (steps 3, 4: 6 and 8 s), and the
    step that starts then plays version 2.
    """
    train = {"updates": 3, "batch_rows": 2, "max_staleness": 2}
    config = RunConfig.model_validate(cell(method="vanilla").model_dump() | {"train": train, "pipeline": CLOCK})
    drive(config, two_turn_rollouts, tmp_path / "run")
    source = Recorded(tmp_path / "run")
    assert source.updates["time_start"].tolist() == [2.0, 5.5, 9.0]
    outcome = replay_run(source, RuleChoice.parse("top_b"))
    assert outcome.updates["time_start"].tolist() == [2.0, 5.5, 10.0]
    assert outcome.updates["row_tokens"].tolist() == [30, 40, 40]
    versions = outcome.turns.groupby("explorer_batch")["version"].unique().apply(list).to_dict()
    assert versions == {0: [0], 1: [0], 2: [0], 3: [1], 4: [1], 5: [2]}
    assert outcome.updates["mean_age"].tolist() == [0.0, 1.0, 2.0]


def test_a_version_is_what_the_replayed_learner_had_published(tmp_path: Path) -> None:
    """Ages cannot be negative, whichever rule is slower than the one that was logged."""
    run_dir, _ = logged_run(tmp_path, "vanilla", update_token_seconds=0.01)
    source = Recorded(run_dir)
    for rule in ("divopd", "top_b"):
        outcome = replay_run(source, RuleChoice.parse(rule))
        chosen = outcome.turns[outcome.turns["selected_at"] >= 0]
        age = chosen["selected_at"] - chosen["version"]
        assert age.between(0, 2).all()
        published = outcome.updates["time_end"].to_numpy()
        assert ((published[:, None] <= chosen["arrival_time"].to_numpy()).sum(axis=0) >= chosen["version"]).all()


def test_arrivals_that_end_early_are_said(tmp_path: Path) -> None:
    run_dir, _ = logged_run(tmp_path, "divopd")
    report = Report([RuleChoice.parse("divopd")], 100)
    report.run(run_dir)
    assert any("arrivals ended after" in note for note in report.notes)
    assert any("its own rule gives 14 of its 14 batches" in note for note in report.notes)


# --- the command -----------------------------------------------------------------------------------------------------


def call(*arguments: Any) -> Any:
    return CliRunner().invoke(command, [str(argument) for argument in arguments])


def write(path: Path, spec: StreamSpec) -> Path:
    import yaml

    path.write_text(yaml.safe_dump(spec.model_dump(mode="json", exclude_none=True)))
    return path


def test_command_over_streams_and_runs(tmp_path: Path) -> None:
    run_dir, _ = logged_run(tmp_path, "divopd")
    stream = write(tmp_path / "small.yaml", small(paper_setting="scienceworld-qwen2.5-1.5b"))
    result = call("--run", run_dir, "--stream", stream, "--rule", "vanilla", "--rule", "divopd:cap=3", "--updates", 9,
                  "--seed", 0, "--seed", 4, "--out", tmp_path / "out")  # fmt: skip
    assert result.exit_code == 0, result.output
    table = pd.read_csv(tmp_path / "out" / "replay.csv")
    assert table[["stream", "rule", "seed"]].to_numpy().tolist() == [
        [run_dir.as_posix(), "vanilla", 0], [run_dir.as_posix(), "divopd:cap=3", 0], ["small", "vanilla", 0],
        ["small", "vanilla", 4], ["small", "divopd:cap=3", 0], ["small", "divopd:cap=3", 4],
    ]  # fmt: skip
    assert (table["updates"] == 9).all()
    depths = pd.read_csv(tmp_path / "out" / "replay_depth.csv")
    assert depths.groupby(["stream", "rule", "seed"])["percent"].sum().to_numpy() == pytest.approx(100)
    compared = pd.read_csv(tmp_path / "out" / "comparison.csv")
    assert set(compared["table"]) == {"batch_diagnostics", "utilization", "staleness"}
    assert (tmp_path / "out" / "replay.md").read_text().splitlines()[2].startswith("| stream | rule | updates |")
    assert result.output.startswith("# Replay")
    assert list(tmp_path.rglob(".*.tmp")) == []


def test_load_is_dialled(tmp_path: Path) -> None:
    stream = write(tmp_path / "small.yaml", small(updates=30))
    stale = []
    for load in (0.5, 3):
        assert call("--stream", stream, "--rule", "vanilla", "--load", load, "--out", tmp_path / "o").exit_code == 0
        stale.append(pd.read_csv(tmp_path / "o" / "replay.csv")["load"].item())
    assert stale[0] < 1 < stale[1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--stream", "none.yaml"], "none.yaml: No such file"),
        (["--stream", "{small}", "--rule", "vanila"], "unknown rule 'vanila'; nearest: vanilla"),
        (["--stream", "{small}", "--rule", "divopd:cap"], "'cap' is not key=value"),
        (["--stream", "{small}", "--rule", "divopd:k=3"], "unknown parameter 'k'"),
        (["--run", "{root}/nothing"], "status.json is missing"),
        ([], "give --run, --stream"),
    ],
)
def test_mistakes_get_one_line(arguments: list[str], message: str, tmp_path: Path) -> None:
    small_file = write(tmp_path / "small.yaml", small())
    filled = [a.format(small=small_file, root=tmp_path) for a in arguments]
    result = call(*filled, "--out", tmp_path / "out")
    assert result.exit_code != 0
    text = result.output if isinstance(result.exception, SystemExit) else str(result.exception)
    assert message in text and isinstance(result.exception, SystemExit | RuleError | RunLogError)
    assert not (tmp_path / "out").exists()


def test_logs_that_cannot_be_replayed(tmp_path: Path) -> None:
    run_dir, _ = logged_run(tmp_path, "vanilla")
    table = runlog.read_table(run_dir, "turns")
    path = run_dir / "turns.parquet"
    pq.write_table(table.slice(3), path)
    with pytest.raises(RunLogError, match="lacks arrivals"):
        Recorded(run_dir)
    pq.write_table(table.slice(0, 0), path)
    with pytest.raises(RunLogError, match="no student turn"):
        Recorded(run_dir)
    pq.write_table(table.replace_schema_metadata({"divopd_schema": "1"}), path)
    with pytest.raises(RunLogError, match="has schema 1, this code reads"):
        Recorded(run_dir)
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(RunLogError, match="turns.parquet is corrupt"):
        Recorded(run_dir)
    (run_dir / "status.json").unlink()
    with pytest.raises(RunLogError, match=r"status\.json is missing"):
        Recorded(run_dir)


def test_seeds_of_replay_are_the_runs() -> None:
    """A stream's seed draws its rollouts and, as in a run, names the rule's own draws."""
    a, b = (replay_stream(small(), RuleChoice.parse("divopd_base"), s) for s in (0, 1))
    assert a.turns["prompt_tokens"].tolist() != b.turns["prompt_tokens"].tolist()
    replay = Replay(Synthetic(small(), 5), load_rule("divopd_base"), 3)
    assert replay._rule_seed == seed(5, "rule")
