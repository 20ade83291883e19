"""Converts Arrow arrays to JSON values and back, without loss.

Types that JSON lacks: bytes become base64 text; dates, times and timestamps become ISO 8601 text (with a zone: in UTC),
or Arrow's integer if no such text represents the value; durations become Arrow's integer; decimals, NaN and infinities
become text; a map becomes a list of objects with ``key`` and ``value``.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

_UNITS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


def to_json_values(array: pa.Array) -> list[Any]:
    """The values of an array, null for null.

    Raises:
        TypeError: a type that cannot be represented.
    """
    kind = array.type
    if isinstance(array, pa.ExtensionArray):
        return to_json_values(array.storage)
    if pa.types.is_dictionary(kind):
        return to_json_values(array.dictionary_decode())
    if pa.types.is_struct(kind):
        children = [to_json_values(child) for child in array.flatten()]
        names = [field.name for field in kind]
        rows = zip(*children, strict=True) if children else ((),) * len(array)
        return _where_valid(array, [dict(zip(names, row, strict=True)) for row in rows])
    if pa.types.is_map(kind):
        return _maps_to_json(array)
    if _is_list(kind):
        flat = iter(to_json_values(pc.list_flatten(array)))
        return [None if n is None else [next(flat) for _ in range(n)] for n in pc.list_value_length(array).to_pylist()]
    return _leaves_to_json(array)


def _is_list(kind: pa.DataType) -> bool:
    return pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)


def _where_valid(array: pa.Array, values: list[Any]) -> list[Any]:
    return [value if valid else None for value, valid in zip(values, array.is_valid().to_pylist(), strict=True)]


def _maps_to_json(array: pa.Array) -> list[Any]:
    whole = array.drop_null()
    pairs = zip(to_json_values(whole.keys), to_json_values(whole.items), strict=True)
    maps = iter([[{"key": k, "value": v} for k, v in _take(pairs, n)] for n in np.diff(whole.offsets.to_numpy())])
    return [next(maps) if valid else None for valid in array.is_valid().to_pylist()]


def _take(items: Any, count: int) -> list[Any]:
    return [next(items) for _ in range(count)]


def _leaves_to_json(array: pa.Array) -> list[Any]:
    kind = array.type
    if pa.types.is_floating(kind):
        return [v if v is None or math.isfinite(v) else str(v) for v in array.to_pylist()]
    if _is_plain(kind):
        return array.to_pylist()
    if _is_bytes(kind):
        return [None if v is None else base64.b64encode(v).decode() for v in array.to_pylist()]
    if pa.types.is_decimal(kind):
        return [None if v is None else str(v) for v in array.to_pylist()]
    if pa.types.is_duration(kind):
        return array.cast(pa.int64()).to_pylist()
    if pa.types.is_time(kind):
        return [None if v is None else _time_text(v, kind.unit) for v in _integers(array)]
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        return _texts_or_integers(array)
    raise TypeError(f"JSON cannot stand for values of type {kind}")


def _is_plain(kind: pa.DataType) -> bool:
    is_text = pa.types.is_string(kind) or pa.types.is_large_string(kind) or kind == pa.string_view()
    return is_text or pa.types.is_null(kind) or pa.types.is_boolean(kind) or pa.types.is_integer(kind)


def _is_bytes(kind: pa.DataType) -> bool:
    sized = pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind)
    return sized or kind == pa.binary_view()


def _integers(array: pa.Array) -> list[int | None]:
    narrow = pa.types.is_date32(array.type) or pa.types.is_time32(array.type)
    return array.cast(pa.int32() if narrow else pa.int64()).to_pylist()


def _texts_or_integers(array: pa.Array) -> list[Any]:
    """As text, except for values that cannot be read back from text (such as years beyond four digits)."""
    bare = array.cast(_in_utc(array.type))
    try:
        texts = bare.cast(pa.string())
        if texts.cast(bare.type).equals(bare):
            return texts.to_pylist()
    except pa.ArrowException:
        pass
    if len(array) == 1:
        return _integers(array)
    half = len(array) // 2
    return _texts_or_integers(array.slice(0, half)) + _texts_or_integers(array.slice(half))


def _in_utc(kind: pa.DataType) -> pa.DataType:
    return pa.timestamp(kind.unit, "UTC") if pa.types.is_timestamp(kind) and kind.tz is not None else kind


def _time_text(value: int, unit: str) -> str:
    seconds, fraction = divmod(value, _UNITS[unit])
    digits = len(str(_UNITS[unit])) - 1
    text = f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
    return f"{text}.{fraction:0{digits}d}" if digits else text


def _time_value(text: str, unit: str) -> int:
    clock, _, fraction = text.partition(".")
    hours, minutes, seconds = map(int, clock.split(":"))
    return (hours * 3600 + minutes * 60 + seconds) * _UNITS[unit] + int(fraction or 0)


def from_json_values(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Inverse of :func:`to_json_values`.

    Raises:
        TypeError: a type that cannot be represented.
    """
    if isinstance(kind, pa.BaseExtensionType):
        return kind.wrap_array(from_json_values(values, kind.storage_type))
    if pa.types.is_dictionary(kind):
        return from_json_values(values, kind.value_type).dictionary_encode().cast(kind)
    nulls = pa.array([value is None for value in values], pa.bool_())
    if pa.types.is_struct(kind):
        fields = list(kind)
        children = [from_json_values([None if v is None else v[f.name] for v in values], f.type) for f in fields]
        return pa.StructArray.from_arrays(children, fields=fields, mask=nulls)
    if pa.types.is_map(kind):
        pairs = [pair for value in values if value is not None for pair in value]
        keys = from_json_values([pair["key"] for pair in pairs], kind.key_type)
        items = from_json_values([pair["value"] for pair in pairs], kind.item_type)
        return pa.MapArray.from_arrays(_offsets(values, pa.int32()), keys, items, type=kind)
    if pa.types.is_fixed_size_list(kind):
        filler = [None] * kind.list_size
        flat = [item for value in values for item in (filler if value is None else value)]
        return pa.FixedSizeListArray.from_arrays(from_json_values(flat, kind.value_type), type=kind, mask=nulls)
    if _is_list(kind):
        flat = [item for value in values if value is not None for item in value]
        children_of = pa.LargeListArray if pa.types.is_large_list(kind) else pa.ListArray
        offsets = _offsets(values, pa.int64() if pa.types.is_large_list(kind) else pa.int32())
        return children_of.from_arrays(offsets, from_json_values(flat, kind.value_type), type=kind)
    return _leaves_from_json(values, kind)


