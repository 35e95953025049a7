"""A suite file (settings x methods x seeds) becomes a list of resolved cells.

A cell is merged from layers, the later winning key by key: the defaults of `RunConfig`, the suite's `common`, the
setting's file, the suite's `overrides` for that setting, the method's `config`. Every layer is checked by itself, so
that an error names the file and the key as they stand there.

A method is what the suite says under its name, on top of methods/<name>.yaml where there is one (unless the suite names
a rule itself); without either it is the rule of that name with the student's rollouts and the paper's loss. Where files
are looked for: divopd/lookup.py.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from divopd.config import LossConfig, RunConfig
from divopd.lookup import find, located, looked_in, nearest, stems, with_files
from divopd.provenance import logged
from divopd.rollouts import policy_class, resolved_params
from divopd.selection import load_rule, rule_files
from divopd.suite_spec import (
    LAYER_KEYS,
    MethodSpec,
    PresetSpec,
    SettingSpec,
    SuiteError,
    check_keys,
    read_setting,
    read_yaml,
    setting_name,
    suite_spec,
    validated,
)

__all__ = ["SettingSpec", "SuiteError", "expand", "find_cell", "load_suite", "merge", "read_config_file",
           "read_setting", "read_yaml", "suite_spec"]  # fmt: skip


def load_suite(path: str | Path) -> list[RunConfig]:
    """The cells of a suite file, settings outermost, seeds innermost. Raises SuiteError."""
    return expand(read_yaml(Path(path)), Path(path))


def expand(content: Mapping[str, Any], source: Path) -> list[RunConfig]:
    """The cells of a suite already read from `source`, its file."""
    spec = suite_spec(content, source)
    place = source if spec.beside is None else source.parent / spec.beside
    methods = {name: _with_preset(name, method, place) for name, method in spec.method_specs.items()}
    cells = []
    for entry, name in zip(spec.settings, spec.setting_names, strict=True):
        file = _setting_file(entry, source, place)
        setting = read_setting(file)
        for method, method_spec in methods.items():
            layers = [(source, "common", spec.common), (file, "", setting.config),
                      (source, f"overrides.{name}", spec.overrides.get(name, {})),
                      (source, f"methods.{method}.config", method_spec.config)]  # fmt: skip
            chosen = _method(method, method_spec, setting, source, place)
            grid = {"suite": spec.name, "setting": name, "method": chosen}
            cells += [with_files(_resolve(layers, {**grid, "seed": seed}), place) for seed in spec.seeds]
    return cells


def _setting_file(entry: str, source: Path, place: Path) -> Path:
    """A setting's file: settings/<name>.yaml, or the path as it stands where it is one."""
    file = f"{entry.removesuffix('.yaml')}.yaml"
    found = find([f"settings/{file}", *([file] if entry != setting_name(entry) else [])], place)
    if found is None:
        hint = nearest(entry, stems("settings", place))
        raise SuiteError(f"{source}: settings/{file}: no such file; {looked_in(place)}{hint}")
    return found


def _with_preset(name: str, spec: MethodSpec, place: Path) -> MethodSpec:
    """What the suite says of a method, on top of the method's file."""
    path = find([f"methods/{name}.yaml"], place)
    if spec.rule is not None or path is None:
        return spec
    content = read_yaml(path)
    check_keys(content, PresetSpec, path)
    validated(PresetSpec, content, path)
    return validated(MethodSpec, merge(content, spec.model_dump(exclude_unset=True)), path)


def find_cell(cells: Iterable[RunConfig], setting: str, method: str, seed: int) -> RunConfig:
    """The one cell with these coordinates. Raises SuiteError that names what there is instead."""
    cells = list(cells)
    for label, wanted, have in (
        ("setting", setting, [c.setting for c in cells]),
        ("method", method, [c.method.name for c in cells]),
        ("seed", str(seed), [str(c.seed) for c in cells]),
    ):
        if wanted not in have:
            raise SuiteError(f"no {label} {wanted!r} in this suite{nearest(wanted, have)}")
    return next(c for c in cells if (c.setting, c.method.name, c.seed) == (setting, method, seed))


def read_config_file(path: Path) -> RunConfig:
    """One resolved cell, as a run log keeps it. Raises SuiteError that names the key."""
    content = read_yaml(path)
    check_keys(content, RunConfig, path)
    return validated(RunConfig, logged(content), path)


def _method(name: str, spec: MethodSpec, setting: SettingSpec, source: Path, place: Path) -> dict[str, Any]:
    """A RunConfig's `method`. The setting's cap and recovery fill the parameters of that name that it leaves open."""
    rule, params = spec.rule or name, dict(spec.params)
    if rule.endswith(".py"):
        rule = located(rule, place)
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
        raise SuiteError(f"{source}: methods.{name}: {error}{_hint(name, rule, spec, place)}") from error
    return {"name": name, "rule": rule, "params": params, "loss": spec.loss.model_dump(),
            "rollout": {"policy": policy, "params": rollout}}  # fmt: skip


def _hint(name: str, rule: str, spec: MethodSpec, place: Path) -> str:
    """What more to say where a rule does not exist; nothing where it does, and something else is wrong."""
    if rule.endswith(".py"):
        return "" if Path(rule).is_file() else f"; {looked_in(place)}"
    if rule in rule_files() or spec.rule is not None:
        return ""
    near = difflib.get_close_matches(name, stems("methods", place), n=1, cutoff=0.6)
    return f"; or did you mean the method {near[0]!r}?" if near else f"; no methods/{name}.yaml: {looked_in(place)}"


def _resolve(layers: list[tuple[Path, str, dict[str, Any]]], grid: dict[str, Any]) -> RunConfig:
    merged: dict[str, Any] = {}
    for source, where, layer in layers:
        for key in layer:
            if key not in LAYER_KEYS:
                raise SuiteError(f"{source}: {where}: unknown key {key!r}{nearest(key, LAYER_KEYS)}")
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
