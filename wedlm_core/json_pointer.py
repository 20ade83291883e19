"""Parts of a JSON schema by reference (RFC 6901). A leaf."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote


def schema_at(schema: Any, reference: str) -> Any:
    """The part that a reference such as ``#/$defs/name`` stands for; True, any value, where it leads out or nowhere."""
    try:
        return part_at(schema, unquote(reference[1:])) if reference.startswith("#") else True
    except ValueError:
        return True


def part_at(whole: Any, pointer: str) -> Any:
    """The part that a pointer such as ``/$defs/name`` stands for.

    Raises:
        ValueError: it leads nowhere.
    """
    part = whole
    for step in pointer.split("/")[1:]:
        name = step.replace("~1", "/").replace("~0", "~")
        if isinstance(part, Mapping) and name in part:
            part = part[name]
        elif isinstance(part, list) and name.isdecimal() and int(name) < len(part):
            part = part[int(name)]
        else:
            raise ValueError("it leads nowhere")
    return part
