"""Staged units: writes and reads a unit's tables as Arrow files in the state folder, named by their content."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from pipeline.storage.damage import Damage, FoundDamageError, as_damage
from pipeline.storage.protocol import Storage


@dataclass(frozen=True, kw_only=True)
class Staged:
    """A staged object: its size in bytes and its SHA-256."""

    bytes: int
    sha256: str


def stage(storage: Storage, key: Callable[[str], str], table: pa.Table) -> Staged:
    """Put a table as one object, under a key that follows from its content."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_table(table.combine_chunks())
    data = sink.getvalue().to_pybytes()
    sha256 = hashlib.sha256(data).hexdigest()
    storage.put(key(sha256), data)
    return Staged(bytes=len(data), sha256=sha256)


def load_staged(storage: Storage, key: str, sha256: str | None) -> pa.Table:
    """Read a staged table. The object is read once, so the bytes that are decoded are those that were checked.

    ``sha256``: None skips the check.

    Raises:
        FoundDamageError: it is missing, cannot be read, or has changed since it was staged.
    """
    with as_damage(key):
        data = storage.read(key)
    if sha256 is not None and hashlib.sha256(data).hexdigest() != sha256:
        fault = "altered (its checksum differs)" if data.strip(b"\0") else f"{len(data)} bytes of nothing"
        raise FoundDamageError([Damage(key=key, fault=fault)])
    try:
        with pa.ipc.open_file(pa.BufferReader(data)) as reader:
            return reader.read_all()
    except (pa.ArrowException, OSError) as error:
        raise FoundDamageError([Damage(key=key, fault=f"not a table ({error})")]) from error


def data_checksum(table: pa.Table, columns: Sequence[str]) -> str:
    """SHA-256 of the named columns' values; independent of chunks and slices, and unchanged by writing and reading."""
    digest = hashlib.sha256()
    for name in columns:
        digest.update(f"{name}\x1f{table.num_rows}\x1f".encode())
        _hash_values(digest, table[name].combine_chunks())
    return digest.hexdigest()


def _hash_values(digest: Any, array: pa.Array) -> None:
    """Hash which values are null, then the values that are not, recursively.

    Buffers cannot be hashed directly: bytes under nulls, before an offset or after the end are arbitrary, and Parquet
    changes the names of list items.
    """
    kind = array.type
    if isinstance(array, pa.ExtensionArray):
        array, kind = array.storage, array.storage.type
    if pa.types.is_dictionary(kind):
        array = array.cast(kind.value_type)
        kind = array.type
    digest.update(array.is_valid().cast(pa.uint8()).to_numpy().tobytes())
    array = array.drop_null()
    if pa.types.is_struct(kind):
        for child in array.flatten():
            _hash_values(digest, child)
    elif pa.types.is_map(kind):
        _hash_lengths(digest, array.offsets)
        _hash_values(digest, array.keys)
        _hash_values(digest, array.items)
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        _hash_lengths(digest, array.offsets)
        _hash_values(digest, array.flatten())
    elif pa.types.is_fixed_size_list(kind):
        _hash_values(digest, array.flatten())
    else:
        # A flat type without nulls; ``take`` copies the values into new buffers.
        flat = array.take(pa.array(np.arange(len(array))))
        batch = pa.RecordBatch.from_arrays([flat], names=["v"])
        digest.update(batch.serialize())


def _hash_lengths(digest: Any, offsets: pa.Array) -> None:
    digest.update(np.diff(offsets.to_numpy()).astype(np.int64).tobytes())


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
