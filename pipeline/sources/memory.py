"""Tables in memory become a Parquet file beside the output: one path for all sources, O(1) memory after it.

The file is named by its content, so a re-run with the same rows finds the same source and a re-run with
other rows is noticed.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline import layout
from pipeline.errors import SourceError
from pipeline.sinks.staging import data_checksum
from pipeline.sources.parquet import ParquetSource
from pipeline.sources.tabulate import infer_schema, tabulate
from pipeline.storage import Storage
from pipeline.types import SourceFile

__all__ = ["MEMORY_KEY", "spool", "tables_of"]

MEMORY_KEY = "rows"
"""File key, hence beginning of the row ids, of sources without files."""
_HASH_ROWS = 4096


def tables_of(data: Any) -> Iterator[pa.Table]:
    """Tables of one schema from any in-memory (or lazily loaded) source.

    Raises:
        SourceError: not a kind of source that is known.
    """
    if isinstance(data, pa.RecordBatch):
        data = pa.Table.from_batches([data])
    if isinstance(data, pa.Table):
        yield data
    elif _is(data, "datasets", "Dataset"):
        arrow = data.with_format("arrow")
        yield from (arrow[i : i + _HASH_ROWS] for i in range(0, max(1, len(arrow)), _HASH_ROWS))
    elif _is(data, "ray.data", "Dataset"):
        yield from data.iter_batches(batch_size=_HASH_ROWS, batch_format="pyarrow")
    elif _is(data, "pandas", "DataFrame"):
        yield pa.Table.from_pandas(data, preserve_index=None)
    elif isinstance(data, Sequence) and not isinstance(data, (str, bytes)):
        rows = [{"prompt": row} if isinstance(row, str) else row for row in data]
        yield tabulate(rows, infer_schema(rows))
    else:
        raise SourceError(
            f"input of type {type(data).__module__}.{type(data).__qualname__}: not a known kind of source. Pass a "
            "path, a list of dicts, a pyarrow.Table, a pandas frame, a datasets.Dataset or a ray.data.Dataset."
        )


def _is(data: Any, package: str, name: str) -> bool:
    """Whether ``data`` is of a class of that name from that package, without importing the package."""
    return any(c.__name__ == name and f"{c.__module__}.".startswith(f"{package}.") for c in type(data).__mro__)


def spool(data: Any, storage: Storage) -> ParquetSource:
    """Write an in-memory source into the output's state folder, unless it is there already.

    Raises:
        SourceError: unknown kind, or tables of different schemas.
    """
    aside = f"{layout.INPUT}/incoming.parquet"
    digest = hashlib.blake2b(digest_size=12)
    tables = tables_of(data)
    first = next(tables, None)
    if first is None:
        raise SourceError("the input has no tables. Pass a source with a schema.")
    schema = first.schema
    if len(set(schema.names)) < len(schema.names):
        raise SourceError(f"the input has several columns of one name: {schema.names}. Rename them.")
    digest.update(schema.remove_metadata().to_string().encode())
    try:
        with storage.create(aside) as file, pq.ParquetWriter(file, schema, compression="zstd") as writer:
            for table in itertools.chain([first], tables):
                writer.write_table(table.cast(schema))
                _hash_rows(digest, table)
    except (pa.ArrowException, ValueError) as error:
        raise SourceError(f"the input cannot be written as Parquet ({error}). Cast or drop the column.") from error
    key = f"{layout.INPUT}/{MEMORY_KEY}-{digest.hexdigest()}.parquet"
    if not storage.exists(key):
        with storage.create(key) as file, storage.open(aside) as written:
            while chunk := written.read(2**22):
                file.write(chunk)
    storage.delete(aside)
    path = f"{storage.url}/{key}"
    return ParquetSource.over([SourceFile(key=MEMORY_KEY, path=path, digest=digest.hexdigest())])


def _hash_rows(digest: Any, table: pa.Table) -> None:
    """Hash the values; how they are chunked must not matter."""
    for begin in range(0, table.num_rows, _HASH_ROWS):
        digest.update(data_checksum(table.slice(begin, _HASH_ROWS), table.column_names).encode())
