"""How the suite is installed: locks that fit pyproject.toml, environments made from nothing, checkouts of any kind."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
LOCKS = sorted(path for path in (ROOT / "requirements").glob("*-py3*.txt"))


def load(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(f"workflow_{name}", ROOT / "workflow" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


install, lock = load("install"), load("lock")


def test_there_is_a_lock_for_each_python_and_kind():
    assert {path.name for path in LOCKS} == {f"{kind}-py3{m}.txt" for kind in lock.KINDS for m in (11, 12)}


@pytest.mark.parametrize("path", LOCKS, ids=lambda p: p.stem)
def test_locks_hold_what_pyproject_asks_for(path: Path):
    kind, minor = re.fullmatch(r"(.+)-py3(\d+)", path.stem).groups()
    pins = install.pins(path)
    extras = ["dev"] if kind == "core" else ["dev", kind]
    wanted = PROJECT["dependencies"] + [pin for extra in extras for pin in PROJECT["optional-dependencies"][extra]]
    for requirement in map(Requirement, wanted):
        version = pins[canonicalize_name(requirement.name)]
        assert requirement.specifier.contains(version), f"{requirement} but {version}: run `make lock KEEP=1`"
    assert all(re.fullmatch(r"[\w.]+", version) for version in pins.values())
    assert (kind == "vllm") == any(lock.CUDA.match(name) for name in pins)  # else torch's own build decides


def test_what_builds_and_the_engines_are_exact_too():
    assert {"pip", "setuptools", "cmake"} <= set(install.pins(install.BUILD))
    assert {"alfworld": "0.4.2", "textworld": "1.7.0", "fast-downward-textworld": "20.6.4"}.items() <= install.pins(
        install.ENGINES
    ).items()
    torch = next(pin for pin in PROJECT["dependencies"] if pin.startswith("torch"))
    assert torch == "torch>=2.8,<2.14" and "+" not in torch


@pytest.mark.skipif(Path(sys.prefix).name != ".venv", reason="not the environment that `make` installs")
def test_this_environment_is_the_locked_one():
    for name, version in (install.pins(install.lock_file("core")) | install.pins(install.ENGINES)).items():
        assert metadata.version(name).split("+")[0] == version, name


def test_own_pip_settings_choose_sources_but_no_versions(monkeypatch: pytest.MonkeyPatch):
    path = install.lock_file("core")
    for key, value in {
        "PIP_CONSTRAINT": "old.txt",
        "PIP_TARGET": "x",
        "PIP_INDEX_URL": "here",
        "MAKEFLAGS": "-j",
    }.items():
        monkeypatch.setenv(key, value)
    env = install.environ(path)
    assert env["PIP_CONSTRAINT"] == path.as_uri() and env["PIP_INDEX_URL"] == "here"
    assert not {"PIP_TARGET", "MAKEFLAGS"} & set(env)


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What an installation into tmp_path/venv would run, in order."""
    ran: list[str] = []

    def run(self: Any, command: list[str], env: dict[str, str]) -> None:
        ran.append(" ".join(command))
        if command[1:3] == ["-m", "venv"]:
            (Path(command[3]) / "bin").mkdir()
            (Path(command[3]) / "bin" / "python").symlink_to(command[0])
        if "wheel" in command:
            folder = Path(command[command.index("--wheel-dir") + 1])
            folder.mkdir()
            for pin in command[command.index("--wheel-dir") + 2 :]:
                (folder / f"{pin.replace('-', '_').replace('==', '-')}-py3-none-any.whl").touch()

    monkeypatch.setattr(install.Steps, "run", run)
    monkeypatch.setattr(install.Installer, "_check_torch", lambda self: None)
    monkeypatch.setattr(install.Installer, "_verify", lambda self: None)
    monkeypatch.setattr(install, "WHEELS", tmp_path / "wheels")
    return ran


