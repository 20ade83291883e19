"""Staged units: whole, lossless, under deterministic names, where no reader of the output looks."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

import pyarrow as pa

from pipeline.errors import SinkError
from pipeline.storage import Storage

__all__ = ["data_checksum", "load_staged", "stage", "with_retries"]

_ATTEMPTS = 5
_FIRST_WAIT_SECONDS = 0.2

_T = TypeVar("_T")


def stage(storage: Storage, key: str, table: pa.Table) -> int:
    """Put a table under ``key`` in one piece; bytes written.

    Raises:
        SinkError: it failed repeatedly.
    """
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_table(table.combine_chunks())
    data = sink.getvalue()

    def put() -> int:
        with storage.create(key) as file:
            file.write(data)
        return data.size

    return with_retries(put, f"writing {storage.url}/{key}")


def load_staged(storage: Storage, key: str) -> pa.Table:
    """Read a staged table."""
    with storage.open(key) as file, pa.ipc.open_file(pa.PythonFile(file)) as reader:
        return reader.read_all()


def with_retries(action: Callable[[], _T], what: str, wait: Callable[[float], None] = time.sleep) -> _T:
    """Do ``action``, up to five times with growing pauses while it raises OSError.

    Raises:
        SinkError: the last attempt failed too; names ``what``.
    """
    for attempt in range(_ATTEMPTS):
        try:
            return action()
        except OSError as error:
            if attempt == _ATTEMPTS - 1:
                raise SinkError(
                    f"{what} failed {_ATTEMPTS} times, last with {type(error).__name__}: {error}. What is committed "
                    "stays; mend the storage (space, permissions, network) and run again to continue."
                ) from error
            wait(_FIRST_WAIT_SECONDS * 2**attempt)
    raise AssertionError("unreachable")


def data_checksum(table: pa.Table, columns: Sequence[str]) -> str:
    """SHA-256 of the named columns' values; independent of chunks, slices and compression."""
    digest = hashlib.sha256()
    for name in columns:
        # Taking the rows copies values into fresh buffers: no offsets, no bits beyond the end, no garbage.
        column = table[name].combine_chunks().take(pa.array(range(table.num_rows), pa.int64()))
        sink = pa.BufferOutputStream()
        batch = pa.RecordBatch.from_arrays([column], names=[name])
        with pa.ipc.new_stream(sink, batch.schema) as writer:
            writer.write_batch(batch)
        digest.update(sink.getvalue())
    return digest.hexdigest()
