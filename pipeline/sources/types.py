"""Which Arrow types can hold the values of which others: the rule for files that are added to a table."""

from __future__ import annotations

import pyarrow as pa

__all__ = ["fits"]

_WIDTHS = {kind: width for width, kind in enumerate((pa.float16(), pa.float32(), pa.float64()))}


def fits(own: pa.DataType, table: pa.DataType) -> bool:
    """Whether values of type ``own`` can be held as ``table`` without loss.

    Whole numbers fit wider ones and floating point numbers of 64 bits (a value beyond 2**53 is an error when it is
    read), floating point numbers wider ones, texts any kind of text; nulls everything.
    """
    if own == table or pa.types.is_null(own):
        return True
    if pa.types.is_integer(own):
        return pa.types.is_float64(table) or (pa.types.is_integer(table) and _is_within(own, table))
    if own in _WIDTHS:
        return table in _WIDTHS and _WIDTHS[own] <= _WIDTHS[table]
    return _is_text(own) and _is_text(table)


def _is_within(own: pa.DataType, table: pa.DataType) -> bool:
    if pa.types.is_signed_integer(own) == pa.types.is_signed_integer(table):
        return own.bit_width <= table.bit_width
    return pa.types.is_signed_integer(table) and own.bit_width < table.bit_width


def _is_text(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        return _is_text(kind.value_type)
    return pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
