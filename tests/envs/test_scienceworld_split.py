"""The frozen ScienceWorld lists are the paper's counts, and what the code makes again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from divopd.envs.base import EnvError
from divopd.envs.registry import read_panel
from divopd.envs.scienceworld.games import VARIATIONS
from divopd.envs.scienceworld.split import (
    HELD_OUT,
    SHORT_TYPES,
    paper_split,
    short_split,
    split_tasks,
    write_panels,
)

ROOT = Path(__file__).resolve().parent.parent.parent
PANELS = ROOT / "experiments" / "panels"


def test_the_paper_s_counts() -> None:
    train, held_out = paper_split()
    assert (len(train), len(held_out)) == (2294, 1308)  # METHOD's source table
    assert (len(VARIATIONS), len(HELD_OUT)) == (30, 13)
    assert {task.split("/")[0] for task in held_out} == set(HELD_OUT)
    assert {task.split("/")[0] for task in train} == set(VARIATIONS) - set(HELD_OUT)
    for task in train + held_out:
        kind, variation = task.split("/")
        assert 0 <= int(variation) < VARIATIONS[kind] // 2
    assert len(set(train + held_out)) == 3602


def test_counts_are_those_of_the_shared_table() -> None:
    table = ROOT.parent / "shared" / "data" / "scienceworld" / "split.json"
    if not table.exists():
        pytest.skip("the table of the paper's split is not here")
    facts = json.loads(table.read_text())
    assert facts["counts"] == VARIATIONS
    assert tuple(facts["held_out"]) == HELD_OUT


def test_short_split_is_balanced_and_disjoint() -> None:
    train, panel = short_split()
    assert (len(train), len(panel)) == (192, 128)
    assert not set(train) & set(panel)
    for tasks, each in ((train, 24), (panel, 16)):
        assert [sum(task.startswith(f"{kind}/") for task in tasks) for kind in SHORT_TYPES] == [each] * 8
        assert len(set(tasks)) == len(tasks)
    assert all(int(task.split("/")[1]) < VARIATIONS[task.split("/")[0]] for task in train + panel)
    assert [task.split("/")[0] for task in panel[:8]] == list(SHORT_TYPES)


def test_frozen_files_are_what_the_code_writes(tmp_path: Path) -> None:
    write_panels(tmp_path)
    made = sorted(path.name for path in tmp_path.iterdir())
    assert len(made) == 4
    for name in made:
        assert (tmp_path / name).read_bytes() == (PANELS / name).read_bytes(), name
    assert read_panel(PANELS / "scienceworld_heldout.txt")[:2] == [
        "find-non-living-thing/140",
        "inclined-plane-friction-unnamed-surfaces/30",
    ]


def test_named_splits() -> None:
    assert split_tasks("held-out") == paper_split()[1]
    assert split_tasks("short-train") == short_split()[0]
    with pytest.raises(EnvError, match="not 'dev'"):
        split_tasks("dev")
