"""Structured outputs as settings have them: schemas and grammars in files, and the names of YAML.

What is in a file becomes part of the configuration: a run is resumed with the same content, wherever the file is then,
and no actor reads it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pipeline.codec import explain
from pipeline.errors import ConfigError

__all__ = ["loaded", "loaded_schema"]

_IN_FILES = ("json", "grammar", "regex")
_MOST_BYTES = 4 * 2**20
_SHAPE = "Write {json: {file: schema.json}}, or the schema itself."


def loaded(given: Any, name: str) -> Any:
    """``structured_outputs`` with the content of the files that it names; what is no mapping is left as it is.

    Args:
        given: fields of ``StructuredOutputs``; in place of a schema, grammar or regex ``{"file": path}``.
        name: of the setting, for messages.

    Raises:
        ConfigError: a file cannot be read, or a schema has a key that is no text.
    """
    if not isinstance(given, Mapping):
        return given
    own = dict(given)
    for kind in _IN_FILES:
        if kind in own:
            own[kind] = loaded_schema(own[kind], f"{name}.{kind}")
    return own


def loaded_schema(given: Any, name: str) -> Any:
    """A schema or grammar, or what the file has that it names. See :func:`loaded`."""
    if isinstance(given, Mapping) and set(given) == {"file"}:
        return _read(given["file"], name)
    _check_keys(given, name)
    return given


def _read(path: Any, name: str) -> str:
    if not isinstance(path, (str, os.PathLike)):
        raise ConfigError(explain(f"{name}.file", path, "a path", _SHAPE))
    try:
        with Path(path).open("rb") as file:
            data = file.read(_MOST_BYTES + 1)
        text = data.decode("utf-8-sig")
    except (OSError, ValueError) as error:
        raise ConfigError(explain(f"{name}.file", str(path), f"cannot be read ({error})", _SHAPE)) from error
    if len(data) > _MOST_BYTES:
        raise ConfigError(explain(f"{name}.file", str(path), f"at most {_MOST_BYTES} bytes", "Make it smaller."))
    return text


def _check_keys(schema: Any, name: str) -> None:
    """Refuse keys that YAML reads as something else than text: ``yes``, ``on``, ``1``, ``2024-01-01``."""
    todo, seen = [schema], set()
    while todo:
        part = todo.pop()
        if not isinstance(part, (Mapping, list, tuple)) or id(part) in seen:
            continue
        seen.add(id(part))
        if isinstance(part, Mapping):
            odd = [key for key in part if not isinstance(key, str)]
            if odd:
                raise ConfigError(explain(name, odd[0], "keys are text, and YAML reads this one as something else",
                                          "Quote it."))  # fmt: skip
        inside: Sequence[Any] = list(part.values()) if isinstance(part, Mapping) else part
        todo.extend(inside)
