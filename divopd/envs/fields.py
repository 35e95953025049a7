"""Fields of the official files, checked as they are read: one line names file, entry and field of what is odd."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from divopd.envs.base import EnvError


class FieldError(ValueError):
    """A field that is missing or odd: its place within the entry, and what is due."""


@contextmanager
def entry(place: str) -> Iterator[None]:
    """Where the fields are that are read meanwhile: a FieldError becomes an `EnvError` that begins with the place."""
    try:
        yield
    except FieldError as error:
        raise EnvError(f"{place}: {error}") from None


def need(record: Any, key: str) -> Any:
    """The value of a field that must be there."""
    if key not in mapping(record):
        raise FieldError(f"{key} is missing")
    return record[key]


def mapping(value: Any, name: str = "") -> Mapping[str, Any]:
    """A JSON object."""
    if not isinstance(value, Mapping):
        raise odd(value, name, "an object")
    return value


def array(value: Any, name: str) -> Sequence[Any]:
    """A JSON array."""
    if not isinstance(value, list | tuple):
        raise odd(value, name, "a list")
    return value


def text(value: Any, name: str) -> str:
    """A JSON string."""
    if not isinstance(value, str):
        raise odd(value, name, "text")
    return value


def texts(value: Any, name: str) -> tuple[str, ...]:
    """A JSON array of strings."""
    return tuple(text(one, f"{name}[{i}]") for i, one in enumerate(array(value, name)))


def warn_of(left_out: Counter[str]) -> None:
    """One line for each reason for which entries were left out, with their number."""
    for reason, count in left_out.items():
        warnings.warn(f"{reason}: {count} left out, as the original does", stacklevel=3)


def odd(value: Any, name: str, due: str) -> FieldError:
    """The error of a value that is not what is due."""
    shown = repr(value)
    shown = shown if len(shown) <= 60 else f"{shown[:60]}..."
    return FieldError(f"{name} is {shown} where {due} is due" if name else f"{shown} where {due} is due")