def test_nothing_is_built_beside_the_editable_hook_and_nothing_twice(tmp_path: Path, commands: list[str]):
    install.Installer(tmp_path / "venv", "core", latest=False).install()
    built = next(i for i, command in enumerate(commands) if "pip wheel" in command)
    assert "--build-constraint" in commands[built] and "fast-downward-textworld==20.6.4" in commands[built]
    assert "--editable" in commands[-1] and "--no-build-isolation" in commands[-1]
    assert all("--editable" not in command for command in commands[:-1])
    first = len(commands)
    install.Installer(tmp_path / "second", "core", latest=False).install()
    assert not any("pip wheel" in command for command in commands[first:])  # kept wheels serve it
    assert any(str(tmp_path / "wheels") in command for command in commands[first:])


def test_an_environment_is_complete_or_made_anew(
    tmp_path: Path, commands: list[str], capsys: pytest.CaptureFixture[str]
):
    venv = tmp_path / "venv"
    venv.mkdir()
    (venv / "install.log").touch()  # an interrupted installation's
    install.Installer(venv, "core", latest=False).install()
    assert not (venv / "install.log").exists() and "not complete, made anew" in capsys.readouterr().out
    commands.clear()
    install.Installer(venv, "core", latest=False).install()
    assert commands == []
    (venv / "bin" / "python").unlink()  # its Python went
    install.Installer(venv, "core", latest=False).install()
    assert commands
    commands.clear()
    (venv / ".installed").write_text("of another lock")
    install.Installer(venv, "core", latest=False).install()
    assert commands and "out of date" in capsys.readouterr().out


def test_a_folder_that_is_no_environment_is_left_alone(tmp_path: Path, commands: list[str]):
    (tmp_path / "mine").touch()
    with pytest.raises(install.InstallError, match="holds other things than an environment"):
        install.Installer(tmp_path, "core", latest=False).install()
    assert commands == [] and (tmp_path / "mine").exists()


def test_the_active_environment_can_be_made_anew(tmp_path: Path):
    """Its python is removed under the installation that it runs; the next environment is of the one behind it."""
    venv, script = tmp_path / "venv", tmp_path / "script.py"
    (venv / "bin").mkdir(parents=True)
    (venv / "bin" / "python").symlink_to(sys._base_executable)
    (venv / "pyvenv.cfg").write_text(f"home = {Path(sys._base_executable).parent}\n")
    script.write_text(
        f"import sys; sys.path.insert(0, {str(ROOT / 'workflow')!r}); import install; from pathlib import Path\n"
        "def run(self, command, env):\n    print(command[0], Path(command[0]).exists()); sys.exit()\n"
        f"install.Steps.run = run; install.Installer(Path({str(venv)!r}), 'core', False).install()\n"
    )
    done = subprocess.run([venv / "bin" / "python", script], capture_output=True, text=True)
    assert done.stdout.split()[-1] == "True" and str(venv) not in done.stdout.split("...")[-1], done


def test_a_constraint_in_a_pip_conf_is_overruled(tmp_path: Path):
    (tmp_path / "old.txt").write_text("pip<1\n")
    (tmp_path / "pip.conf").write_text(f"[global]\nconstraint = {tmp_path / 'old.txt'}\n")
    pip = [sys.executable, "-m", "pip", "install", "--dry-run", "--no-index", f"pip=={metadata.version('pip')}"]
    env = install.environ(LOCKS[0]) | {"PIP_CONFIG_FILE": str(tmp_path / "pip.conf")}
    for constraint, code in (({"PIP_CONSTRAINT": ""}, 1), (install.NO_CONSTRAINT, 0)):
        assert subprocess.run(pip, env=env | constraint, capture_output=True).returncode == code
    assert install.Installer(tmp_path, "core", latest=True).env["PIP_CONSTRAINT"] == os.devnull


def test_an_environment_that_was_moved_is_made_anew(tmp_path: Path, commands: list[str]):
    """Its scripts, and the project that it holds, would be the old place's."""
    for name in ("Makefile", "pyproject.toml", "requirements", "workflow"):
        (tmp_path / name).symlink_to(ROOT / name)

    def would_install() -> bool:
        make = ["make", "--dry-run", "--directory", str(tmp_path), "install"]
        return "workflow/install.py" in subprocess.run(make, capture_output=True, text=True, check=True).stdout

    assert would_install()
    install.Installer(tmp_path / ".venv", "core", latest=False).install()
    stamp = tmp_path / ".venv" / ".installed"
    assert would_install()  # made for ROOT, and now in tmp_path
    stamp.write_text(stamp.read_text().replace(str(ROOT), str(tmp_path.resolve())))
    assert not would_install()
    (tmp_path / ".venv" / "bin" / "python").unlink()
    assert would_install()


