"""Files are written whole: beside their place, to the disk, then renamed, so that a kill leaves the previous state."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path


class RunLogError(RuntimeError):
    """A run log cannot be read or written; the message names the file and the mend."""


def atomic_write(path: Path, content: bytes | Callable[[Path], object]) -> None:
    """Write `content`, or what a function writes into the path it is given, to `path`: all of it or nothing.

    Raises RunLogError where the disk is full or refuses.
    """
    beside = path.with_name(f".{path.name}.tmp")
    try:
        if isinstance(content, bytes):
            beside.write_bytes(content)
        else:
            content(beside)
        with beside.open("rb") as handle:
            os.fsync(handle.fileno())
        beside.replace(path)
    except Exception as error:  # torch and safetensors wrap the system's error in classes of their own
        beside.unlink(missing_ok=True)
        reason = error.strerror if isinstance(error, OSError) else str(error).partition("\n")[0]
        raise RunLogError(f"cannot write {path}: {reason}; choose another --out or free the disk") from error
