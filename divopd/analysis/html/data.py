"""What report.html holds: the CSVs of a suite, and of every run as much of its log as there is room for."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from divopd import runlog
from divopd.analysis.html.fates import FATES, fates_at
from divopd.analysis.labels import ARRIVED, look, ordered
from divopd.runlog import RunLogError

ROOM = 7_000_000  # bytes of the page for all runs' details together
ROOM_OF_ONE = 250_000
NEARLY = 0.9  # of its room: a run that fills so much is not fitted any closer
CURVE = ["version", "success", "wilson_low", "wilson_high", "episodes", "successes", "trained_tokens",
         "learner_seconds", "wall_seconds", "rollouts"]  # fmt: skip
METRICS = ["objective", "kl_per_token", "grad_norm", "effective_rollouts", "top_rollout_token_share",
           "turns_per_rollout", "dead_row_share", "mean_age", "queue_length", "row_tokens", "read_wait",
           "learner_seconds", "drift", "never_selected_share"]  # fmt: skip
KEYS = ["explorer_batch", "task_index", "run", "turn"]
RUN = ["setting", "env", "method", "seed"]


def pack(content: Any) -> str:
    """JSON, compressed, in base64: what the page's scripts unpack. Equal content, equal text."""
    text = json.dumps(content, separators=(",", ":"), allow_nan=False)
    return base64.b64encode(gzip.compress(text.encode(), 9, mtime=0)).decode()


def unpack(text: str) -> Any:
    """What `pack` was given."""
    return json.loads(gzip.decompress(base64.b64decode(text)))


def plain(values: Iterable[Any], digits: int | None = None) -> list[Any]:
    """Numbers and texts as JSON has them: NaN and infinities are null; floats keep `digits` significant digits."""

    def one(value: Any) -> Any:
        if isinstance(value, np.generic):
            value = value.item()
        if value is None or value is pd.NA or (isinstance(value, float) and not np.isfinite(value)):
            return None
        return float(f"{value:.{digits}g}") if digits and isinstance(value, float) else value

    return [one(value) for value in values]


def columns(frame: pd.DataFrame, names: Iterable[str], digits: int | None = None) -> dict[str, list[Any]]:
    """Those of these columns that the frame has, as JSON lists."""
    return {name: plain(frame[name].tolist(), digits) for name in names if name in frame}


def suite(curves: pd.DataFrame, summary: pd.DataFrame) -> dict[str, Any]:
    """What all views share: settings, looks of methods, one entry a run with its learning curve."""
    methods = ordered(summary["method"])
    looks = [look(method, methods) for method in methods]
    by_run = dict(iter(curves.groupby(RUN)))
    runs = []
    for row in summary.to_dict("records"):
        key = {name: row[name] for name in RUN}
        curve = by_run.get(tuple(row[name] for name in RUN), curves.iloc[:0])
        facts = ("status", "peak", "final5_mean", "nauc", "start", "reached")
        runs.append({**key, **dict(zip(facts, plain(row.get(name) for name in facts), strict=True)),
                     "curve": columns(curve, CURVE)})  # fmt: skip
    target = summary.groupby("setting", sort=False)["target"].first()
    return {
        "settings": [{"name": name, "target": value} for name, value in
                     zip(target.index, plain(target.tolist()), strict=True)],
        "methods": [{"name": method, "label": look.label, "colour": look.colour, "marker": look.marker,
                     "dash": list(look.line[1]) if isinstance(look.line, tuple) else []}
                    for method, look in zip(methods, looks, strict=True)],
        "runs": runs,
        "fates": FATES,
    }  # fmt: skip


def folder_of(results: Path, row: dict[str, Any]) -> Path | None:
    """Where the log of a row of summary.csv lies below `results`, which holds one suite or several.

    None if it is not there, or of another schema, which a report allows but which cannot be shown turn by turn.
    """
    if row["schema"] != runlog.SCHEMA_VERSION:
        return None
    tail = Path(str(row["setting"]), str(row["env"]), str(row["method"]), f"seed{row['seed']}")
    for folder in (results / tail, results / str(row["suite"]) / tail):
        if (folder / "meta.json").exists():
            return folder
    return None


def run_details(folder: Path | None, room: int) -> str:
    """A run's packed details, in at most about `room` bytes: fewer updates' turns where they do not fit.

    Files that are not there or cannot be read are named in it.
    """
    if folder is None:
        return pack({"missing": ["the run's folder, in today's schema"]})
    try:
        log = RunDetails(folder)
    except RunLogError as error:
        return pack({"missing": [str(error)]})
    sizes = {log.updates: pack(log.content(log.updates))}
    if len(sizes[log.updates]) <= room or not log.updates:
        return sizes[log.updates]
    fits, high = 0, log.updates
    sizes[fits] = pack(log.content(fits))
    # the more updates, the less one adds, as they share turns: from the straight line between two counts downwards
    while high - fits > 1 and len(sizes[fits]) < NEARLY * room:
        share = (room - len(sizes[fits])) / (len(sizes[high]) - len(sizes[fits]))
        count = min(max(fits + int(share * (high - fits)), fits + 1), high - 1)
        sizes[count] = pack(log.content(count))
        fits, high = (count, high) if len(sizes[count]) <= room else (fits, count)
    return sizes[fits]


