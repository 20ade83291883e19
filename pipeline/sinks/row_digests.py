"""Digests of single input rows, so that some rows of a unit can be compared without the others."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

import pyarrow as pa

from pipeline.sinks.staged import data_checksum

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
    """Python values; of a cell that has none (text that is not UTF-8, a time that Python lacks) a checksum."""
    try:
        return column.to_pylist()
    except Exception:  # a time zone that is not known is a KeyError
        return [_value(column, i) for i in range(len(column))]


def _value(column: pa.ChunkedArray, row: int) -> object:
    try:
        return column[row].as_py()
    except Exception:
        return data_checksum(pa.table([column.slice(row, 1)], names=[""]), [""])


def digest_of_rows(digests: bytes, rows: Iterable[int]) -> str:
    """SHA-256 over the digests of the rows with these numbers, in this order."""
    whole = hashlib.sha256()
    for row in rows:
        whole.update(digests[row * _BYTES : (row + 1) * _BYTES])
    return whole.hexdigest()
