"""The run log: what a run leaves in results/<suite>/<setting>/<env>/<method>/seed<n>/.

    config.yaml       the resolved cell                 meta.json      schema version, hashes, versions, hardware
    turns.parquet     one row a turn, whoever acted  updates.parquet  one row an optimizer update
    evals.parquet     one row an evaluation episode     timings.json   real seconds by stage
    transcripts.parquet  a few rollouts, token by token (may be missing)
    parity.parquet    sampler against learner, one row a sync (only where they are not one code)
    status.json       written last by the trainer: {"status": "done" | "diverged", ...}
    evaluated.json    written last of all: every checkpoint has its episodes in evals.parquet

Only timings.json depends on real clocks: the other files are the same bytes for the same run. While the run is under
way there is also resume/state.pt, without which a run that has no status.json starts over.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import yaml
from pydantic import ValidationError

from divopd.config import RunConfig
from divopd.files import RunLogError, atomic_write, leftovers, only_writer
from divopd.provenance import identity, logged, run_meta
from divopd.schema import OPTIONAL, SCHEMA_VERSION, SCHEMAS, TABLES, turn_row
from divopd.strict_yaml import YamlError, read_yaml_file

__all__ = ["SCHEMA_VERSION", "SCHEMAS", "RunLog", "RunLogError", "turn_row"]

STATUSES = ("done", "diverged")
STAGES = ("startup", "rollout", "teacher", "learner", "evaluation", "environment", "clock", "teacher_generation")
# in the order in which `clear` removes them: a run that is half removed is neither over nor resumable, and its
# meta.json still says whose it was
_OWN = (
    "status.json",
    "resume",
    "evaluated.json",
    "checkpoints",
    *(f"{name}.parquet" for name in TABLES),
    "timings.json",
    "config.yaml",
    "meta.json",
)
START_OVER = "pass --replace or choose another --out"


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    atomic_write(path, (json.dumps(content, indent=2, sort_keys=True) + "\n").encode())


def parquet_bytes(table: pa.Table) -> bytes:
    """A log's table as a Parquet file: without loss, in two thirds of the bytes that pyarrow's defaults take.

    Counters grow by small steps, and scores share their exponents. A log is read whole, so statistics would go unused;
    the types are Parquet's own, so Arrow's copy of the schema would be too, and only its metadata is kept.
    """
    encoding = {pa.int64(): "DELTA_BINARY_PACKED", pa.float64(): "BYTE_STREAM_SPLIT"}
    numbers = {field.name: encoding[field.type] for field in table.schema if field.type in encoding}
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(
        sink, table.schema, compression="zstd", compression_level=9, write_statistics=False, store_schema=False,
        use_dictionary=[name for name in table.column_names if name not in numbers], column_encoding=numbers,
    ) as writer:  # fmt: skip
        writer.write_table(table, row_group_size=1 << 20)
        writer.add_key_value_metadata(table.schema.metadata or {})
    return bytes(sink.getvalue().to_pybytes())


class RunLog:
    """Writer of one run. Rows are kept in memory and each table is rewritten whole by `flush`."""

    def __init__(self, run_dir: Path, tables: dict[str, pa.Table], seconds: dict[str, float]) -> None:
        self.run_dir = run_dir
        self._tables = tables
        self._new: dict[str, list[Mapping[str, Any]]] = {name: [] for name in TABLES}
        self._dirty = {name: False for name in TABLES}
        self._seconds = seconds

    @classmethod
    def open(cls, run_dir: str | Path, config: RunConfig) -> RunLog:
        """Start a run's log, or take up the one that is there. Raises RunLogError if that belongs to another run."""
        folder = Path(run_dir)
        require_same(folder, config)
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunLogError(f"cannot create {folder}: {error.strerror}; choose another --out") from error
        if not ((folder / "meta.json").exists() and (folder / "config.yaml").exists()):
            text = yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True)
            atomic_write(folder / "config.yaml", text.encode())
            _write_json(folder / "meta.json", {"schema": SCHEMA_VERSION, **run_meta(config)})
        tables = {
            name: read_table(folder, name) if (folder / f"{name}.parquet").exists() else schema.empty_table()
            for name, schema in TABLES.items()
        }
        seconds = read_json(folder, "timings.json") if (folder / "timings.json").exists() else {}
        return cls(folder, tables, {stage: float(seconds.get(stage, 0.0)) for stage in STAGES})

    def add(self, table: str, rows: Iterable[Mapping[str, Any]]) -> None:
        """Append rows to one of the tables ("turns", ...). A row with a missing or unknown column is a KeyError."""
        names = set(TABLES[table].names)
        for row in rows:
            if row.keys() != names:
                raise KeyError(f"{table} row: wrong columns {sorted(row.keys() ^ names)}")
            self._new[table].append(row)
            self._dirty[table] = True

    def counts(self) -> dict[str, int]:
        """Rows so far by table: what a resume point keeps, to be handed to `truncate`."""
        return {name: self._tables[name].num_rows + len(self._new[name]) for name in TABLES}

    def truncate(self, counts: Mapping[str, int]) -> None:
        """Forget the rows written after a resume point. Raises RunLogError if the log holds fewer than it says."""
        for name, keep in counts.items():
            table = self._merged(name)
            if table.num_rows < keep:
                lost = f"{self.run_dir / name}.parquet lost rows ({table.num_rows} of {keep})"
                raise RunLogError(f"{lost}; delete {self.run_dir / 'resume'} and run this cell again from its start")
            if table.num_rows > keep:
                self._tables[name], self._dirty[name] = table.slice(0, keep), True

    def table(self, name: str) -> pa.Table:
        """All rows so far."""
        return self._merged(name)

    @contextmanager
    def timed(self, stage: str) -> Iterator[None]:
        """Add the real seconds of a block to a stage of timings.json."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.add_seconds(stage, time.perf_counter() - start)

    def add_seconds(self, stage: str, seconds: float) -> None:
        if stage not in STAGES:
            raise KeyError(f"unknown stage {stage!r}; one of {STAGES}")
        self._seconds[stage] += seconds

    def flush(self) -> None:
        """Write what changed."""
        for name in TABLES:
            if self._dirty[name] or (name in SCHEMAS and not (self.run_dir / f"{name}.parquet").exists()):
                atomic_write(self.run_dir / f"{name}.parquet", parquet_bytes(self._merged(name)))
                self._dirty[name] = False
        _write_json(self.run_dir / "timings.json", {stage: round(value, 6) for stage, value in self._seconds.items()})

    def finish(self, status: str, **details: Any) -> None:
        """Flush, then write status.json: the run is over."""
        if status not in STATUSES:
            raise ValueError(f"unknown status {status!r}; one of {STATUSES}")
        self.flush()
        _write_json(self.run_dir / "status.json", {"schema": SCHEMA_VERSION, "status": status, **details})

    def _merged(self, name: str) -> pa.Table:
        if self._new[name]:
            fresh = pa.Table.from_pylist(self._new[name], schema=TABLES[name])
            # one chunk, however often it was flushed: page boundaries, and so bytes, must not depend on that
            self._tables[name] = pa.concat_tables([self._tables[name], fresh]).combine_chunks()
            self._new[name] = []
        return self._tables[name]


def mismatch(run_dir: Path, config: RunConfig) -> str | None:
    """Why the log in this folder is not a log of this run ("rule_file differs"); None if it is, or if there is none."""
    if not (run_dir / "meta.json").exists():
        return None
    meta = _json(run_dir, "meta.json")
    if meta.get("schema") != SCHEMA_VERSION:
        return "schema differs"
    found, wanted = meta.get("identity", {}), identity(config)
    changed = [key for key, value in wanted.items() if found.get(key) != value]
    return f"{', '.join(changed)} differs" if changed else None


def require_same(run_dir: Path, config: RunConfig, mend: str = START_OVER) -> None:
    """Raise RunLogError where the folder holds another run; `mend` is what its reader can do."""
    if stale := mismatch(run_dir, config):
        raise RunLogError(f"{run_dir} holds another run ({stale}); {mend}")


def clear(run_dir: Path) -> None:
    """Remove a run's own files and folders, and nothing else. Killed within, it leaves a run that starts over."""
    for name in _OWN:
        remove(run_dir / name)


