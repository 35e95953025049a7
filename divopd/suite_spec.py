"""What may stand in a suite's, a setting's and a method's file, and the checks of one file by itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, NonNegativeInt, PositiveInt, ValidationError

from divopd.config import LossConfig, PipelineConfig, RolloutConfig, RunConfig, Strict
from divopd.lookup import nearest
from divopd.names import Name, checked_name
from divopd.strict_yaml import YamlError, read_yaml_file

T = TypeVar("T", bound=BaseModel)
# what a layer may set; the rest of a RunConfig comes from the grid itself
LAYER_KEYS = frozenset(RunConfig.model_fields) - {"suite", "setting", "method", "seed"}


class SuiteError(ValueError):
    """A suite or setting file cannot be used; one line that names file, key and mend."""


class PresetSpec(Strict):
    """A method's file: a rule, how explorers play, a loss. `rule` defaults to the method's own name."""

    description: str = ""
    rule: str | None = None
    params: dict[str, Any] = {}
    rollout: RolloutConfig = RolloutConfig()
    loss: LossConfig = LossConfig()


class MethodSpec(PresetSpec):
    """One method of a suite."""

    config: dict[str, Any] = {}


class RecoverySpec(Strict):
    """Teacher recovery of a setting: p, m and warm-up (paper section on teacher recovery)."""

    patience: PositiveInt
    max_turns: PositiveInt
    warmup_updates: NonNegativeInt = 0


class SettingSpec(Strict):
    """One teacher -> student setting: its own values, and in `config` whatever else its file sets of a RunConfig."""

    cap: PositiveInt | None = None  # k: turns a rollout may give on the first sweeps
    recovery: RecoverySpec | None = None
    paper_setting: str | None = None  # the paper's setting shown beside this one
    # the paper's student_initial_success and teacher_success in percent: shown in the main table, used for nothing
    reported: dict[str, float] = {}
    config: dict[str, Any] = {}


class SuiteSpec(Strict):
    """A suite file."""

    name: Name
    description: str = ""
    settings: list[str]  # names, or paths of settings' files
    methods: list[str] | dict[str, MethodSpec | None]
    seeds: list[NonNegativeInt] = [0]
    baseline: str = "vanilla"  # the method that speedups compare with
    allow: list[str] = []  # what runs of this suite may differ in, as `divopd report --allow` (analysis/runs.py)
    common: dict[str, Any] = {}
    overrides: dict[str, dict[str, Any]] = {}
    sweep: str | None = None  # dotted key of a cell by which its methods are compared (analysis/sweeps.py)
    # another suite's file, relative to this one: files are looked for as if this one lay there (merged.py)
    beside: str | None = None

    @property
    def setting_names(self) -> list[str]:
        return [setting_name(entry) for entry in self.settings]

    @property
    def method_specs(self) -> dict[str, MethodSpec]:
        if isinstance(self.methods, list):
            return {name: MethodSpec() for name in self.methods}
        return {name: method or MethodSpec() for name, method in self.methods.items()}

    @property
    def sections_by_method(self) -> set[str]:
        """Sections of a RunConfig that some method sets for itself: there methods differ on purpose."""
        return {section for method in self.method_specs.values() for section in method.config}


def setting_name(entry: str) -> str:
    """The name of a setting that a suite names, or whose file it names."""
    return Path(entry).name.removesuffix(".yaml")


def read_yaml(path: Path) -> dict[str, Any]:
    """A YAML mapping. Raises SuiteError for a missing or malformed file."""
    try:
        content = read_yaml_file(path)
    except FileNotFoundError as error:
        have = sorted(p.stem for p in path.parent.glob("*.yaml"))
        raise SuiteError(f"{path}: no such file{nearest(path.stem, have)}") from error
    except OSError as error:
        raise SuiteError(f"{path}: {error.strerror}") from error
    except YamlError as error:
        raise SuiteError(f"{path}: {error}") from error
    if not isinstance(content, dict):
        raise SuiteError(f"{path}: expected a mapping of keys")
    return content


def suite_spec(content: Mapping[str, Any], source: Path) -> SuiteSpec:
    """The suite file's own keys, checked."""
    check_keys(content, SuiteSpec, source)
    spec = validated(SuiteSpec, content, source)
    for key, names in (("settings", spec.setting_names), ("methods", spec.methods)):
        for name in names:
            try:
                checked_name(name)
            except ValueError as error:
                raise SuiteError(f"{source}: {key}: {error}") from None
    _check_distinct(spec, source)
    for name in spec.overrides:
        if name not in spec.setting_names:
            hint = nearest(name, spec.setting_names)
            raise SuiteError(f"{source}: overrides.{name}: not a setting of this suite{hint}")
    if spec.baseline not in spec.methods:
        hint = nearest(spec.baseline, spec.methods)
        raise SuiteError(f"{source}: baseline: {spec.baseline!r} is not a method of this suite{hint}")
    return spec


def _check_distinct(spec: SuiteSpec, source: Path) -> None:
    """Raise SuiteError where two cells would be one, have one folder, or one name of a log."""
    lists: list[tuple[str, Sequence[object]]] = [
        ("settings", spec.setting_names), ("methods", [*spec.methods]), ("seeds", spec.seeds)
    ]  # fmt: skip
    for key, values in lists:
        if not values:
            raise SuiteError(f"{source}: {key}: the list is empty: nothing would run")
        for i, value in enumerate(values):
            if value in values[:i]:
                raise SuiteError(f"{source}: {key}: {value!r} is there twice")
    cells: dict[str, str] = {}
    for setting in spec.setting_names:
        for method in spec.methods:
            cell = f"{setting}/{method}"
            # as files of logs are named; some file systems take A and a for one
            other = cells.setdefault(cell.replace("/", ".").lower(), cell)
            if other != cell:
                raise SuiteError(f"{source}: {other} and {cell} would have the same files: rename a setting or method")


def read_setting(path: Path) -> SettingSpec:
    """A setting's file: SettingSpec's keys and RunConfig's sections side by side."""
    content = read_yaml(path)
    own = {key: value for key, value in content.items() if key in SettingSpec.model_fields and key != "config"}
    rest = {key: value for key, value in content.items() if key not in own}
    for key in rest:
        if key not in LAYER_KEYS:
            valid = LAYER_KEYS | (SettingSpec.model_fields.keys() - {"config"})
            raise SuiteError(f"{path}: unknown key {key!r}{nearest(key, valid)}")
    return validated(SettingSpec, {**own, "config": rest}, path)


def check_keys(content: Any, model: type[BaseModel], source: Path, prefix: str = "") -> None:
    """Raise SuiteError for the first key that the model does not have, at any depth."""
    if not isinstance(content, Mapping):
        return
    for key, value in content.items():
        if model is PipelineConfig and key == "explorers":  # the old name of steps_in_flight
            continue
        if key not in model.model_fields:
            raise SuiteError(f"{source}: unknown key {prefix}{key!s}{nearest(str(key), model.model_fields)}")
        for inner in _models(model.model_fields[key].annotation):
            check_keys(value, inner, source, f"{prefix}{key}.")


def validated(model: type[T], content: Mapping[str, Any], source: Path) -> T:
    try:
        return model.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        raise SuiteError(f"{source}: {'.'.join(str(part) for part in first['loc'])}: {first['msg']}") from error


def _models(annotation: Any) -> list[type[BaseModel]]:
    """The pydantic models an annotation holds directly (`X`, `X | None`), not inside containers."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    if getattr(annotation, "__origin__", None) in (list, dict, tuple):
        return []
    return [model for arg in get_args(annotation) for model in _models(arg)]
