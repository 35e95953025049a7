"""Where rules are found, and how a name, a path or a plain function becomes a `Rule`.

A rule is a file in `baselines/`, any .py file by its path, or an entry point of the group "divopd.rules" of an
installed package. A file holds one subclass of `Rule`, or one function of (pool, budget, seed, *, parameters).
"""

from __future__ import annotations

import difflib
import importlib.util
import inspect
import logging
import sys
import typing
from collections.abc import Callable, Mapping
from functools import cache, lru_cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import FunctionType, ModuleType, new_class
from typing import Any

from pydantic import ValidationError

from divopd.candidates import Candidates
from divopd.rules_base import Choice, Rule, RuleError, guarded, rule_file
from divopd.seeds import seed as named_seed

GROUP = "divopd.rules"
RECEIVES = ("pool", "budget", "seed")


def rules_dir() -> Path:
    """The folder in which a file is a rule: `baselines/` beside the package, else under the working directory."""
    beside = Path(__file__).resolve().parent.parent / "baselines"
    return beside if beside.is_dir() else Path.cwd() / "baselines"


def shipped_rules() -> dict[str, Path]:
    """Name -> file of every rule in `rules_dir()`, sorted; nothing is imported."""
    return {path.stem: path for path in sorted(rules_dir().glob("*.py")) if not path.stem.startswith("_")}


def rule_files() -> dict[str, Path]:
    """Name -> source file of every rule that has a name: the shipped ones, then those of installed packages."""
    installed = {name: _source(entry) for name, entry in _installed(tuple(sys.path)).items()}
    return {
        **shipped_rules(),
        **{name: path for name, path in installed.items() if path and name not in shipped_rules()},
    }


def available_rules(broken: list[RuleError] | None = None) -> dict[str, type[Rule]]:
    """Name -> class of every rule that has a name and can be had. Why others cannot is added to `broken`, or logged."""
    found = {}
    for name in rule_files():
        try:
            found[name] = rule_class(name)
        except RuleError as error:
            if broken is None:
                logging.getLogger("divopd").warning("left out: %s", error)
            else:
                broken.append(error)
    return found


def rule_class(name_or_path: str | Path) -> type[Rule]:
    """A rule's class by name or by path (any .py file). Raises RuleError, in one line, for one that cannot be had."""
    shipped, text = shipped_rules(), str(name_or_path)
    installed = _installed(tuple(sys.path))
    if text in shipped:
        return _named(_load_file(shipped[text]), text, text)
    if text in installed:
        return _named(_load_entry(installed[text]), text, text)
    if text.endswith(".py") and Path(text).is_file():
        path = Path(text).resolve()
        known = path.stem in shipped and shipped[path.stem].samefile(path)
        return _named(_load_file(path), path.stem, path.stem if known else str(path))
    names = [*shipped, *installed]
    near = difflib.get_close_matches(text, names, n=3, cutoff=0.4) or names
    raise RuleError(
        f"unknown rule {text!r}; nearest: {', '.join(near)}. Name a file in {rules_dir().name}/ without its "
        "ending, or give the path of a .py file"
    )


def load_rule(name_or_path: str | Path, params: Mapping[str, Any] | None = None) -> Rule:
    """A rule by name or path, with its parameters.

    Raises RuleError, in one line, for an unknown rule, an unknown parameter or a value that does not fit.
    """
    cls = rule_class(name_or_path)
    try:
        with guarded(f"rule {cls.name} cannot be made:", rule_file(cls), but=ValidationError):
            return cls(**dict(params or {}))
    except ValidationError as error:
        raise RuleError(f"rule {cls.name}: {_explain(cls, error)}") from None


def _explain(cls: type[Rule], error: ValidationError) -> str:
    first = error.errors()[0]
    key = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        has = ", ".join(cls.model_fields) or "none"
        return f"unknown parameter {key!r}; it has: {has}"
    return f"parameter {key!r} = {first['input']!r}: {first['msg']}"


def _named(cls: type[Rule], name: str, address: str) -> type[Rule]:
    cls.name, cls.address = name, address
    return cls


# installed packages --------------------------------------------------------------------------------------------------


