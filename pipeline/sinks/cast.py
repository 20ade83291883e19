"""Casts tables read from files back to exact Arrow types, as files do not keep every type."""

from __future__ import annotations

import pyarrow as pa

__all__ = ["cast_table"]


def cast_table(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """``table`` with the columns and types of ``schema``; missing columns are null.

    Raises:
        pa.ArrowException: a value does not fit.
    """
    arrays = [
        _cast(table[field.name], field.type) if field.name in table.column_names else _nulls(table.num_rows, field)
        for field in schema
    ]
    return pa.table(arrays, schema=schema)


def _nulls(rows: int, field: pa.Field) -> pa.Array:
    return pa.nulls(rows, field.type)


def _cast(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    if column.type == kind:
        return column
    if pa.types.is_dictionary(kind) and not pa.types.is_dictionary(column.type):
        column = column.dictionary_encode()
    return column.cast(kind)
