"""Names of suites, settings, methods and models: each becomes a folder's name and a part of commands and patterns."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator


def checked_name(name: str) -> str:
    """The name. Raises ValueError for what cannot be one."""
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._+-]{0,79}", name) or ".." in name:
        allowed = "up to 80 of a-z, A-Z, 0-9 and . _ - +, the first a letter, a digit or _, and no '..'"
        raise ValueError(f"{name!r} is no name: a name is {allowed}")
    return name


Name = Annotated[str, AfterValidator(checked_name)]
