"""Hashes follow the content, and unchanged files are read once a process."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from divopd import provenance


def test_a_file_is_read_again_only_when_it_has_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    reads, real = [], hashlib.file_digest
    monkeypatch.setattr(hashlib, "file_digest", lambda *args: (reads.append(1), real(*args))[1])
    path = tmp_path / "weights"
    path.write_bytes(b"one")
    first = [provenance.file_hash(path) for _ in range(3)]
    assert set(first) == {hashlib.sha256(b"one").hexdigest()} and len(reads) == 1
    path.write_bytes(b"other")
    assert provenance.file_hash(path) == hashlib.sha256(b"other").hexdigest()