def test_a_folder_that_cannot_be_written_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: Any):
    monkeypatch.setattr(sys, "argv", ["install.py", "/proc/none", "core"])
    assert install.main() == 1 and re.fullmatch(r"error: \[Errno \d+\] .*'/proc/none'\n", capsys.readouterr().err)


def test_wheels_survive_a_cache_that_cannot_be_written(tmp_path: Path, commands: list[str]):
    (tmp_path / "wheels").write_text("a file where the folder should be")
    install.Installer(tmp_path / "venv", "core", latest=False).install()
    assert any(f"--find-links {tmp_path / 'venv' / 'wheels'}" in command for command in commands)


def test_a_failing_step_is_one_line(tmp_path: Path):
    steps = install.Steps(tmp_path / "log", 1)
    with pytest.raises(install.InstallError, match=r"^ERROR: no such thing \(all of it: .*log"):
        steps.run(
            [sys.executable, "-c", "print('a'); print('ERROR: no such thing'); exit(3)"], install.environ(LOCKS[0])
        )


# torch -----------------------------------------------------------------------------------------------------------


def check_torch(folder: Path, serves: list[str] | None, **env: str) -> subprocess.CompletedProcess[str]:
    """Run the check with a pip that would install `serves` (None: that fails), and no nvidia-smi on PATH."""
    (folder / "pip").mkdir(exist_ok=True)
    (folder / "pip" / "__init__.py").touch()
    report = json.dumps({"install": [{"metadata": {"name": name}} for name in serves or []]})
    script = "import sys\nassert sys.argv[-1] == 'torch==2.13.0' and '--dry-run' in sys.argv, sys.argv\n"
    script += "sys.exit('no network')\n" if serves is None else f"print({report!r})\n"
    (folder / "pip" / "__main__.py").write_text(script)
    command = [sys.executable, str(ROOT / "workflow" / "check_torch.py"), "torch==2.13.0"]
    where = {"PATH": str(folder), "PYTHONPATH": str(folder)}
    return subprocess.run(command, capture_output=True, text=True, env=where | env)


CUDA_BUILD = ["torch", "nvidia-cublas-cu12", "triton", "numpy"]


@pytest.mark.skipif(Path("/proc/driver/nvidia").exists(), reason="a GPU machine is never stopped")
def test_no_cuda_download_without_a_gpu(tmp_path: Path):
    run = check_torch(tmp_path, CUDA_BUILD, TARGET="laptop")
    assert run.returncode == 1 and len(run.stderr.splitlines()) == 1
    assert "make laptop TORCH_INDEX=" in run.stderr and "TORCH_CUDA=1" in run.stderr


def test_torch_is_let_through_where_it_does_no_harm(tmp_path: Path):
    for serves in (["torch", "numpy"], [], None):  # the CPU wheel, all there already, pip that fails
        run = check_torch(tmp_path, serves)
        assert (run.returncode, run.stderr) == (0, "")
    for env in ({"TORCH_INDEX": "somewhere"}, {"TORCH_CUDA": "1"}):
        assert check_torch(tmp_path, CUDA_BUILD, **env).returncode == 0
    nvidia = tmp_path / "nvidia-smi"
    nvidia.write_text("#!/bin/sh\n")
    nvidia.chmod(0o755)
    assert check_torch(tmp_path, CUDA_BUILD).returncode == 0


# checkouts -------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="no git checkout")
def test_a_clone_with_autocrlf_keeps_line_feeds(tmp_path: Path):
    """Scripts with CRLF do not run, and files with it do not have the hash that is on record."""
    clone = tmp_path / "clone"
    command = ["git", "-c", "core.autocrlf=true", "clone", "--quiet", "--depth", "1", ROOT.as_uri(), str(clone)]
    subprocess.run(command, check=True)
    listed = subprocess.run(["git", "ls-files", "--eol"], cwd=clone, capture_output=True, text=True, check=True)
    assert [line for line in listed.stdout.splitlines() if "w/crlf" in line or "w/mixed" in line] == []