class RunDetails:
    """One run's log, as far as it is there."""

    def __init__(self, folder: Path) -> None:
        self.config = runlog.read_config(folder)
        self.meta = runlog.read_json(folder, "meta.json")
        self.tables: dict[str, pd.DataFrame] = {}
        self.missing: list[str] = []
        for name in ("updates", "turns", "transcripts"):
            try:
                self.tables[name] = runlog.read_table(folder, name).to_pandas()
            except RunLogError as error:
                there = (folder / f"{name}.parquet").exists()
                self.missing.append(str(error) if there else f"{name}.parquet")
        found = self.tables.get("updates")
        self.updates = 0 if found is None or "turns" not in self.tables else len(found)

    def content(self, count: int) -> dict[str, Any]:
        """All that is kept of the run, with the turns of `count` evenly spread updates."""
        cell, tables = self.config, self.tables
        out: dict[str, Any] = {
            "missing": self.missing,
            "config": {
                "rule": cell.method.rule, "params": cell.method.params, "rollout policy": cell.method.rollout.policy,
                "rollout params": cell.method.rollout.params, "loss": cell.method.loss.name,
                "updates": cell.train.updates, "rows a batch": cell.train.batch_rows,
                "staleness limit": cell.train.max_staleness, "turn limit": cell.env.max_turns,
                "prompt limit": cell.prompt.max_prompt_tokens, "learning rate": cell.train.learning_rate,
                "arrivals": ARRIVED[cell.pipeline.arrives, cell.pipeline.order],
            },
            "hashes": self.meta["identity"], "git": self.meta["git"],
        }  # fmt: skip
        if "updates" in tables:
            out["metrics"] = columns(tables["updates"], ["update", *METRICS], 4)
        if self.updates:
            out["turns"] = self._turns(count)
        if "transcripts" in tables:
            out["episodes"] = self._episodes()
        return out

    def _turns(self, count: int) -> dict[str, Any]:
        turns, updates = self.tables["turns"], self.tables["updates"]
        picked = np.unique(np.linspace(0, len(updates) - 1, count).round().astype(int))
        cap = self.config.method.params.get("cap")
        at = {
            int(updates["update"].iloc[i]): fates_at(
                turns, int(updates["update"].iloc[i]), float(updates["time_start"].iloc[i]), cap
            )
            for i in picked
        }
        labels = np.unique(np.concatenate([fates.index for fates in at.values()])) if at else np.zeros(0, dtype=int)
        kept = turns.loc[labels]
        places = {label: i for i, label in enumerate(labels)}
        actions, names = pd.factorize(kept["action"])
        tasks, task_names = pd.factorize(kept["task"])
        out: dict[str, Any] = columns(kept, [*KEYS, "version", "rollout_turns", "valid_tokens"])
        out |= columns(kept, ["disagreement"], 3)
        out |= {"action": actions.tolist(), "actions": list(names), "task": tasks.tolist(), "tasks": list(task_names)}
        out["success"] = kept["success"].astype(int).tolist()
        out["at"] = {str(q): _steps(fates, places) for q, fates in at.items()}
        return out

    def _episodes(self) -> list[dict[str, Any]]:
        """Episodes in the order in which they were played, a turn with its tokens and its fate."""
        rows, turns = self.tables["transcripts"], self.tables.get("turns")
        facts = ["task", "version", "rollout_turns", "selected_at", "dropped", "dropped_at", "valid_action"]
        if turns is not None:
            rows = rows.merge(turns[[*KEYS, *facts]], on=KEYS, how="left", validate="one_to_one")
        out = []
        for name, part in rows.sort_values(KEYS).groupby(KEYS[:3]):
            first = part.iloc[0]
            out.append({
                "id": list(map(int, name)), "success": bool(first["episode_success"]),
                "reward": float(first["episode_reward"]),
                **{fact: plain([first.get(fact)])[0] for fact in ("task", "version", "rollout_turns")},
                "turns": [_told(row) for row in part.to_dict("records")],
            })  # fmt: skip
        return out


def _steps(fates: pd.Series, places: dict[Any, int]) -> list[Any]:
    """Rows of the turn table as steps from one to the next, and their fates in one string."""
    rows = [places[label] for label in fates.index]
    return [np.diff(rows, prepend=0).tolist(), "".join(fates)]


def _told(row: dict[str, Any]) -> dict[str, Any]:
    numbers: Callable[[Any], Any] = lambda values: None if values is None else plain(map(float, values), 5)  # noqa: E731
    return {
        "turn": int(row["turn"]), "actor": row["actor"], "prompt": row["prompt"], "tokens": list(row["tokens"]),
        "student": numbers(row["student_logprobs"]), "teacher": numbers(row["teacher_logprobs"]),
        "valid": [int(v) for v in row["valid"]],
        **{name: plain([row.get(name)])[0] for name in ("selected_at", "dropped", "dropped_at")},
    }  # fmt: skip
