"""Run log: same rows, same bytes; nothing unreadable passes; errors name the file and the mend."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from divopd import runlog
from divopd.files import atomic_write
from divopd.runlog import SCHEMA_VERSION, SCHEMAS, RunLog, RunLogError, turn_row
from divopd.types import DropReason, Turn
from synthetic import cell, row, write_run


def some_rows(n: int) -> list[dict]:
    return [row("evals", version=i, task=f"task {i % 7}", success=bool(i % 3)) for i in range(n)]


def make_turn(**over) -> Turn:
    fields = {
        "rollout": (3, 1, 0), "index": 2, "version": 5, "context": np.arange(8), "start": 5, "end": 8,
        "student_logprobs": np.array([-1.0, -2.0, -4.0], dtype=np.float32),
        "teacher_logprobs": np.array([-0.5, -3.0, -1.0], dtype=np.float32),
        "action_mask": np.array([True, True, False]), "teacher_mask": None,
    }  # fmt: skip
    return Turn(**(fields | over))


def test_turn_row_sums_over_valid_tokens():
    out = turn_row(make_turn(selected_at=7, rollout_success=True), "gen/train/4")
    assert out.keys() == set(SCHEMAS["turns"].names)
    # tokens 0 and 1: student -3, teacher -3.5
    assert (out["student_nll"], out["teacher_nll"], out["disagreement"]) == (3.0, 3.5, 0.5)
    assert (out["prompt_tokens"], out["response_tokens"], out["valid_tokens"]) == (5, 3, 2)
    assert (out["explorer_batch"], out["task_index"], out["run"], out["turn"]) == (3, 1, 0, 2)
    assert out["success"] and out["dropped"] is None and out["selected_at"] == 7


@pytest.mark.parametrize(
    "over",
    [
        {"teacher_logprobs": None},
        {"action_mask": np.zeros(3, dtype=bool)},
        {"prompt_truncated": True},
        {"teacher_mask": np.array([False, False, True])},
    ],
)
def test_turn_without_valid_tokens_has_no_scores(over: dict):
    out = turn_row(make_turn(**over, dropped=DropReason.NO_TOKENS), "t")
    assert out["valid_tokens"] == 0
    assert out["disagreement"] is None
    assert out["dropped"] == "no_tokens"


def test_non_finite_scores_become_null():
    bad = np.array([-np.inf, -1.0, -1.0], dtype=np.float32)
    assert turn_row(make_turn(student_logprobs=bad), "t")["disagreement"] is None


def test_same_rows_same_bytes_however_often_flushed(tmp_path: Path):
    rows, config = some_rows(300), cell()
    once, often = RunLog.open(tmp_path / "once", config), RunLog.open(tmp_path / "often", config)
    once.add("evals", rows)
    for i in range(0, 300, 37):
        often.add("evals", rows[i : i + 37])
        often.flush()
        often = RunLog.open(tmp_path / "often", config)
    for log in (once, often):
        log.finish("done", updates=3)
    for name in ("config.yaml", "meta.json", "status.json", *(f"{t}.parquet" for t in SCHEMAS)):
        assert (tmp_path / "once" / name).read_bytes() == (tmp_path / "often" / name).read_bytes(), name


def test_round_trip(tmp_path: Path):
    log = RunLog.open(tmp_path, cell(seed=3))
    log.add("evals", some_rows(5))
    log.finish("diverged", reason="NaN")
    assert runlog.read_table(tmp_path, "evals").to_pylist() == some_rows(5)
    assert runlog.read_config(tmp_path) == cell(seed=3)
    status = {"schema": SCHEMA_VERSION, "status": "diverged", "reason": "NaN"}
    assert runlog.read_json(tmp_path, "status.json") == status
    runlog.validate(tmp_path)


def test_truncate_goes_back_to_a_resume_point(tmp_path: Path):
    log = RunLog.open(tmp_path, cell())
    log.add("evals", some_rows(4))
    counts = log.counts()
    log.add("evals", some_rows(9))
    log.flush()
    again = RunLog.open(tmp_path, cell())
    again.truncate(counts)
    again.flush()
    assert runlog.read_table(tmp_path, "evals").to_pylist() == some_rows(4)
    with pytest.raises(RunLogError, match="lost rows"):
        again.truncate({"evals": 5})


def test_a_kill_while_writing_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    log = RunLog.open(tmp_path, cell())
    log.add("evals", some_rows(2))
    log.flush()
    log.add("evals", some_rows(2))
    monkeypatch.setattr(Path, "replace", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        log.flush()
    assert runlog.read_table(tmp_path, "evals").num_rows == 2


def test_rows_must_have_exactly_the_columns(tmp_path: Path):
    log = RunLog.open(tmp_path, cell())
    with pytest.raises(KeyError, match="sucess"):
        log.add("evals", [row("evals") | {"sucess": True}])
    with pytest.raises(KeyError, match="unknown stage"):
        log.add_seconds("lunch", 1.0)
    with pytest.raises(ValueError, match="unknown status"):
        log.finish("fine")


def test_seconds_add_up_over_sessions(tmp_path: Path):
    for _ in range(2):
        log = RunLog.open(tmp_path, cell())
        log.add_seconds("learner", 1.5)
        with log.timed("rollout"):
            pass
        log.flush()
    assert runlog.read_json(tmp_path, "timings.json")["learner"] == 3.0


def test_another_run_in_the_folder_is_refused_and_cleared(tmp_path: Path):
    run = write_run(tmp_path, cell(), updates=10)
    (run / "checkpoints").mkdir()
    (run / "notes.txt").write_text("mine")
    assert runlog.mismatch(run, cell()) is None
    other = cell(rollout_temperature=0.5)
    assert runlog.mismatch(run, other) == "config differs"
    with pytest.raises(RunLogError, match="another run.*--replace"):
        RunLog.open(run, other)
    meta = json.loads((run / "meta.json").read_text())
    (run / "meta.json").write_text(json.dumps(meta | {"schema": SCHEMA_VERSION - 1}))
    assert runlog.mismatch(run, cell()) == "schema differs"  # what --replace mends
    runlog.clear(run)
    assert [path.name for path in run.iterdir()] == ["notes.txt"]
    RunLog.open(run, other)


def test_killed_while_clearing_a_run_is_neither_over_nor_resumable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    order, real = [], runlog.remove
    monkeypatch.setattr(runlog, "remove", lambda path: (order.append(path.name), real(path)))
    runlog.clear(write_run(tmp_path, cell(), updates=10))
    own = [name for name in order if not name.endswith(".tmp")]
    assert own[:2] == ["status.json", "resume"] and own[-1] == "meta.json"


def test_lost_rows_name_a_mend_that_works(tmp_path: Path):
    log = RunLog.open(tmp_path, cell())
    with pytest.raises(RunLogError, match=r"turns\.parquet lost rows \(0 of 3\); delete .*resume and run"):
        log.truncate({"turns": 3})


def test_a_full_disk_is_one_line_and_leaves_the_old_file(tmp_path: Path):
    path = tmp_path / "state.pt"
    atomic_write(path, b"old")

    def full(beside: Path) -> None:
        beside.write_bytes(b"ha")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(RunLogError, match=r"cannot write .*state\.pt: No space left.*free the disk"):
        atomic_write(path, full)
    assert path.read_bytes() == b"old" and list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("name", ["turns.parquet", "evals.parquet", "meta.json", "status.json", "config.yaml"])
@pytest.mark.parametrize("harm", ["missing", "cut", "garbage"])
def test_unreadable_files_name_themselves_and_the_mend(tmp_path: Path, name: str, harm: str):
    run = write_run(tmp_path, cell(), updates=10)
    path = run / name
    if harm == "missing":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2] if harm == "cut" else b"\x00{nonsense: [")
    if harm == "cut" and name == "config.yaml":
        path.write_text("suite: x\n")  # half a YAML file can still be one
    with pytest.raises(RunLogError) as caught:
        runlog.validate(run)
    assert name in str(caught.value)
    assert "run" in str(caught.value).split(";", 1)[1]
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", runlog.TABLES)
@given(data=st.data())
@settings(max_examples=20, deadline=None)
def test_files_hold_every_value_exactly(name: str, data: st.DataObject):
    """Nulls, NaN, infinities, signed zeros and the ends of 64 bits come back, with types and metadata."""
    schema = runlog.TABLES[name]
    entry = {pa.int64(): st.integers(-(2**63), 2**63 - 1), pa.float64(): st.floats(), pa.float32(): st.floats(width=32),
             pa.string(): st.text(st.characters(codec="utf-8"), max_size=8), pa.bool_(): st.booleans()}  # fmt: skip

    def column(kind: pa.DataType) -> st.SearchStrategy:
        cells = st.lists(column(kind.value_type), max_size=3) if pa.types.is_list(kind) else entry[kind]
        return st.none() | cells

    rows = data.draw(st.lists(st.fixed_dictionaries({field.name: column(field.type) for field in schema}), max_size=3))
    table = pa.Table.from_pylist(rows, schema=schema)
    written = runlog.parquet_bytes(table)
    back = pq.read_table(pa.BufferReader(written))
    assert back.schema.equals(schema, check_metadata=True)
    assert repr(back.to_pylist()) == repr(table.to_pylist())  # NaN is not equal to itself, 0.0 is to -0.0
    assert runlog.parquet_bytes(back) == written


def test_files_are_smaller_than_the_defaults_make_them(tmp_path: Path):
    path = write_run(tmp_path, cell(), updates=10) / "turns.parquet"
    pq.write_table(pq.read_table(path), tmp_path / "default.parquet", compression="zstd")
    assert path.stat().st_size < (tmp_path / "default.parquet").stat().st_size


def test_old_schemas_are_refused(tmp_path: Path):
    run = write_run(tmp_path, cell(), updates=10)
    table = pq.read_table(run / "evals.parquet")
    pq.write_table(table.replace_schema_metadata({"divopd_schema": "0"}), run / "evals.parquet")
    with pytest.raises(RunLogError, match=r"evals\.parquet has schema 0"):
        runlog.read_table(run, "evals")
    pq.write_table(pa.table({"a": [1]}), run / "turns.parquet")
    with pytest.raises(RunLogError, match=r"turns\.parquet has schema none"):
        runlog.read_table(run, "turns")
    meta = json.loads((run / "meta.json").read_text())
    (run / "meta.json").write_text(json.dumps(meta | {"schema": 0}))
    with pytest.raises(RunLogError, match=r"meta\.json has schema 0"):
        runlog.read_json(run, "meta.json")


def test_meta_says_what_went_in(tmp_path: Path):
    meta = runlog.read_json(write_run(tmp_path, cell(seed=4), updates=10), "meta.json")
    assert meta["seed"] == 4
    assert meta["identity"]["rule_file"] is not None
    assert meta["identity"]["student"].startswith("hub:")
    assert {"torch", "numpy", "alfworld", "python"} <= meta["packages"].keys()
    assert meta["hardware"]["cores"] >= 1
