"""Which columns a Delta table can hold when Parquet files are taken into it as they are.

The protocol's types: https://github.com/delta-io/delta/blob/master/PROTOCOL.md#schema-serialization-format
"""

from __future__ import annotations

import pyarrow as pa

from pipeline.errors import ConfigError

__all__ = ["check_columns", "delta_schema"]

_NOT_IN_NAMES = frozenset(" ,;{}()\n\t=")
"""Characters that column names may have only where a table maps them, which is not done here."""
_PLAIN = (pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.bool_(), pa.string(),
          pa.large_string(), pa.string_view(), pa.binary(), pa.large_binary(), pa.binary_view(), pa.date32(),
          pa.timestamp("us"))  # fmt: skip


def check_columns(schema: pa.Schema) -> None:
    """Check that each column has a name and a type that Delta has too.

    Raises:
        ConfigError: names the others, and the remedy.
    """
    names = [field.name for field in schema if not _is_named(field)]
    kinds = [f"{field.name}: {field.type}" for field in schema if not _is_held(field.type)]
    if names or kinds:
        rule = "Delta has no unsigned integers, half floats, times, durations, nanoseconds or mapped names"
        raise ConfigError(
            f"a Delta table cannot hold columns {[*names, *kinds]} ({rule}). Rename or cast them in the input, or "
            "leave them out with columns=[...]; of a JSON schema, parse={parsed: {json: true}} writes JSON text."
        )


def _is_named(field: pa.Field) -> bool:
    """Whether a column and all fields in it have names that need no mapping."""
    inside = [field.type.field(i) for i in range(field.type.num_fields)]
    return not _NOT_IN_NAMES & set(field.name) and all(map(_is_named, inside))


def _is_held(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        return _is_held(kind.value_type)
    if pa.types.is_struct(kind):
        return kind.num_fields > 0 and all(_is_held(field.type) for field in kind)
    if pa.types.is_map(kind):
        return _is_held(kind.key_type) and _is_held(kind.item_type)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _is_held(kind.value_type)
    if pa.types.is_timestamp(kind):
        return kind.unit == "us" and kind.tz in (None, "UTC")
    return kind in _PLAIN or pa.types.is_decimal128(kind)


def delta_schema(schema: pa.Schema) -> pa.Schema:
    """The columns without metadata, and all of them nullable, so that others may write to the table too."""
    return pa.schema([pa.field(field.name, field.type) for field in schema])
