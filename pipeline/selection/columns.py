"""Finds columns by name, fields of structs too (``evidence.worst_logprob``); a name that is not there is one error."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.errors import ConfigError

__all__ = ["column_names", "find_column", "values_of"]


def column_names(schema: pa.Schema) -> list[str]:
    """The names of all columns, each followed by those of its fields, dotted."""
    return [name for field in schema for name in _names(field, field.name)]


def _names(field: pa.Field, name: str) -> Iterator[str]:
    yield name
    if pa.types.is_struct(field.type):
        for inner in field.type:
            yield from _names(inner, f"{name}.{inner.name}")


def find_column(schema: pa.Schema, path: Sequence[str], setting: str) -> tuple[str, ...]:
    """The names in ``path`` as they are spelled in the schema; upper and lower case are the same, as in SQL.

    Args:
        schema: of the table.
        path: a column, and fields of structs inside it.
        setting: name of its setting, for the message.

    Raises:
        ConfigError: there is none; the message has the names most like it.
    """
    found: list[str] = []
    fields = list(schema)
    for name in path:
        same = [field for field in fields if field.name == name]
        same = same or [field for field in fields if field.name.lower() == name.lower()]
        if not same:
            raise ConfigError(_absent(schema, path, found, setting))
        found.append(same[0].name)
        fields = list(same[0].type) if pa.types.is_struct(same[0].type) else []
    return tuple(found)


def values_of(table: pa.Table, path: Sequence[str]) -> pa.ChunkedArray:
    """The values at a path that :func:`find_column` gave."""
    first, *inside = path
    return pc.struct_field(table[first], inside) if inside else table[first]


def _absent(schema: pa.Schema, path: Sequence[str], found: Sequence[str], setting: str) -> str:
    wanted, every = ".".join(path), column_names(schema)
    near = difflib.get_close_matches(wanted, every, n=3, cutoff=0.6)
    near += [name for name in every if name.rsplit(".", 1)[-1] == path[-1] and name not in near]
    if near:
        remedy = f"Near it: {', '.join(near)}."
    else:
        inside = [name for name in every if name.startswith(".".join(found) + ".")] if found else schema.names
        remedy = f"There are: {', '.join(inside or schema.names)}."
    return f"{setting}: the output has no column {wanted!r}. {remedy}"
