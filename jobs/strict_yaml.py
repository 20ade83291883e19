"""Reads YAML as ``yaml.safe_load`` does; refuses a mapping with a key twice, and a value that contains itself."""

from __future__ import annotations

import re
from typing import Any

import yaml

__all__ = ["read_yaml"]

_NAME = re.compile(r"[A-Za-z_][\w.-]*")


class _Loader(yaml.SafeLoader):
    def get_single_node(self) -> yaml.Node | None:
        node = super().get_single_node()
        _refuse_cycles(node, set(), set())
        return node

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


def _refuse_cycles(node: Any, around: set[int], done: set[int]) -> None:
    """Refuse a node that contains itself, by an alias."""
    if id(node) in around:
        raise yaml.constructor.ConstructorError(None, None, "an alias names a value that contains it", node.start_mark)
    if id(node) in done or not isinstance(node, yaml.CollectionNode):
        return
    around.add(id(node))
    for part in node.value:
        for one in part if isinstance(part, tuple) else (part,):
            _refuse_cycles(one, around, done)
    around.remove(id(node))
    done.add(id(node))


def read_yaml(text: str) -> Any:
    """The value that a YAML text describes.

    Raises:
        yaml.YAMLError: it is none, a key stands twice in a mapping, or a value is part of itself.
    """
    return yaml.load(text, Loader=_Loader)  # a safe loader
