"""Files are written whole: beside their place, to the disk, then renamed, so that a kill leaves the previous state.

A run's folder has one writer at a time.
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import uuid
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

LOCK = ".lock"
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EINVAL)


class RunLogError(RuntimeError):
    """A run log cannot be read or written; the message names the file and the mend."""


def atomic_write(path: Path, content: bytes | Callable[[Path], object]) -> None:
    """Write `content`, or what a function writes into the path it is given, to `path`: all of it or nothing.

    Of several writers at once the last one's file stays. A writer that is killed leaves `.<name>.<random>.tmp`, which
    nothing reads. Raises RunLogError where the disk is full or refuses.
    """
    beside = path.with_name(f".{path.name}.{uuid.uuid4().hex[:12]}.tmp")
    try:
        if isinstance(content, bytes):
            beside.write_bytes(content)
        else:
            content(beside)
        with beside.open("rb") as handle:
            os.fsync(handle.fileno())
        beside.replace(path)
        _sync_folder(path.parent)
    except Exception as error:  # torch and safetensors wrap the system's error in classes of their own
        beside.unlink(missing_ok=True)
        reason = error.strerror if isinstance(error, OSError) else str(error).partition("\n")[0]
        raise RunLogError(f"cannot write {path}: {reason}; choose another --out or free the disk") from error


def _sync_folder(folder: Path) -> None:
    """The renaming too: what is written or deleted afterwards may count on it. Some file systems refuse."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(handle)
    except OSError:
        pass
    finally:
        os.close(handle)


def leftovers(folder: Path) -> list[Path]:
    """What killed writers left in a folder and below; where a writer is at work, its file too."""
    return sorted(folder.rglob(".*.tmp"))


@contextmanager
def only_writer(folder: Path) -> Iterator[None]:
    """Hold a run's folder, which is made if need be, for this process. Raises RunLogError where another one has it.

    The lock is the kernel's (flock) on `.lock`: it ends with its process, however that ends, so that what a killed one
    leaves is no obstacle. On NFS Linux hands it to the server, so that it holds between machines; on a file system
    without locks a warning says that nobody is kept out. The file goes when the lock does, and so does an empty folder.
    """
    path = folder / LOCK
    try:
        handle = _locked(path)
    except OSError as error:
        raise RunLogError(f"cannot write {folder}: {error.strerror}; choose another --out") from error
    if handle is None:
        raise RunLogError(f"{folder} is in use by {_holder(path)}: wait for it, or end it, and try again")
    try:
        os.ftruncate(handle, 0)
        os.write(handle, f"process {os.getpid()} on {socket.gethostname()}".encode())
        yield
    finally:
        path.unlink(missing_ok=True)  # while it is held: see _locked
        with suppress(OSError):
            folder.rmdir()  # nothing came of it
        os.close(handle)


def _locked(path: Path) -> int | None:
    """A handle of the locked file at `path`; None where another process has it."""
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        except FileNotFoundError:  # another process had the folder, left it empty and removed it
            continue
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)
            return None
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                os.close(handle)
                raise
            why = f"{path.parent}: this file system has no locks ({error.strerror}): start no second process there"
            warnings.warn(why, stacklevel=4)
            return handle
        try:
            if os.path.samestat(os.fstat(handle), os.stat(path)):
                return handle
        except FileNotFoundError:
            pass
        os.close(handle)  # its holder removed it between our two calls: this is a file without a name


def _holder(path: Path) -> str:
    try:
        return path.read_text() or "another process"
    except OSError:
        return "another process"
