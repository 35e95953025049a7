"""Environments in processes of their own, which may die: their episodes are then played again to where they were.

An environment gives the same texts for the same task and actions in every process (envs/base.py), so a new process that
repeats an episode's actions stands where the dead one stood, and the policy never learns of it.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Sequence
from multiprocessing.connection import Connection, Pipe
from typing import Any

from divopd.config import EnvConfig
from divopd.envs.base import EnvError, Observation, Step, TextEnv
from divopd.envs.registry import make_envs

TRIES = 3  # processes that may die on one call


class EnvProcess:
    """One process that holds `count` environments. Threads may share it: one call at a time."""

    def __init__(self, config: EnvConfig, count: int) -> None:
        self.config, self.count = config, count
        self.life = 0  # processes started so far
        self._lock = threading.Lock()
        self._start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def _start(self) -> None:
        ours, theirs = Pipe()
        # not multiprocessing: its children would import the main module of a Ray worker
        command = [sys.executable, "-m", __name__, str(theirs.fileno())]
        self._process = subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
        theirs.close()
        self._pipe = ours
        self.life += 1
        self._pipe.send((self.config, self.count))

    def call(self, life: int, index: int, name: str, *args: str) -> Any:
        """A method of environment `index`. Raises `ConnectionError` where process number `life` is no more."""
        with self._lock:
            if life != self.life:
                raise ConnectionError
            try:
                self._pipe.send((index, name, args))
                good, answer = self._pipe.recv()
            except (EOFError, OSError) as error:
                self._pipe.close()
                self._process.kill()
                self._process.wait()
                self._start()
                raise ConnectionError from error
        if not good:
            raise answer
        return answer

    def close(self) -> None:
        """End the process: it ends by itself where nobody holds the other end of its pipe."""
        self._pipe.close()
        self._process.wait()


class RemoteEnv:
    """A `TextEnv` in a process: what it was asked is kept, so that it can be asked again of the next one."""

    def __init__(self, process: EnvProcess, index: int) -> None:
        self.name: str = process.config.name
        self.process, self._index = process, index
        self._life = process.life
        self._history: list[tuple[str, str]] = []  # (method, argument) of this episode

    def reset(self, task: str) -> Observation:
        self._history = []
        return self._ask("reset", task)

    def step(self, action: str) -> Step:
        return self._ask("step", action)

    def close(self) -> None:
        self._history = []

    def _ask(self, method: str, argument: str) -> Any:
        for _ in range(TRIES):
            try:
                if self._life != (life := self.process.life):
                    for earlier in self._history:
                        self.process.call(life, self._index, *earlier)
                    self._life = life
                answer = self.process.call(life, self._index, method, argument)
            except ConnectionError:
                continue
            self._history.append((method, argument))
            return answer
        raise EnvError(f"the {self.name} process died {TRIES} times in a row on one call ({method} {argument!r})")


def remote_envs(config: EnvConfig, count: int, processes: int) -> list[RemoteEnv]:
    """`count` environments, dealt out to at most as many processes."""
    shares = [len(range(i, count, processes)) for i in range(min(processes, count))]
    held = [EnvProcess(config, share) for share in shares]
    return [RemoteEnv(held[i % len(held)], i // len(held)) for i in range(count)]


def serve(pipe: Connection) -> None:
    """The process: answer calls until the other end is closed."""
    envs: Sequence[TextEnv] | None = None
    config, count = pipe.recv()
    while True:
        try:
            index, name, args = pipe.recv()
        except EOFError:
            return
        try:
            # here, so that what is missing is an answer to the first call
            envs = envs or make_envs(config, count)
            answer = (True, getattr(envs[index], name)(*args))
        except Exception as error:  # an environment can raise anything; whoever asked will see it
            answer = (False, error)
        pipe.send(answer)


if __name__ == "__main__":
    serve(Connection(int(sys.argv[1])))
