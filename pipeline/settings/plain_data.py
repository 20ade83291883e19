"""Configurations from plain data, as YAML and JSON give it; an unknown name is told with the nearest known one."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from pipeline.codec import EngineConfig, SamplingParams, WeDLMError, explain
from pipeline.errors import ConfigError
from pipeline.settings.parsing import loaded
from pipeline.settings.pools import ActorRange

_NESTED: Mapping[str, type] = {"sampling": SamplingParams, "engine": EngineConfig}


def build(kind: type, raw: Mapping[str, Any], prefix: str = "", *, root: type) -> Any:
    """An instance of a configuration class.

    Args:
        kind: the class.
        raw: its fields; of ``root``, ``sampling`` and ``engine`` may be mappings of their own.
        prefix: of the names of its fields: "sampling." and "engine." of a class that is nested in ``root``.
        root: the class of the whole configuration, among whose fields names are looked for that are unknown.

    Raises:
        ConfigError: unknown fields, a missing one, or a bad value; names are dotted.
    """
    if not isinstance(raw, Mapping):
        raise ConfigError(explain(prefix.rstrip(".") or "config", raw, "a mapping of fields", "Write name: value."))
    known = [f.name for f in fields(kind)]
    for name in raw:
        if name not in known:
            raise ConfigError(unknown_field(f"{prefix}{name}", prefix, root))
    values = dict(raw)
    if not prefix:
        for name, nested in _NESTED.items():
            if name in values and not is_dataclass(values[name]):
                values[name] = build(nested, values[name] or {}, f"{name}.", root=root)
    if kind is SamplingParams and "structured_outputs" in values:
        values["structured_outputs"] = loaded(values["structured_outputs"], f"{prefix}structured_outputs")
    try:
        return kind(**values)
    except TypeError as error:
        raise ConfigError(f"{error}. Known fields: {', '.join(prefix + name for name in known)}.") from error
    except WeDLMError as error:
        raise ConfigError(f"{prefix}{error}") from error


def unknown_field(name: str, prefix: str, root: type) -> str:
    """The message for a dotted name that is no field; ``prefix`` is of its level."""
    every = _field_names(root)
    near = difflib.get_close_matches(name, every, n=1, cutoff=0.5)
    # A field of the other level ("max_tokens" for "sampling.max_tokens") is the likelier slip: same last part.
    same_tail = [other for other in every if other.rsplit(".", 1)[-1] == name.rsplit(".", 1)[-1]]
    best = next(iter(same_tail or near), None)
    hint = (
        f"Did you mean {best!r}?"
        if best is not None
        else f"Known: {', '.join(n for n in every if n.startswith(prefix))}."
    )
    return explain("field", name, "no such field in the configuration", hint)


def _field_names(kind: type, prefix: str = "") -> list[str]:
    """Dotted names of all fields of a configuration class, nested ones included."""
    names: list[str] = []
    for f in fields(kind):
        names.append(prefix + f.name)
        if f.name in _NESTED and not prefix:
            names += _field_names(_NESTED[f.name], f"{f.name}.")
        if f.name == "actors" and not prefix:
            names += _field_names(ActorRange, "actors.")
    return names
