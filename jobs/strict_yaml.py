"""Reads YAML as ``yaml.safe_load`` does, and refuses a key that stands twice in one mapping."""

from __future__ import annotations

import re
from typing import Any

import yaml

__all__ = ["read_yaml"]

_NAME = re.compile(r"[A-Za-z_][\w.-]*")


class _Loader(yaml.SafeLoader):
    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key, _ in node.value if isinstance(node, yaml.MappingNode) else ():
            name = getattr(key, "value", None)
            if isinstance(name, str) and name != "<<":
                if name in seen:
                    shown = name if _NAME.fullmatch(name) else "a key"
                    raise yaml.constructor.ConstructorError(None, None, f"{shown} stands twice", key.start_mark)
                seen.add(name)
        return super().construct_mapping(node, deep)


def read_yaml(text: str) -> Any:
    """The value that a YAML text describes.

    Raises:
        yaml.YAMLError: it is none, or a key stands twice in a mapping.
    """
    return yaml.load(text, Loader=_Loader)  # a safe loader
