"""Writes in-memory input to a Parquet file in the output's state folder, so that tasks can read it like any file.

The file is named by its content: a re-run with the same rows finds the same source, and one with other rows is noticed.
"""

from __future__ import annotations

import hashlib
import itertools
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline import layout
from pipeline.damage import FoundDamageError
from pipeline.errors import SourceError
from pipeline.sinks.cast import cast_table
from pipeline.sinks.hashed import HashedFile
from pipeline.sinks.staged import data_checksum
from pipeline.sinks.stored_rows import check_object
from pipeline.sources.base import NO_ROWS
from pipeline.sources.formats.parquet import ParquetSource
from pipeline.sources.identity import stamp_now
from pipeline.sources.names import check_names
from pipeline.sources.tabulate import infer_columns, tabulate
from pipeline.sources.types import plain_schema
from pipeline.storage.protocol import Storage
from pipeline.storage.urls import join
from pipeline.types import SourceFile

__all__ = ["MEMORY_KEY", "spool", "tables_of"]

MEMORY_KEY = "rows"
"""File key of in-memory input; its row ids begin with it."""
_FILE = "rows.parquet"
_HASH_ROWS = 4096
_ROW_GROUP_ROWS = 16384


def tables_of(data: Any) -> Iterator[pa.Table]:
    """Tables of one schema from any in-memory (or lazily loaded) source.

    Raises:
        SourceError: an unknown kind of input.
    """
    if isinstance(data, pa.RecordBatch):
        data = pa.Table.from_batches([data])
    if isinstance(data, pa.Table):
        yield data
    elif _is(data, "datasets", "Dataset"):
        arrow = data.with_format("arrow")
        yield from (arrow[i : i + _HASH_ROWS] for i in range(0, max(1, len(arrow)), _HASH_ROWS))
    elif _is(data, "datasets", "IterableDataset"):
        yield from data.with_format("arrow").iter(batch_size=_HASH_ROWS)
    elif _is(data, "ray.data", "Dataset"):
        yield from data.iter_batches(batch_size=_HASH_ROWS, batch_format="pyarrow")
    elif _is(data, "pandas", "DataFrame"):
        yield _of_frame(data)
    elif isinstance(data, Sequence) and not isinstance(data, (str, bytes)):
        rows = [{"prompt": row} if isinstance(row, str) else row for row in data]
        yield tabulate(rows, infer_columns(rows))
    else:
        raise SourceError(
            f"input of type {type(data).__module__}.{type(data).__qualname__}: not a known kind of source. Pass a "
            "path, a list of dicts, a pyarrow.Table, a pandas frame, a datasets.Dataset or a ray.data.Dataset."
        )


def _is(data: Any, package: str, name: str) -> bool:
    """Whether ``data`` is of a class of that name from that package, without importing the package."""
    return any(c.__name__ == name and f"{c.__module__}.".startswith(f"{package}.") for c in type(data).__mro__)


def _of_frame(frame: Any) -> pa.Table:
    """The table of a pandas frame; if a column mixes types, rows whose cells do not fit become bad rows."""
    try:
        return pa.Table.from_pandas(frame, preserve_index=None)
    except (pa.ArrowException, OverflowError, TypeError):
        rows = frame.to_dict("records")
        return tabulate(rows, infer_columns(rows))


def spool(data: Any, storage: Storage, options: Mapping[str, Any]) -> ParquetSource:
    """Write in-memory input into the output's state folder, unless it is there already; returns its source.

    Args:
        data: see :func:`tables_of`.
        storage: the output.
        options: keyword arguments of the output's file system, with which tasks will read it.

    Raises:
        SourceError: unknown kind, or tables of different schemas.
    """
    check_names(_given_names(data), "the input")
    aside = f"{layout.INPUT}/{uuid.uuid4().hex}"
    tables = tables_of(data)
    first = next(tables, None)
    if first is None:
        raise SourceError(f"input of type {type(data).__name__}: {NO_ROWS}")
    schema = plain_schema(first.schema)
    if len(set(schema.names)) < len(schema.names):
        raise SourceError(f"the input has several columns of one name: {schema.names}. Rename them.")
    try:
        digest, sha256 = _write(storage, f"{aside}/{_FILE}", schema, itertools.chain([first], tables))
    except (pa.ArrowException, ValueError) as error:
        raise SourceError(f"the input cannot be written as Parquet ({error}). Cast or drop the column.") from error
    folder = f"{layout.INPUT}/{MEMORY_KEY}-{digest}"
    if _is_undamaged(storage, f"{folder}/{_FILE}", sha256):
        storage.delete(aside)
    else:
        storage.delete(folder)
        storage.promote(aside, folder)
    path = join(storage.url, f"{folder}/{_FILE}")
    file = SourceFile(key=MEMORY_KEY, path=path, digest=digest, stamp=stamp_now(path, options))
    return ParquetSource.over([file], options, schema)


def _given_names(data: Any) -> list[str]:
    """The names of the columns that a table or frame was given with; rows that are mappings have none yet."""
    names = getattr(data, "column_names", getattr(data, "columns", None))
    return [] if names is None or callable(names) else [str(name) for name in names]


def _is_undamaged(storage: Storage, key: str, sha256: str) -> bool:
    """Whether an earlier run left an undamaged file with these bytes."""
    try:
        check_object(storage, key, sha256)
    except FoundDamageError:
        return False
    return True


def _write(storage: Storage, key: str, schema: pa.Schema, tables: Iterator[pa.Table]) -> tuple[str, str]:
    """Write tables of one schema; returns the hash of their values and the SHA-256 of the file."""
    digest = hashlib.blake2b(schema.remove_metadata().to_string().encode(), digest_size=12)
    with storage.create(key) as file:
        hashed = HashedFile(file)
        with pq.ParquetWriter(hashed, schema, compression="zstd") as writer:
            for table in tables:
                plain = cast_table(table, schema)
                writer.write_table(plain, row_group_size=_ROW_GROUP_ROWS)
                _hash_rows(digest, plain)
    return digest.hexdigest(), hashed.sha256


def _hash_rows(digest: Any, table: pa.Table) -> None:
    """Hash the values, independently of how they are chunked."""
    for begin in range(0, table.num_rows, _HASH_ROWS):
        digest.update(data_checksum(table.slice(begin, _HASH_ROWS), table.column_names).encode())
