"""Parts of a JSON schema by reference (RFC 6901). A leaf."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote


def schema_at(schema: Any, reference: str) -> Any:
    """The part that a reference such as ``#/$defs/name`` stands for; True, any value, where it leads out or nowhere."""
    part = schema
    if not reference.startswith("#"):
        return True
    for step in unquote(reference[1:]).split("/")[1:]:
        name = step.replace("~1", "/").replace("~0", "~")
        if isinstance(part, Mapping) and name in part:
            part = part[name]
        elif isinstance(part, list) and name.isdecimal() and int(name) < len(part):
            part = part[int(name)]
        else:
            return True
    return part
