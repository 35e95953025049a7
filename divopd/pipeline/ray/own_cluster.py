"""A Ray cluster of this machine alone, started for one run."""

from __future__ import annotations

import itertools
import os
import time
from typing import Any

from divopd.doctor import SetupError

# the longest name that Ray gives a socket, with the largest process number
SOCKET, SOCKET_BYTES = "ray/session_2026-01-01_00-00-00_000000_4194304/sockets/plasma_store", 107


def start(quiet: dict[str, Any], patience: float) -> None:
    """A cluster of this machine alone. Ray gives it 30 seconds to come up, and leaves what does not make it behind: it
    is started again, once in any case, and where it is but slow for as long as `patience` lasts.
    """
    import psutil
    import ray

    os.environ.setdefault("RAY_worker_niceness", "0")  # Ray's 15 is for workers beside which somebody works
    quiet = quiet | session_folder()
    before = set(psutil.Process().children(recursive=True))
    begin = time.monotonic()
    for tries in itertools.count(1):
        try:
            ray.init(address="local", include_dashboard=False, **quiet)
            return
        except Exception as error:  # Ray raises plain ones
            for process in set(psutil.Process().children(recursive=True)) - before:
                process.kill()
            busy = "timed out" in str(error) and time.monotonic() - begin < patience
            refused = isinstance(error, OSError) and not isinstance(error, TimeoutError | ConnectionError)
            if refused or tries > 1 and not busy:
                said = " ".join(str(error).split())[:200]
                mend = "the machine may be too busy, or its memory or disk full; `ray start --head` shows more"
                if refused:
                    mend = "set RAY_TMPDIR, or TMPDIR, to a folder on this machine that can be written"
                raise SetupError(f"no Ray cluster came up on this machine ({said}): {mend}") from error


def session_folder() -> dict[str, str]:
    """Where Ray keeps its sessions, as an argument of `ray.init`; nothing where its own choice will do.

    A Unix socket's path has at most 107 bytes, of which Ray adds SOCKET to the folder that TMPDIR names.
    Raises `SetupError` where there is no shorter folder, or RAY_TMPDIR, which is for Ray alone, is too long.
    """
    named = next((name for name in ("RAY_TMPDIR", "TMPDIR") if name in os.environ), None)
    if named is None or len(os.fsencode(os.path.join(os.environ[named], SOCKET))) <= SOCKET_BYTES:
        return {}
    short = next((folder for folder in ("/tmp", "/var/tmp", "/dev/shm") if os.access(folder, os.W_OK | os.X_OK)), None)
    if named == "RAY_TMPDIR" or short is None:
        most = SOCKET_BYTES - len(SOCKET) - 1
        raise SetupError(f"{named} is too long for Ray's sockets: set RAY_TMPDIR to a folder of at most {most} bytes")
    return {"_temp_dir": f"{short}/ray"}