@contextmanager
def writing(run_dir: Path, config: RunConfig | None = None, replace: bool = False) -> Iterator[None]:
    """Be the one process that changes this run, as `only_writer`. Another run than `config`'s is replaced if it may be,
    else RunLogError is raised; what killed processes left half written is removed."""
    if config is not None and not replace:
        require_same(run_dir, config)  # before the folder is touched
    with only_writer(run_dir):
        if config is not None:
            if replace and mismatch(run_dir, config):
                clear(run_dir)
            require_same(run_dir, config)
        for path in leftovers(run_dir):
            remove(path)
        yield


def remove(path: Path) -> None:
    """Remove a file or folder, if it is there."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def mark_evaluated(run_dir: Path) -> None:
    """Write evaluated.json: which versions have their episodes in the log."""
    versions = sorted(set(read_table(run_dir, "evals").column("version").to_pylist()))
    _write_json(run_dir / "evaluated.json", {"schema": SCHEMA_VERSION, "versions": versions})


def lost_evaluations(versions: Collection[int], updates: int, status: str | None) -> list[int]:
    """Which of the evaluations that every run has are not among `versions`: the untrained student's and, of a run that
    is done, the last version's.
    """
    wanted = {0, updates} if status == "done" else {0}
    return sorted(wanted - set(versions))


def say_lost(run_dir: Path, lost: Sequence[int]) -> str:
    """The mend: checkpoints go once they are evaluated, so lost episodes cannot be played again."""
    return (
        f"has no evaluation of version {' and '.join(map(str, lost))}, whose checkpoint is gone; delete {run_dir} and "
        "run this cell again"
    )


def read_json(run_dir: Path, name: str) -> dict[str, Any]:
    """meta.json, timings.json or status.json. Raises RunLogError if missing, broken or of another schema version."""
    content, found = _json(run_dir, name), run_dir / name
    if name != "timings.json" and content.get("schema") != SCHEMA_VERSION:
        other = f"{found} has schema {content.get('schema')}, this code reads {SCHEMA_VERSION}"
        raise RunLogError(f"{other}; delete {run_dir} and run this cell again")
    return content


def _json(run_dir: Path, name: str) -> dict[str, Any]:
    path = run_dir / name
    try:
        content = json.loads(path.read_text())
    except FileNotFoundError as error:
        raise RunLogError(f"{path} is missing; run `divopd train` for this cell again") from error
    except (OSError, ValueError) as error:
        raise RunLogError(f"{path} is corrupt; delete {run_dir} and run this cell again") from error
    if not isinstance(content, dict):
        raise RunLogError(f"{path} is corrupt; delete {run_dir} and run this cell again")
    return content


def read_config(run_dir: Path) -> RunConfig:
    """The resolved cell of a run."""
    path = run_dir / "config.yaml"
    try:
        return RunConfig.model_validate(logged(read_yaml_file(path)))
    except FileNotFoundError as error:
        raise RunLogError(f"{path} is missing; run `divopd train` for this cell again") from error
    except (OSError, YamlError, ValidationError) as error:
        raise RunLogError(
            f"{path} is corrupt or of another version; delete {run_dir} and run this cell again"
        ) from error


def read_table(run_dir: Path, name: str) -> pa.Table:
    """One of the tables as written, columns as in TABLES. Raises RunLogError as `read_json` does."""
    path = run_dir / f"{name}.parquet"
    try:
        table = pq.read_table(path)
    except FileNotFoundError as error:
        raise RunLogError(f"{path} is missing; run `divopd train` for this cell again") from error
    except (OSError, pa.ArrowInvalid) as error:
        raise RunLogError(f"{path} is corrupt; delete {run_dir} and run this cell again") from error
    version = (table.schema.metadata or {}).get(b"divopd_schema", b"none").decode()
    if version != str(SCHEMA_VERSION) or not table.schema.equals(TABLES[name]):
        other = f"{path} has schema {version}, this code reads {SCHEMA_VERSION}"
        raise RunLogError(f"{other}; delete {run_dir} and run this cell again")
    return table


def validate(run_dir: Path) -> None:
    """Read every file of a finished run; the first that cannot be read raises RunLogError."""
    read_config(run_dir)
    for name in ("meta.json", "timings.json", "status.json"):
        read_json(run_dir, name)
    for table in TABLES:
        if table not in OPTIONAL or (run_dir / f"{table}.parquet").exists():
            read_table(run_dir, table)
