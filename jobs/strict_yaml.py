"""Reads YAML as ``yaml.safe_load`` does; refuses a mapping with a key twice, and a value that contains itself."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any

import yaml

from pipeline import RunConfig
from pipeline.codec import masked

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


def as_yaml(config: RunConfig) -> str:
    """Every field of the configuration. References to secrets stay; secrets themselves are masked, and named above."""
    masks = [f"# {place} is masked: write {{env: NAME}} or {{file: /path}} in its place"
             + (", in storage_options.\n" if place in ("input", "output", "model") else ".\n")
             for place in config.literal_secrets()]  # fmt: skip
    plain = masked(_plain(config))
    # A schema as it is: a field may be called "password", and any change makes another schema.
    structure = config.sampling.structure
    plain["sampling"]["structured_outputs"] = None if structure is None else _schema_apart(structure.as_dict())
    for name, parse in config.parse.items():
        if parse.json is not None:
            plain["parse"][name] = _schema_apart({"json": parse.json, "after": parse.after})
    return "".join(masks) + yaml.safe_dump(plain, sort_keys=False, allow_unicode=True)


def _schema_apart(own: dict[str, Any]) -> dict[str, Any]:
    """Fields whose ``json`` is a mapping in place of its text."""
    return own | {"json": json.loads(own["json"])} if isinstance(own.get("json"), str) else own


def _plain(value: Any) -> Any:
    """Mappings, lists and scalars, as YAML has them."""
    if is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_plain(item) for item in value]
    return value.value if isinstance(value, Enum) else value