def _offsets(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """The start of each list, then the end of the last; null for a null list."""
    ends = np.cumsum([0, *(0 if value is None else len(value) for value in values)]).tolist()
    return pa.array([None if v is None else end for v, end in zip(values, ends[:-1], strict=True)] + ends[-1:], kind)


def _leaves_from_json(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    if pa.types.is_floating(kind):
        return pa.array([None if v is None else float(v) for v in values], kind)
    if _is_plain(kind):
        return pa.array(values, kind)
    if _is_bytes(kind):
        return pa.array([None if v is None else base64.b64decode(v) for v in values], kind)
    if pa.types.is_decimal(kind):
        return pa.array([None if v is None else Decimal(v) for v in values], kind)
    if pa.types.is_duration(kind):
        return pa.array(values, pa.int64()).cast(kind)
    if pa.types.is_time(kind):
        integers = [None if v is None else _time_value(v, kind.unit) for v in values]
        return pa.array(integers, pa.int32() if pa.types.is_time32(kind) else pa.int64()).cast(kind)
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        return _from_texts_or_integers(values, kind)
    raise TypeError(f"JSON cannot stand for values of type {kind}")


def _from_texts_or_integers(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    texts = pa.array([v if isinstance(v, str) else None for v in values], pa.string()).cast(_in_utc(kind)).cast(kind)
    narrow = pa.int32() if pa.types.is_date32(kind) else pa.int64()
    integers = pa.array([v if isinstance(v, int) else None for v in values], narrow).cast(kind)
    return pc.coalesce(texts, integers)
