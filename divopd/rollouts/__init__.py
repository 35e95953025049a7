"""How explorers play: who acts on the next turn, and how deep a rollout goes. One policy a file, found by being there.

A policy sees rollouts and the clock's counters; it knows no queue, no rule and no loss. docs/methods.md says how to add
one.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from divopd.config import RolloutConfig
from divopd.rollouts._base import Direction, Moment, PrefixTurns, RolloutError, RolloutPolicy, TeacherTurns

__all__ = ["Direction", "Moment", "PrefixTurns", "RolloutError", "RolloutPolicy", "TeacherTurns", "load_policy",
           "policy_class", "policy_names", "resolved_params", "resolved_policy"]  # fmt: skip


def policy_names() -> list[str]:
    """Every rollout policy, sorted; nothing is imported."""
    return sorted(path.stem for path in Path(__file__).parent.glob("*.py") if not path.stem.startswith("_"))


def policy_class(name: str) -> type[RolloutPolicy]:
    """The one policy that the file of this name defines. Raises RolloutError for an unknown name."""
    if name not in policy_names():
        near = get_close_matches(name, policy_names(), n=3, cutoff=0.4) or policy_names()
        raise RolloutError(f"unknown rollout policy {name!r}; nearest: {', '.join(near)}")
    module = importlib.import_module(f"{__name__}.{name}")
    own = [value for value in vars(module).values() if getattr(value, "__module__", None) == module.__name__]
    classes = [value for value in own if isinstance(value, type) and issubclass(value, RolloutPolicy)]
    if len(classes) != 1:
        raise RolloutError(f"divopd/rollouts/{name}.py defines {len(classes)} rollout policies where one is due")
    return classes[0]


def load_policy(name: str, params: Mapping[str, Any] | None = None) -> RolloutPolicy:
    """A policy with its parameters. Raises RolloutError, in one line, for a name or parameter that does not fit."""
    cls = policy_class(name)
    try:
        return cls(**dict(params or {}))
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        has = ", ".join(cls.model_fields) or "none"
        if first["type"] == "extra_forbidden":
            raise RolloutError(f"rollout policy {name}: unknown parameter {key!r}; it has: {has}") from None
        if first["type"] == "missing":
            raise RolloutError(f"rollout policy {name}: parameter {key!r} is due; it has: {has}") from None
        raise RolloutError(f"rollout policy {name}: parameter {key!r} = {first['input']!r}: {first['msg']}") from None


def resolved_params(name: str, params: Mapping[str, Any]) -> dict[str, Any]:
    """What a resolved cell keeps of a policy's parameters: those given, and defaults that older cells do not mean.

    Raises RolloutError as `load_policy` does.
    """
    policy, logged = load_policy(name, params), policy_class(name).LOGGED
    stated = {key: getattr(policy, key) for key in logged}
    return {
        **{key: value for key, value in params.items() if key not in logged},
        **{key: value for key, value in stated.items() if value != logged[key]},
    }


def resolved_policy(rollout: RolloutConfig) -> RolloutPolicy:
    """The policy of a resolved cell: what it does not state has the value of when such cells were first logged."""
    return load_policy(rollout.policy, {**policy_class(rollout.policy).LOGGED, **rollout.params})
