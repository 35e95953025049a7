"""The one way in which YAML is read, whoever wrote it: PyYAML's safe loader, but a key given twice is an error.

PyYAML itself keeps the later of two equal keys and drops the earlier without a word.
"""

from __future__ import annotations

from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml
from yaml.nodes import MappingNode, ScalarNode

MERGE = "tag:yaml.org,2002:merge"  # `<<`, which has no value of its own


class YamlError(ValueError):
    """A text that is no YAML, or gives a key twice; one line that names line and key, but not the file."""


class _Loader(yaml.SafeLoader):
    def compose_mapping_node(self, anchor: Any) -> MappingNode:
        """As the base class; here keys are still as written, before `<<` adds those of another mapping."""
        node: MappingNode = super().compose_mapping_node(anchor)
        lines: dict[Hashable, int] = {}
        for name, _ in node.value:
            if isinstance(name, ScalarNode):
                key, line = name.value if name.tag == MERGE else self.construct_object(name), name.start_mark.line + 1
                if key in lines:
                    raise YamlError(f"line {line}: key {key!r} is there twice (first in line {lines[key]})")
                lines[key] = line
        return node


def parse_yaml(text: str) -> Any:
    """The value that a YAML text holds. Raises YamlError."""
    try:
        return yaml.load(text.removeprefix("\ufeff"), Loader=_Loader)
    except YamlError:
        raise
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # ValueError: a date such as 2026-13-45
        raise YamlError(f"not readable as YAML: {' '.join(str(error).split())}") from error


def read_yaml_file(path: Path) -> Any:
    """The value that a file holds, in UTF-8. Raises OSError and YamlError."""
    try:
        text = path.read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        raise YamlError(f"not readable as YAML: byte {error.start} is not UTF-8") from error
    return parse_yaml(text)
