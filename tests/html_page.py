"""A report.html from the demo's reference results, one run of which gets transcripts made from its turns."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from divopd.analysis.report import report
from divopd.runlog import read_table
from divopd.schema import TRANSCRIPTS

REFERENCE = Path(__file__).resolve().parent.parent / "results" / "demo-reference"
SHOWN = "alfworld-0.5m/alfworld/divopd_recovery/seed0"
HOSTILE = "<script>window.bad = 1</script>"
KEYS = ["explorer_batch", "task_index", "run"]


def make_page(folder: Path) -> Path:
    """Copy the reference results to `folder` and write their report.html there."""
    shutil.copytree(REFERENCE, folder, ignore=shutil.ignore_patterns("logs", "*.html"))
    add_transcripts(folder / SHOWN)
    report(folder, folder, folder / "figures", "html")
    return folder / "report.html"


def add_transcripts(run: Path) -> None:
    """Rollouts 0 and 1 of three explorer steps in words: a turn's sums, in unequal parts over its action's words."""
    turns = read_table(run, "turns").to_pandas().sort_values([*KEYS, "turn"])
    told = turns[turns["explorer_batch"].isin([0, 8, 16]) & (turns["task_index"] < 2)]
    rows = [_row(turn, HOSTILE if i == 0 else f"told {turn.turn}") for i, turn in enumerate(told.itertuples())]
    pq.write_table(pa.Table.from_pylist(rows, schema=TRANSCRIPTS), run / "transcripts.parquet")


def _row(turn: pd.Series, prompt: str) -> dict:
    words = [*turn.action.split(" "), "<end>"] if turn.response_tokens else []
    parts = np.arange(1, len(words) + 1) / max(sum(range(len(words) + 1)), 1)
    scored = bool(words) and not np.isnan(turn.disagreement)
    return {
        **{name: getattr(turn, name) for name in (*KEYS, "turn", "actor")}, "prompt": prompt, "tokens": words,
        "student_logprobs": (-turn.student_nll * parts).tolist() if scored else None,
        "teacher_logprobs": (-turn.teacher_nll * parts).tolist() if scored else None,
        "valid": [scored] * len(words), "episode_reward": turn.reward, "episode_success": turn.success,
    }  # fmt: skip
