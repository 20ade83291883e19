"""A resolved configuration as YAML: for ``--print-config``, and to be given to ``--config`` again."""

from __future__ import annotations

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
    return "".join(masks) + yaml.safe_dump(masked(_plain(config)), sort_keys=False, allow_unicode=True)


def _plain(value: Any) -> Any:
    """Mappings, lists and scalars, as YAML has them."""
    if is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_plain(item) for item in value]
    return value.value if isinstance(value, Enum) else value
