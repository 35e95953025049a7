"""report.html: its data are the CSVs and logs, it fetches nothing, and it says rightly what became of turns."""

from __future__ import annotations

import re
import shutil
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from divopd.analysis.html import data, page
from divopd.analysis.html.fates import FATES, fates_at
from divopd.runlog import SCHEMA_VERSION, RunLogError, read_config, read_table
from divopd.types import DropReason
from html_page import HOSTILE, REFERENCE, SHOWN, add_transcripts, make_page

RUNS = sorted(REFERENCE.rglob("seed0"))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_page(tmp_path_factory.mktemp("html") / "demo")


# what became of turns ------------------------------------------------------------------------------------------------


def test_fates_by_hand():
    def turn(task: int, n: int, seen=0, at=-1, dropped=None, gone=-1, arrival=1.0, actor="student"):
        return (0, task, 0, n, actor, seen, at, dropped, gone, arrival)

    turns = pd.DataFrame([
        turn(0, 0, at=3), turn(0, 1, at=3), turn(0, 2, seen=1, at=4), turn(0, 3, dropped="unread", gone=9),
        turn(1, 0, at=3), turn(1, 1, dropped="stale", gone=5),
        turn(2, 0, dropped="stale", gone=3), turn(2, 1, dropped="expired", gone=3), turn(2, 2, at=2),
        turn(3, 0, seen=-1, dropped="prompt_truncated", gone=3), turn(3, 1, seen=-1, dropped="stale", gone=4),
        turn(3, 2, seen=4, at=4), turn(3, 3, seen=4, at=4, arrival=8.0), turn(3, 4, seen=-1, dropped="stale", gone=2),
        turn(4, 0, seen=-1, actor="teacher"),
    ], columns=["explorer_batch", "task_index", "run", "turn", "actor", "first_seen", "selected_at", "dropped",
                "dropped_at", "arrival_time"])  # fmt: skip
    at_3 = fates_at(turns, 3, start=7.0, cap=2)
    # rollout 0 gave its two; rollout 1 gave one of two; 3.2 waits; 3.3 is not there yet; 2.2 and 3.4 are gone
    assert at_3.to_dict() == {0: "s", 1: "s", 2: "c", 3: "c", 4: "s", 5: "f", 6: "o", 7: "x", 9: "p", 10: "q", 11: "q"}
    assert fates_at(turns, 3, start=7.0, cap=None)[[2, 3, 5]].tolist() == ["f", "f", "f"]


def test_every_reason_has_its_words():
    for reason in DropReason:
        turns = read_table(RUNS[0], "turns").to_pandas().head(1).assign(
            selected_at=-1, dropped=reason.value, dropped_at=0, first_seen=-1
        )  # fmt: skip
        [fate] = fates_at(turns, 0, start=1e9, cap=4)
        assert fate in FATES and (fate == "q") == (reason is DropReason.UNREAD)


@pytest.mark.parametrize("run", RUNS, ids=lambda run: "/".join(run.parts[-4:-1]))
def test_fates_add_up_to_what_the_run_counted(run: Path):
    """At every update as many selected turns as rows, and as many left as updates.parquet says were waiting."""
    turns, updates = read_table(run, "turns").to_pandas(), read_table(run, "updates").to_pandas()
    cap = read_config(run).method.params.get("cap")
    for row in updates.itertuples():
        counts = fates_at(turns, row.update, row.time_start, cap).value_counts()
        assert counts.get("s", 0) == row.rows
        assert sum(counts.get(fate, 0) for fate in "cfq") == row.queue_length
    stale = sum(
        (fates_at(turns, row.update, row.time_start, cap) == "o").sum() for row in updates.head(9).itertuples()
    )  # fmt: skip
    assert stale == updates["stale_rows"].iloc[min(8, len(updates) - 1)]


# what the page holds -------------------------------------------------------------------------------------------------


def block(made: Path, name: str):
    return data.unpack(re.search(rf'<script type="text/plain" id="{name}">(.*?)</script>', made.read_text())[1])


def test_curves_are_those_of_the_csv(made: Path):
    curves, summary = (pd.read_csv(made.parent / f"{name}.csv") for name in ("curves", "summary"))
    runs = block(made, "suite")["runs"]
    assert [[run[key] for key in data.RUN] for run in runs] == summary[data.RUN].values.tolist()
    told = pd.concat([pd.DataFrame(run["curve"]).assign(**{key: run[key] for key in data.RUN}) for run in runs])
    pd.testing.assert_frame_equal(
        told.reset_index(drop=True), curves[told.columns].reset_index(drop=True), check_exact=True, check_dtype=False
    )


class Reader(HTMLParser):
    """Exact values of the tables that stand for a CSV, every attribute that could fetch something, and the tags."""

    def __init__(self) -> None:
        super().__init__()
        self.tables: dict[str, list[list[str]]] = {}
        self.links: list[tuple[str, str]] = []
        self.tags: set[str] = set()
        self.rows: list[list[str]] = []

    def handle_starttag(self, tag, attributes) -> None:
        found = dict(attributes)
        self.tags.add(tag)
        self.links += [
            (name, value) for name, value in attributes if name in ("src", "href", "action", "srcset", "data")
        ]
        if tag == "table":
            self.rows = self.tables.setdefault(found.get("data-csv", "read"), [])
            self.rows.clear()
        elif tag == "tr":
            self.rows.append([])
        elif tag == "td":
            self.rows[-1].append(found.get("data-value"))


