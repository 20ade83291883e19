"""A resolved configuration as YAML: for ``--print-config``, and to be given to ``--config`` again."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any

import yaml

from pipeline import RunConfig
from pipeline.codec import masked

__all__ = ["as_yaml"]


def as_yaml(config: RunConfig) -> str:
    """Every field of the configuration. References to secrets stay; secrets themselves are masked, and named above."""
    masks = [f"# {place} is masked: write {{env: NAME}} or {{file: /path}} in its place"
             + (", in storage_options.\n" if place in ("input", "output", "model") else ".\n")
             for place in config.literal_secrets()]  # fmt: skip
    plain = masked(_plain(config))
    # A schema as it is: a field may be called "password", and what is changed is another schema.
    structure = config.sampling.structure
    plain["sampling"]["structured_outputs"] = None if structure is None else _schema_apart(structure.as_dict())
    for name, parse in config.parse.items():
        if parse.json is not None:
            plain["parse"][name] = _schema_apart({"json": parse.json, "after": parse.after})
    return "".join(masks) + yaml.safe_dump(plain, sort_keys=False, allow_unicode=True)


def _schema_apart(own: dict[str, Any]) -> dict[str, Any]:
    """Fields of which ``json`` is a mapping in place of its text."""
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
