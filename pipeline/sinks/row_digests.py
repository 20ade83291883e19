"""Digests of single input rows, so that some rows of a unit can be compared without the others."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

import pyarrow as pa

__all__ = ["digest_of_rows", "row_digests"]

_BYTES = 16


def row_digests(table: pa.Table, columns: Sequence[str]) -> bytes:
    """The digest of each row's values in these columns, one after the other, 16 bytes each.

    The values count, with the names of their columns; not how Arrow holds them.
    """
    header = "\x1f".join(columns).encode()
    cells = [_values(table[name]) for name in columns]
    rows: Iterable[tuple[object, ...]] = zip(*cells, strict=True) if cells else [()] * table.num_rows
    return b"".join(hashlib.blake2b(header + repr(row).encode(), digest_size=_BYTES).digest() for row in rows)


def _values(column: pa.ChunkedArray) -> list[object]:
    """Python values; of a cell that has none (text that is not UTF-8, times that Python lacks) Arrow's own text."""
    try:
        return column.to_pylist()
    except (ValueError, OverflowError, pa.ArrowException):
        return [_value(cell) for cell in column]


def _value(cell: pa.Scalar) -> object:
    try:
        return cell.as_py()
    except (ValueError, OverflowError, pa.ArrowException):
        buffer = cell.as_buffer() if hasattr(cell, "as_buffer") else None
        return repr(cell) if buffer is None else buffer.to_pybytes()


def digest_of_rows(digests: bytes, rows: Iterable[int]) -> str:
    """SHA-256 over the digests of the rows with these numbers, in this order."""
    whole = hashlib.sha256()
    for row in rows:
        whole.update(digests[row * _BYTES : (row + 1) * _BYTES])
    return whole.hexdigest()
