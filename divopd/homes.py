"""Libraries keep caches in the home folder; where it is missing or read-only they get another one."""

from __future__ import annotations

import getpass
import os
import tempfile
from pathlib import Path

# what a home that can be read still gives: variable -> where it is by default
READ = {"HF_HOME": ".cache/huggingface", "GIT_CONFIG_GLOBAL": ".gitconfig"}


def settle() -> None:
    """Set HOME where that folder cannot be used, and USER where nothing says who runs this, for this process and its
    children: Snakemake, ALFWorld, matplotlib and others stop or warn without them.
    """
    for variable in ("XDG_CACHE_HOME", "XDG_CONFIG_HOME"):
        if os.environ.get(variable) and not _writable(Path(os.environ[variable])):
            del os.environ[variable]
    home = _home()
    if home is None or not (_writable(home) and _writable(home / ".cache")):
        for variable, name in READ.items():
            if home is not None and os.path.exists(home / name):
                os.environ.setdefault(variable, str(home / name))
        place = _instead()
        place.mkdir(parents=True, exist_ok=True)
        os.environ["HOME"] = str(place)
    try:
        getpass.getuser()
    except (KeyError, OSError):  # a container's user without an entry in passwd
        os.environ["USER"] = f"uid{os.getuid()}"


def _home() -> Path | None:
    try:
        home = Path.home()
    except RuntimeError:  # no HOME, and no entry in passwd
        return None
    return home if home.is_absolute() else None


def _writable(folder: Path) -> bool:
    """It is there and takes files, or can be made. Tried: what permissions say is not all, as with quotas or NFS."""
    while not os.path.lexists(folder) and folder != folder.parent:
        folder = folder.parent
    try:
        with tempfile.TemporaryDirectory(prefix=".divopd-", dir=folder):
            return True
    except OSError:
        return False


def _instead() -> Path:
    """Beside the compiled games, or where the working folder is read-only too, among temporary files."""
    here = Path.cwd() / ".cache"
    return here / "home" if _writable(here) else Path(tempfile.gettempdir()) / f"divopd-{os.getuid()}"
