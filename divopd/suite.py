"""A suite file (settings x methods x seeds) becomes a list of resolved cells.

A cell is merged from layers, the later winning key by key: the defaults of `RunConfig`, the suite's `common`, the
setting's file, the suite's `overrides` for that setting, the method's `config`. Every layer is checked by itself, so
that an error names the file and the key as they stand there.

A method is what the suite says under its name, on top of experiments/methods/<name>.yaml where there is one (unless the
suite names a rule itself); without either it is the rule of that name with the student's rollouts and the paper's loss.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar, get_args

import yaml
from pydantic import BaseModel, NonNegativeInt, PositiveInt, ValidationError

from divopd.config import LossConfig, PipelineConfig, RolloutConfig, RunConfig, Strict
from divopd.provenance import logged
from divopd.rollouts import policy_class, resolved_params
from divopd.selection import load_rule

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

    name: str
    description: str = ""
    settings: list[str]
    methods: list[str] | dict[str, MethodSpec | None]
    seeds: list[NonNegativeInt] = [0]
    baseline: str = "vanilla"  # the method that speedups compare with
    allow: list[str] = []  # what runs of this suite may differ in, as `divopd report --allow` (analysis/runs.py)
    common: dict[str, Any] = {}
    overrides: dict[str, dict[str, Any]] = {}
    sweep: str | None = None  # dotted key of a cell by which its methods are compared (analysis/sweeps.py)

    @property
    def method_specs(self) -> dict[str, MethodSpec]:
        if isinstance(self.methods, list):
            return {name: MethodSpec() for name in self.methods}
        return {name: method or MethodSpec() for name, method in self.methods.items()}

    @property
    def sections_by_method(self) -> set[str]:
        """Sections of a RunConfig that some method sets for itself: there methods differ on purpose."""
        return {section for method in self.method_specs.values() for section in method.config}


def load_suite(path: str | Path) -> list[RunConfig]:
    """The cells of a suite file, settings outermost, seeds innermost. Raises SuiteError."""
    return expand(read_yaml(Path(path)), Path(path))


def expand(content: Mapping[str, Any], source: Path) -> list[RunConfig]:
    """The cells of a suite already read; settings/*.yaml lie beside `source`, its file, or one folder up."""
    spec = suite_spec(content, source)
    settings = _beside(source, "settings")
    methods = {name: _with_preset(name, method, source) for name, method in spec.method_specs.items()}
    cells = []
    for name in spec.settings:
        file = settings / f"{name}.yaml"
        setting = read_setting(file)
        for method, method_spec in methods.items():
            layers = [(source, "common", spec.common), (file, "", setting.config),
                      (source, f"overrides.{name}", spec.overrides.get(name, {})),
                      (source, f"methods.{method}.config", method_spec.config)]  # fmt: skip
            grid = {"suite": spec.name, "setting": name, "method": _method(method, method_spec, setting, source)}
            cells += [_resolve(layers, {**grid, "seed": seed}) for seed in spec.seeds]
    return cells


def _beside(source: Path, name: str) -> Path:
    """The folder `name` beside a suite's file, or one folder up."""
    folders = [folder / name for folder in (source.parent, source.parent.parent)]
    return next((folder for folder in folders if folder.is_dir()), folders[0])


def _with_preset(name: str, spec: MethodSpec, source: Path) -> MethodSpec:
    """What the suite says of a method, on top of the method's file."""
    path = _beside(source, "methods") / f"{name}.yaml"
    if spec.rule is not None or not path.is_file():
        return spec
    content = read_yaml(path)
    check_keys(content, PresetSpec, path)
    _validated(PresetSpec, content, path)
    return _validated(MethodSpec, merge(content, spec.model_dump(exclude_unset=True)), path)


def find_cell(cells: Iterable[RunConfig], setting: str, method: str, seed: int) -> RunConfig:
    """The one cell with these coordinates. Raises SuiteError that names what there is instead."""
    cells = list(cells)
    for label, wanted, have in (
        ("setting", setting, [c.setting for c in cells]),
        ("method", method, [c.method.name for c in cells]),
        ("seed", str(seed), [str(c.seed) for c in cells]),
    ):
        if wanted not in have:
            raise SuiteError(f"no {label} {wanted!r} in this suite{_nearest(wanted, have)}")
    return next(c for c in cells if (c.setting, c.method.name, c.seed) == (setting, method, seed))


def read_yaml(path: Path) -> dict[str, Any]:
    """A YAML mapping. Raises SuiteError for a missing or malformed file."""
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        have = sorted(p.stem for p in path.parent.glob("*.yaml"))
        raise SuiteError(f"{path}: no such file{_nearest(path.stem, have)}") from error
    except (OSError, yaml.YAMLError) as error:
        raise SuiteError(f"{path}: not readable as YAML: {' '.join(str(error).split())}") from error
    if not isinstance(content, dict):
        raise SuiteError(f"{path}: expected a mapping of keys")
    return content


def read_config_file(path: Path) -> RunConfig:
    """One resolved cell, as a run log keeps it. Raises SuiteError that names the key."""
    content = read_yaml(path)
    check_keys(content, RunConfig, path)
    return _validated(RunConfig, logged(content), path)


def suite_spec(content: Mapping[str, Any], source: Path) -> SuiteSpec:
    """The suite file's own keys, checked."""
    check_keys(content, SuiteSpec, source)
    spec = _validated(SuiteSpec, content, source)
    for name in spec.overrides:
        if name not in spec.settings:
            raise SuiteError(f"{source}: overrides.{name}: not a setting of this suite{_nearest(name, spec.settings)}")
    if spec.baseline not in spec.methods:
        hint = _nearest(spec.baseline, spec.methods)
        raise SuiteError(f"{source}: baseline: {spec.baseline!r} is not a method of this suite{hint}")
    return spec


def read_setting(path: Path) -> SettingSpec:
    """A setting's file: SettingSpec's keys and RunConfig's sections side by side."""
    content = read_yaml(path)
    own = {key: value for key, value in content.items() if key in SettingSpec.model_fields and key != "config"}
    rest = {key: value for key, value in content.items() if key not in own}
    for key in rest:
        if key not in LAYER_KEYS:
            valid = LAYER_KEYS | (SettingSpec.model_fields.keys() - {"config"})
            raise SuiteError(f"{path}: unknown key {key!r}{_nearest(key, valid)}")
    return _validated(SettingSpec, {**own, "config": rest}, path)


def check_keys(content: Any, model: type[BaseModel], source: Path, prefix: str = "") -> None:
    """Raise SuiteError for the first key that the model does not have, at any depth."""
    if not isinstance(content, Mapping):
        return
    for key, value in content.items():
        if model is PipelineConfig and key == "explorers":  # the old name of steps_in_flight
            continue
        if key not in model.model_fields:
            raise SuiteError(f"{source}: unknown key {prefix}{key!s}{_nearest(str(key), model.model_fields)}")
        for inner in _models(model.model_fields[key].annotation):
            check_keys(value, inner, source, f"{prefix}{key}.")


def _method(name: str, spec: MethodSpec, setting: SettingSpec, source: Path) -> dict[str, Any]:
    """A RunConfig's `method`. The setting's cap and recovery fill the parameters of that name that it leaves open."""
    rule, params = spec.rule or name, dict(spec.params)
    policy, rollout = spec.rollout.policy, dict(spec.rollout.params)
    try:
        if setting.cap is not None and "cap" in type(load_rule(rule, params)).model_fields:
            params.setdefault("cap", setting.cap)
        load_rule(rule, params)
        if setting.recovery is not None:
            known = policy_class(policy).model_fields
            rollout = {k: v for k, v in setting.recovery.model_dump().items() if k in known} | rollout
        rollout = resolved_params(policy, rollout)
        if spec.loss != LossConfig():  # the others need torch, which takes a second to import
            from divopd.losses import load_loss

            load_loss(spec.loss.name, spec.loss.params)
    except ValueError as error:  # RuleError, RolloutError, LossError
        presets = sorted(path.stem for path in _beside(source, "methods").glob("*.yaml"))
        near = difflib.get_close_matches(name, presets, n=1, cutoff=0.6)
        hint = f"; or did you mean the method {near[0]!r}?" if near and near[0] != name and spec.rule is None else ""
        raise SuiteError(f"{source}: methods.{name}: {error}{hint}") from error
    return {"name": name, "rule": rule, "params": params, "loss": spec.loss.model_dump(),
            "rollout": {"policy": policy, "params": rollout}}  # fmt: skip


def _resolve(layers: list[tuple[Path, str, dict[str, Any]]], grid: dict[str, Any]) -> RunConfig:
    merged: dict[str, Any] = {}
    for source, where, layer in layers:
        for key in layer:
            if key not in LAYER_KEYS:
                raise SuiteError(f"{source}: {where}: unknown key {key!r}{_nearest(key, LAYER_KEYS)}")
        check_keys(layer, RunConfig, source, f"{where}." if where else "")
        merged = merge(merged, layer)
    try:
        return RunConfig.model_validate({**merged, **grid})
    except ValidationError as error:
        first = error.errors()[0]
        loc = [str(part) for part in first["loc"]]
        source = next((s for s, _, layer in reversed(layers) if _has(layer, loc)), layers[1][0])
        raise SuiteError(f"{source}: {'.'.join(loc)}: {first['msg']}") from error


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`over` wins key by key, mappings are merged, everything else is replaced."""
    out = dict(base)
    for key, value in over.items():
        both = isinstance(value, Mapping) and isinstance(out.get(key), Mapping)
        out[key] = merge(out[key], value) if both else value
    return out


def _has(layer: Any, loc: list[str]) -> bool:
    for part in loc:
        if not isinstance(layer, Mapping) or part not in layer:
            return False
        layer = layer[part]
    return True


def _validated(model: type[T], content: Mapping[str, Any], source: Path) -> T:
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


def _nearest(word: str, valid: Iterable[str]) -> str:
    names = sorted(set(valid))
    close = difflib.get_close_matches(word, names, n=1, cutoff=0.5)
    return f"; did you mean {close[0]!r}?" if close else f"; valid: {', '.join(names)}"
