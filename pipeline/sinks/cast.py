"""Casts tables read from files back to exact Arrow types, as files do not keep every type."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc


def cast_table(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """``table`` with the columns and types of ``schema``; missing columns are null.

    Raises:
        pa.ArrowException: a value does not fit.
    """
    there = dict(zip(table.column_names, table.columns, strict=True))
    arrays = [
        _cast(there[field.name], field.type) if field.name in there else _nulls(table.num_rows, field)
        for field in schema
    ]
    return pa.table(arrays, schema=schema)


def _nulls(rows: int, field: pa.Field) -> pa.Array:
    return pa.nulls(rows, field.type)


def _cast(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    if column.type == kind:
        return column
    if pa.types.is_run_end_encoded(column.type):
        return _cast(pc.run_end_decode(column), kind)
    if pa.types.is_dictionary(column.type) and pa.types.is_nested(column.type.value_type):
        return pa.chunked_array([chunk.dictionary_decode() for chunk in column.chunks], column.type.value_type).cast(
            kind
        )
    if pa.types.is_list_view(column.type) or pa.types.is_large_list_view(column.type):
        return pa.chunked_array(map(_without_view, column.chunks)).cast(kind)
    if pa.types.is_dictionary(kind) and not pa.types.is_dictionary(column.type):
        column = column.dictionary_encode()
    return column.cast(kind)


def _without_view(lists: pa.Array) -> pa.Array:
    """Lists in place of list views. Arrow's own cast gives too few offsets if a list is null."""
    sizes = pc.fill_null(pc.list_value_length(lists), 0).cast(pa.int64())
    offsets = pa.concat_arrays([pa.array([0], pa.int64()), pc.cumulative_sum(sizes)])
    return pa.LargeListArray.from_arrays(offsets, lists.flatten(), mask=lists.is_null())
