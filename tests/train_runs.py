"""What tests of whole runs share: the bytes that must be the same again, and a trainer that dies at a named place."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from divopd.config import RunConfig
from divopd.train import train

LOGS = ("config.yaml", "meta.json", "turns.parquet", "updates.parquet", "transcripts.parquet", "status.json")


def quiet(*_: Any) -> None:
    pass


def logs(folder: Path, names: Iterable[str] = LOGS) -> dict[str, bytes | str]:
    """Bytes by file; of meta.json all but the state of git, which a commit between two runs changes."""
    found: dict[str, bytes | str] = {name: (folder / name).read_bytes() for name in names}
    meta = json.loads(found["meta.json"])
    del meta["git"]
    return found | {"meta.json": json.dumps(meta, sort_keys=True)}


class Killed(BaseException):
    """Not an Exception: nothing may catch it, as nothing catches SIGKILL."""


def train_killed(cell: RunConfig, folder: Path, owner: Any, where: str, call: int) -> None:
    """Train until the `call`-th call of `owner.where`, which kills."""
    real, calls = getattr(owner, where), 0

    def deadly(*args: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == call:
            raise Killed
        return real(*args)

    with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
        patch.setattr(owner, where, deadly)
        train(cell, folder, quiet)
