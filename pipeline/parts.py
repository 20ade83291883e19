"""Published files: from rows wherever they are to one file, written and hashed in one pass."""

from __future__ import annotations

import hashlib
import io
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, BinaryIO

import pyarrow as pa

from pipeline import layout
from pipeline.sinks.base import PartFormat
from pipeline.sinks.places import read_place
from pipeline.storage import Storage
from pipeline.storage_retrying import with_retries
from pipeline.types import CommitRecord, Place

__all__ = ["HashedFile", "PartJob", "PartRecord", "staged_dead_place", "staged_place", "write_part", "write_rows"]


@dataclass(frozen=True, kw_only=True)
class PartRecord:
    """A file: its name in its folder, rows, bytes, and SHA-256 of the bytes."""

    name: str
    rows: int
    bytes: int
    sha256: str


@dataclass(frozen=True, kw_only=True)
class PartJob:
    """A part to write: rows from these places, in order, into one file. Picklable: parts can be written anywhere.

    With ``copy_of``, a part that is there already is copied as it is.
    """

    storage: Storage
    format: PartFormat
    schema: pa.Schema
    key: str
    pieces: tuple[Place, ...] = ()
    copy_of: str | None = None


def staged_place(record: CommitRecord) -> Place:
    """Where the output rows of a committed unit are staged."""
    key = layout.staged_rows(record.unit_id, record.attempt, record.copy)
    return Place(key=key, first_row=0, num_rows=record.output_rows)


def staged_dead_place(record: CommitRecord) -> Place:
    """Where its dead letters are."""
    key = layout.staged_dead(record.unit_id, record.attempt, record.copy)
    return Place(key=key, first_row=0, num_rows=record.failed_rows)


def write_part(job: PartJob) -> PartRecord:
    """Write one file from its pieces, a few of them in memory at a time.

    Raises:
        SinkError: it failed repeatedly.
    """
    if job.copy_of is not None:
        rows = sum(piece.num_rows for piece in job.pieces)
        return with_retries(lambda: _copy(job.storage, str(job.copy_of), job.key, rows), _what(job.storage, job.key))
    return write_rows(job.storage, job.format, job.schema, job.key, lambda: job.pieces)


def write_rows(
    storage: Storage, format: PartFormat, schema: pa.Schema, key: str, pieces: Callable[[], Iterable[Place]]
) -> PartRecord:
    """Write one file from pieces of which there may be any number; ``pieces`` is called again for another try.

    Raises:
        SinkError: it failed repeatedly.
    """
    return with_retries(lambda: _write(storage, format, schema, key, pieces()), _what(storage, key))


def _what(storage: Storage, key: str) -> str:
    return f"writing {storage.url}/{key}"


def _copy(storage: Storage, source: str, key: str, rows: int) -> PartRecord:
    with storage.create(key) as file:
        hashed = HashedFile(file)
        with storage.open(source) as there:
            shutil.copyfileobj(there, hashed, 2**22)
    return hashed.record(key, rows)


def _write(
    storage: Storage, format: PartFormat, schema: pa.Schema, key: str, pieces: Iterable[Place]
) -> PartRecord:  # fmt: skip
    rows = written = 0
    with storage.create(key) as file:
        hashed = HashedFile(file)
        writer = format.open(hashed, schema)
        for piece in pieces:
            rows += piece.num_rows
            for table in read_place(storage, piece, schema):
                written += table.num_rows
                writer.write(table)
        writer.close()
        if written != rows:
            raise AssertionError(f"{key}: {written} rows were found where the ledger says {rows}")
    return hashed.record(key, rows)


class HashedFile(io.BufferedIOBase):
    """A stream that hashes what passes through it.

    A writer that is collected after a failure still writes its file's end; by then there is nowhere to write to.
    """

    def __init__(self, file: BinaryIO) -> None:
        """``file``: where everything goes."""
        self._file = file
        self._digest = hashlib.sha256()
        self._size = 0

    def writable(self) -> bool:
        """It is."""
        return True

    def write(self, data: Any) -> int:
        """Hash and pass on."""
        data = memoryview(data)
        self._digest.update(data)
        self._size += data.nbytes
        if not self._file.closed:
            self._file.write(data)
        return int(data.nbytes)

    def tell(self) -> int:
        """Bytes that have passed."""
        return self._size

    def record(self, key: str, rows: int) -> PartRecord:
        """Of what has passed, which is the file ``key``."""
        name = key.rsplit("/", 1)[-1]
        return PartRecord(name=name, rows=rows, bytes=self._size, sha256=self._digest.hexdigest())
