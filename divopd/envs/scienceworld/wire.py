"""The protocol of py4j's Java server, as far as the game needs it.

py4j's own Python side is left out: it sends a command again when its answer does not come, which would play a step
twice; it frees Java objects whenever Python collects garbage; and it logs on the root logger when Java ends.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass

ANSWER_SECONDS = 300


@dataclass(frozen=True, slots=True)
class Ref:
    """An object in Java, by the server's name for it. It stays there until it is freed."""

    name: str


Value = str | int | float | bool | None | Ref


class JavaError(Exception):
    """A Java method raised; `cause` is its exception."""

    def __init__(self, cause: Value) -> None:
        super().__init__(str(cause))
        self.cause = cause


def call(target: Ref | str, method: str, *arguments: Value) -> str:
    """The command that calls an object's method, or a static one of the class of that name."""
    owner = target.name if isinstance(target, Ref) else f"z:{target}"
    return f"c\n{owner}\n{method}\n{''.join(map(_argument, arguments))}e\n"


def construct(name: str, *arguments: Value) -> str:
    """The command that makes an object of a class."""
    return f"i\n{name}\n{''.join(map(_argument, arguments))}e\n"


def free(ref: Ref) -> str:
    """The command that lets go of an object."""
    return f"m\nd\n{ref.name}\ne\n"


class Wire:
    """A connection. Raises `OSError` where the other side is gone or does not answer within `ANSWER_SECONDS`."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=ANSWER_SECONDS)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._answers = self._socket.makefile("rb")

    def send(self, *commands: str) -> list[Value]:
        """The commands' answers, in one trip. Raises `JavaError` of the first that failed, after all were done."""
        self._socket.sendall("".join(commands).encode())
        lines = []
        for _ in commands:
            # py4j's side holds a second small answer back until the first is acknowledged, which waits 40 ms by default
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
            lines.append(self._answers.readline())
        if not lines[-1].endswith(b"\n"):
            raise ConnectionError("Java closed the connection")
        return [_value(line[:-1].decode()) for line in lines]

    def close(self) -> None:
        self._answers.close()
        self._socket.close()


def _argument(value: Value) -> str:
    if isinstance(value, Ref):
        return f"r{value.name}\n"
    if isinstance(value, str):
        return "s" + value.replace("\\", "\\\\").replace("\r", "\\r").replace("\n", "\\n") + "\n"
    if value is None:
        return "n\n"
    if isinstance(value, bool):
        return f"b{str(value).lower()}\n"
    return f"{'i' if isinstance(value, int) else 'd'}{value}\n"


def _value(line: str) -> Value:
    """Of "!y<type><content>", or of "!x..." an exception."""
    kind, content = line[2:3], line[3:]
    value: Value
    if kind == "s":
        value = _unescape(content)
    elif kind in "iL":
        value = int(content)
    elif kind == "d":
        value = float(content)
    elif kind == "b":
        value = content == "true"
    elif kind in "nv":
        value = None
    else:  # r and the containers' letters
        value = Ref(content)
    if line.startswith("!y"):
        return value
    raise JavaError(value)


def _unescape(text: str) -> str:
    if "\\" not in text:
        return text
    found, characters = [], iter(text)
    for character in characters:
        if character == "\\":
            following = next(characters, "")
            character = {"n": "\n", "r": "\r"}.get(following, following)
        found.append(character)
    return "".join(found)
