"""Places that libraries write to: a home folder that cannot be used, a TMPDIR too long for sockets."""

from __future__ import annotations

import getpass
import os
import pwd
import subprocess
import sys
from pathlib import Path

import pytest

from divopd import homes
from divopd.doctor import SetupError
from divopd.pipeline.ray.own_cluster import SOCKET_BYTES, session_folder
from divopd.provenance import ROOT

XDG = ("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "HF_HOME", "GIT_CONFIG_GLOBAL")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, with an environment that the test may change."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", os.environ.get("HOME", "/"))  # put back afterwards
    for name in (*XDG, "TMPDIR", "RAY_TMPDIR"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    return tmp_path


def test_a_home_that_works_is_left_alone(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HOME", str(folder / "home"))  # can be made
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    homes.settle()
    assert (os.environ["HOME"], os.environ["XDG_CACHE_HOME"]) == (str(folder / "home"), str(folder / "cache"))
    assert not (folder / "home").exists() and not (folder / ".cache").exists()


@pytest.mark.parametrize("home", ["/dev/null/x", "/proc/none", "file", "relative"])
def test_a_home_that_cannot_be_used_gets_a_stand_in(folder: Path, monkeypatch: pytest.MonkeyPatch, home: str):
    (folder / "file").touch()
    monkeypatch.setenv("HOME", str(folder / home) if home == "file" else home)
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null/cache")
    homes.settle()
    assert os.environ["HOME"] == str(folder / ".cache" / "home") and Path(os.environ["HOME"]).is_dir()
    assert "XDG_CACHE_HOME" not in os.environ  # its default lies in HOME


def test_what_a_home_without_a_usable_cache_holds_is_still_read(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HOME", str(folder / "home"))
    (folder / "home").mkdir()
    (folder / "home" / ".gitconfig").touch()
    (folder / "home" / ".cache").symlink_to("/dev/null/none")
    homes.settle()
    assert os.environ["HOME"] == str(folder / ".cache" / "home")
    assert os.environ["GIT_CONFIG_GLOBAL"] == str(folder / "home" / ".gitconfig")


def test_a_user_without_an_entry_gets_a_name(folder: Path, monkeypatch: pytest.MonkeyPatch):
    def nobody(uid: int) -> None:
        raise KeyError(f"getpwuid(): uid not found: {uid}")

    monkeypatch.setattr(pwd, "getpwuid", nobody)
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.delenv("HOME")
    homes.settle()
    assert getpass.getuser() == f"uid{os.getuid()}" and Path(os.environ["HOME"]).is_dir()


@pytest.mark.slow
def test_an_environment_plays_without_a_home(folder: Path):
    """ALFWorld's packages make a folder in it when they are imported."""
    code = (
        "from divopd import homes; homes.settle()\n"
        "from divopd.config import EnvConfig\nfrom divopd.envs.registry import make_envs\n"
        "print(make_envs(EnvConfig(cache_dir='games'), 1)[0].reset('gen/eval/0'))"
    )
    env = os.environ | {"HOME": "/dev/null/x", "PYTHONPATH": str(ROOT)}
    said = subprocess.run([sys.executable, "-c", code], cwd=folder, env=env, capture_output=True, text=True)
    assert said.returncode == 0, said.stderr


def test_sockets_of_ray_fit(folder: Path, monkeypatch: pytest.MonkeyPatch):
    assert session_folder() == {}
    monkeypatch.setenv("TMPDIR", "/" + 38 * "x")
    assert session_folder() == {}
    monkeypatch.setenv("TMPDIR", "/" + 39 * "x")
    short = session_folder()["_temp_dir"]
    assert len(short) < 20 and os.access(Path(short).parent, os.W_OK)
    monkeypatch.setenv("RAY_TMPDIR", "/" + 39 * "x")
    with pytest.raises(SetupError, match="RAY_TMPDIR is too long for Ray's sockets: .* at most 39 bytes"):
        session_folder()
    assert SOCKET_BYTES == 107


@pytest.mark.slow
@pytest.mark.parametrize("place", ["long", "/dev/null/x"])
def test_a_cluster_comes_up_or_says_why_not(folder: Path, place: str):
    tmp = folder / ("x" * 80) if place == "long" else Path(place)
    if place == "long":
        tmp.mkdir()
    code = (
        "from divopd.pipeline.ray.own_cluster import start\nimport ray\n"
        "start({'num_cpus': 1, 'log_to_driver': False, 'logging_level': 'ERROR'}, 120.0)\n"
        "print(ray.is_initialized())"
    )
    env = os.environ | {"TMPDIR": str(tmp), "PYTHONPATH": str(ROOT)}
    run = subprocess.run([sys.executable, "-c", code], cwd=folder, env=env, capture_output=True, text=True, timeout=300)
    if place == "long":
        assert run.stdout.strip() == "True", run.stderr[-2000:]
    else:
        assert run.stderr.splitlines()[-1].endswith(
            "set RAY_TMPDIR, or TMPDIR, to a folder on this machine that can be written"
        )