@lru_cache(maxsize=8)
def _installed(path: tuple[str, ...]) -> dict[str, EntryPoint]:
    """Name -> entry point, sorted; of two with one name the first by value. `path` is sys.path: the cache's key."""
    found: dict[str, EntryPoint] = {}
    for entry in sorted(entry_points(group=GROUP), key=lambda e: (e.name, e.value)):
        found.setdefault(entry.name, entry)
    return found


def _source(entry: EntryPoint) -> Path | None:
    try:
        spec = importlib.util.find_spec(entry.module)
    except ImportError:
        return None
    return Path(spec.origin) if spec and spec.origin else None


def _load_entry(entry: EntryPoint) -> type[Rule]:
    """The class behind an entry point: a module with one rule, or one class or function of a module."""
    source = _source(entry)
    with guarded(f"rule {entry.name} ({entry.value}) cannot be imported:", str(source) if source else None):
        found = entry.load()
    if isinstance(found, ModuleType):
        return _only_rule(found, entry.value)
    if isinstance(found, type) and issubclass(found, Rule):
        return found
    if isinstance(found, FunctionType) and _is_rule_function(found):
        return from_function(found)
    raise RuleError(
        f"rule {entry.name} ({entry.value}) is no rule: a Rule class or a function of {', '.join(RECEIVES)}"
    )


# files and functions -------------------------------------------------------------------------------------------------


def _load_file(path: Path) -> type[Rule]:
    """The one rule that the file defines. Imported once for each path."""
    module_name = f"divopd_rule_{named_seed(path.resolve()):016x}_{path.stem}"
    module = sys.modules.get(module_name)
    if module is None:
        spec = importlib.util.spec_from_file_location(module_name, path)
        assert spec is not None and spec.loader is not None, path
        module = sys.modules[module_name] = importlib.util.module_from_spec(spec)  # pydantic looks names up there
        try:
            with guarded(f"rule file {path.name} cannot be imported:", str(path)):
                spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[module_name]
            raise
    return _only_rule(module, f"file {path.name}")


def _only_rule(module: ModuleType, where: str) -> type[Rule]:
    own = [value for value in vars(module).values() if getattr(value, "__module__", None) == module.__name__]
    classes = [value for value in own if isinstance(value, type) and issubclass(value, Rule)]
    functions = [value for value in own if isinstance(value, FunctionType) and _is_rule_function(value)]
    if len(classes) + len(functions) != 1:
        what = f"{len(classes)} subclasses of Rule and {len(functions)} functions of ({', '.join(RECEIVES)})"
        raise RuleError(f"rule {where} defines {what} where one rule is due")
    return classes[0] if classes else from_function(functions[0])


def _is_rule_function(function: Callable[..., Any]) -> bool:
    return tuple(inspect.signature(function).parameters)[: len(RECEIVES)] == RECEIVES


@cache
def from_function(function: FunctionType) -> type[Rule]:
    """A plain function `f(pool, budget, seed, *, name: type = default, ...)` as a gated rule that reads the pool.

    Its keyword-only parameters become the rule's. Raises RuleError for one without type or default.
    """
    where, fields = f"rule function {function.__name__}", {}
    try:
        hints = typing.get_type_hints(function, include_extras=True)
    except Exception as error:  # a name that does not exist
        raise RuleError(f"{where}: its types cannot be read: {error}") from error
    for key, parameter in list(inspect.signature(function).parameters.items())[len(RECEIVES) :]:
        if parameter.kind is not parameter.KEYWORD_ONLY or parameter.default is parameter.empty or key not in hints:
            raise RuleError(f"{where}: parameter {key!r} needs a place after *, a type and a default")
        fields[key] = parameter.default

    def select(self: Rule, pool: Candidates, budget: int, seed: int) -> Choice:
        return function(pool, budget, seed, **{key: getattr(self, key) for key in fields})

    body = {"__module__": function.__module__, "__doc__": function.__doc__, "select": select, **fields}
    body["__annotations__"] = {key: hints[key] for key in fields}
    try:
        return new_class(function.__name__, (Rule,), exec_body=lambda space: space.update(body))
    except (NameError, TypeError, ValueError) as error:
        raise RuleError(f"{where}: {error}") from error
