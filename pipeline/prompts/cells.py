"""Python values of Arrow columns, as prompts are made of them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from pipeline.sources.json_text import JsonReader, Written

__all__ = ["plain_values", "structured_values", "values"]


def values(column: pa.ChunkedArray) -> list[Any]:
    """Python values; a cell that has no value (such as text that is not UTF-8) gives the exception instead."""
    try:
        return column.to_pylist()
    except (ValueError, OverflowError, pa.ArrowException):
        return [_value(cell) for cell in column]


def _value(cell: pa.Scalar) -> Any:
    try:
        return cell.as_py()
    except (ValueError, OverflowError, pa.ArrowException) as error:
        return error


def structured_values(column: pa.ChunkedArray) -> list[Any]:
    """:func:`values` of a text column of values of any kind, with its lists and objects as such."""
    return [_structure(value) if isinstance(value, str) else value for value in values(column)]


def _structure(text: str) -> Any:
    if not text.startswith(("{", "[")):
        return text
    try:
        return json.loads(text, parse_float=_fraction)
    except (ValueError, RecursionError):
        return text


def _fraction(text: str) -> float | str:
    """A fraction; one that no float holds as its digits."""
    found = JsonReader().read(text)
    return found.text if isinstance(found, Written) else float(found)


def plain_values(column: pa.ChunkedArray) -> list[Any]:
    """:func:`values` without the null fields that structs only have because they share their fields.

    A field that is null in every row stays: somebody wrote that null, such as the default of a tool's parameter.
    """
    return [_plain(value, column.type) for value in values(column)]


def _plain(value: Any, kind: pa.DataType) -> Any:
    if isinstance(value, Mapping) and pa.types.is_struct(kind):
        types = {field.name: field.type for field in kind}
        kept = {k: v for k, v in value.items() if v is not None or pa.types.is_null(types[k])}
        return {name: _plain(item, types[name]) for name, item in kept.items()}
    if isinstance(value, list) and pa.types.is_map(kind):
        return {name: _plain(item, kind.item_type) for name, item in value}
    return [_plain(item, kind.value_type) for item in value] if isinstance(value, list) else value
