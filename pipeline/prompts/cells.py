"""Python values of Arrow columns, as prompts are made of them."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from pipeline.codec import RequestError
from pipeline.sources.json_text import JsonReader, MinusZero, Written
from pipeline.sources.tabulate import holds_any_values
from pipeline.sources.types import has_whole_numbers

__all__ = ["no_value", "plain_values", "template_values", "values"]


def values(column: pa.ChunkedArray) -> list[Any]:
    """Python values; a cell that has no value (such as text that is not UTF-8) gives the exception instead."""
    try:
        return column.to_pylist()
    except Exception:  # a time zone that is not known is a KeyError
        return [_value(cell) for cell in column]


def _value(cell: pa.Scalar) -> Any:
    try:
        return cell.as_py()
    except Exception as error:
        return error


def no_value(name: str, error: Exception) -> RequestError:
    """The error of a row with a cell that has no Python value; ``error``: in place of the value."""
    if isinstance(error, UnicodeDecodeError):
        return RequestError(f"{name}: not valid UTF-8 text ({error}). Re-encode it.")
    return RequestError(
        f"{name}: the cell has no value in Python ({error}). Correct it, or convert the column to text."
    )


def template_values(field: pa.Field, column: pa.ChunkedArray) -> list[Any]:
    """:func:`values` as templates write them: numbers as the input has them, lists and objects in text as such."""
    found = values(column)
    if holds_any_values(field):
        return [_structure(value) if isinstance(value, str) else value for value in found]
    return [_whole(value) for value in found] if has_whole_numbers(field) else found


def _whole(value: Any) -> Any:
    """A number, or a list of numbers, in which no whole number is a fraction."""
    if isinstance(value, list):
        return [_whole(item) for item in value]
    if not isinstance(value, float) or not value.is_integer():
        return value
    return MinusZero() if value == 0 and math.copysign(1, value) < 0 else int(value)


def _structure(text: str) -> Any:
    if not text.startswith(("{", "[")):
        return text
    try:
        return json.loads(text, parse_int=_number, parse_float=_number)
    except (ValueError, RecursionError):
        return text


def _number(text: str) -> int | float | str:
    """A number; one that Python would round as its digits."""
    found: int | float | Written = JsonReader().read(text)
    return found.text if isinstance(found, Written) else found


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