def test_tables_are_those_of_the_csvs(made: Path):
    reader = Reader()
    reader.feed(made.read_text())
    files = sorted((made.parent / "tables").glob("*.csv"))
    assert {path.stem for path in files} == reader.tables.keys() - {"read"} and len(files) >= 4
    for path in files:
        frame = pd.read_csv(path, dtype=str, keep_default_na=False)
        assert reader.tables[path.stem][1:] == frame.values.tolist()


def test_nothing_is_fetched(made: Path):
    text = made.read_text()
    reader = Reader()
    reader.feed(text)
    assert {name for name, _ in reader.links} == {"href"} and all(value.startswith("#") for _, value in reader.links)
    assert not reader.tags & {"link", "img", "iframe", "object", "embed", "base", "source", "video", "audio"}
    assert set(re.findall(r"https?://[^\"'\s<]+", text)) == {"http://www.w3.org/2000/svg"}  # a name, no address
    assert not re.search(r"@import|url\(|fetch\(|XMLHttpRequest|importScripts|WebSocket|innerHTML", text)
    assert "default-src 'none'" in text


def test_run_details_are_those_of_the_logs(made: Path):
    index, run = index_of_shown(made), made.parent / SHOWN
    log, turns = block(made, f"run-{index}"), read_table(run, "turns").to_pandas()
    kept = log["turns"]
    assert list(kept["at"]) == [str(q) for q in range(len(log["metrics"]["update"]))]  # all of them have room
    steps, fates = kept["at"]["5"]
    rows = np.cumsum(steps)
    key = [tuple(kept[name][i] for name in data.KEYS) for i in rows]
    chosen = {k for k, fate in zip(key, fates, strict=True) if fate == "s"}
    want = turns[turns["selected_at"] == 5]
    assert chosen == set(want[data.KEYS].itertuples(index=False, name=None))
    # a turn's action, score and task go with its key
    i = int(rows[fates.index("s")])
    [row] = turns.set_index(data.KEYS).loc[[tuple(kept[name][i] for name in data.KEYS)]].itertuples()
    assert (kept["actions"][kept["action"][i]], kept["tasks"][kept["task"][i]]) == (row.action, row.task)
    assert kept["disagreement"][i] == pytest.approx(row.disagreement, rel=5e-3)
    told = read_table(run, "transcripts").to_pandas()
    assert sum(len(episode["turns"]) for episode in log["episodes"]) == len(told)
    assert log["episodes"][0]["turns"][0]["tokens"] == list(told["tokens"][0])
    assert log["episodes"][0]["turns"][0]["student"] == pytest.approx(list(told["student_logprobs"][0]), rel=1e-4)


def index_of_shown(made: Path) -> int:
    runs = block(made, "suite")["runs"]
    return next(i for i, run in enumerate(runs) if f"{run['setting']}/{run['env']}/{run['method']}/seed0" == SHOWN)


def test_little_room_leaves_fewer_updates_evenly_spread():
    room = len(data.run_details(RUNS[0], 10**9)) * 2 // 3
    text = data.run_details(RUNS[0], room)
    kept = [int(q) for q in data.unpack(text)["turns"]["at"]]
    assert 0.8 * room < len(text) <= room and 8 < len(kept) < 24
    assert (kept[0], kept[-1]) == (0, 31) and np.ptp(np.diff(kept)) <= 1
    assert data.unpack(data.run_details(RUNS[0], 10))["turns"]["at"] == {}


def test_runs_without_their_logs_are_named(tmp_path: Path):
    assert data.unpack(data.run_details(None, 10**6)) == {"missing": ["the run's folder, in today's schema"]}
    setting, env, method, _ = SHOWN.split("/")
    row = {"schema": SCHEMA_VERSION, "suite": "demo", "setting": setting, "env": env, "method": method, "seed": 0}
    assert data.folder_of(REFERENCE, row) == REFERENCE / SHOWN
    assert data.folder_of(REFERENCE, row | {"schema": 0}) is None and data.folder_of(tmp_path, row) is None
    run = shutil.copytree(REFERENCE / SHOWN, tmp_path / "seed0")
    add_transcripts(run)
    (run / "turns.parquet").unlink()
    (run / "updates.parquet").write_bytes(b"PAR1")
    corrupt = data.unpack(data.run_details(run, 10**6))
    assert "updates.parquet is corrupt" in corrupt["missing"][0] and corrupt["episodes"]
    (run / "updates.parquet").unlink()
    found = data.unpack(data.run_details(run, 10**6))
    assert found["missing"] == ["updates.parquet", "turns.parquet"] and found["episodes"]


def test_texts_are_escaped(tmp_path: Path):
    path = tmp_path / "main.csv"
    path.write_text('setting,"<b>x"\n"<img src=x onerror=alert(1)>","1 & ""2"""\n')
    text = page.table_view(path)
    reader = Reader()
    reader.feed(text)
    assert "img" not in reader.tags and "b" not in reader.tags
    assert reader.tables["main"][1] == ["<img src=x onerror=alert(1)>", '1 & "2"']
    assert data.unpack(data.pack([HOSTILE])) == [HOSTILE] and HOSTILE not in data.pack([HOSTILE])


def test_without_tables_the_stage_to_run_is_named(tmp_path: Path):
    with pytest.raises(RunLogError, match="--stage tables"):
        page.write_page(tmp_path, tmp_path, {})


def test_the_same_data_give_the_same_bytes(made: Path):
    text = data.run_details(made.parent / SHOWN, data.ROOM_OF_ONE)
    assert f'id="run-{index_of_shown(made)}">{text}</script>' in made.read_text()
