"""Published files: from rows wherever they are to one file, proven, written and hashed in one pass."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import pyarrow as pa

from pipeline import layout
from pipeline.damage import Damage, FoundDamageError
from pipeline.sinks.base import PartFormat
from pipeline.sinks.hashed import HashedFile
from pipeline.sinks.stored_rows import PlaceReader, check_object
from pipeline.storage.protocol import Storage
from pipeline.storage.retry import with_retries
from pipeline.types import CommitRecord, Place

__all__ = [
    "OutputTables",
    "PartDamage",
    "PartJob",
    "PartRecord",
    "Rows",
    "check_pieces",
    "staged_dead_place",
    "staged_keys",
    "staged_place",
    "write_part",
    "write_rows",
]


@dataclass(frozen=True, kw_only=True)
class PartRecord:
    """A file: its name in its folder, rows, bytes, and SHA-256 of the bytes."""

    name: str
    rows: int
    bytes: int
    sha256: str

    @classmethod
    def of(cls, key: str, rows: int, written: HashedFile) -> PartRecord:
        """Of a file that has just been written under ``key``."""
        return cls(name=key.rsplit("/", 1)[-1], rows=rows, bytes=written.tell(), sha256=written.sha256)


@dataclass(frozen=True, kw_only=True)
class PartDamage:
    """What is in the place of a file that could not be written: the objects that are not what was committed."""

    damages: tuple[Damage, ...]


@dataclass(frozen=True, kw_only=True)
class Rows:
    """A kind of table. Picklable.

    Attributes:
        format: of its files.
        schema: of its rows.
        inputs: how many of the columns are the input's.
        prefix: of the names of the others.
        derived_ids: whether row ids follow from file and row number.
    """

    format: PartFormat
    schema: pa.Schema
    inputs: int
    prefix: str
    derived_ids: bool

    def reader(self, storage: Storage) -> PlaceReader:
        """Reads such rows from an output."""
        return PlaceReader(storage, self.schema, self.inputs, self.prefix)


@dataclass(frozen=True, kw_only=True)
class OutputTables:
    """What publishing knows of a run: where its output is, and its two tables.

    Attributes:
        storage: the output.
        rows: the table of generations.
        dead_rows: the table of failed rows.
        target_part_bytes: staged bytes of a part, about.
    """

    storage: Storage
    rows: Rows
    dead_rows: Rows
    target_part_bytes: int


@dataclass(frozen=True, kw_only=True)
class PartJob:
    """A part to write: rows from these places, in order, into one file. Picklable: parts can be written anywhere.

    With ``copy_of``, a part that is there already, and is of this checksum, is copied as it is.
    """

    storage: Storage
    rows: Rows
    key: str
    pieces: tuple[Place, ...] = ()
    copy_of: str | None = None
    copy_sha256: str = ""


def staged_place(record: CommitRecord, *, derived_ids: bool) -> Place:
    """Where the output rows of a committed unit are staged, and what is known of them."""
    return Place(
        key=layout.staged_rows(record.unit_id, record.attempt, record.rows_sha256),
        first_row=0,
        num_rows=record.output_rows,
        sha256=record.rows_sha256,
        file_key=record.file_key if derived_ids else None,
        file_row=record.first_row,
        input_rows=record.num_rows,
    )


def staged_dead_place(record: CommitRecord) -> Place:
    """Where its dead letters are."""
    key = layout.staged_dead(record.unit_id, record.attempt, record.dead_sha256)
    return Place(key=key, first_row=0, num_rows=record.failed_rows, sha256=record.dead_sha256)


def staged_keys(record: CommitRecord) -> tuple[str, ...]:
    """The objects that a record speaks of."""
    rows = layout.staged_rows(record.unit_id, record.attempt, record.rows_sha256)
    if not record.failed_rows:
        return (rows,)
    return rows, layout.staged_dead(record.unit_id, record.attempt, record.dead_sha256)


def write_part(job: PartJob) -> PartRecord | PartDamage:
    """Write one file from its pieces, a few of them in memory at a time; each is proven as it is read.

    Raises:
        SinkError: it failed repeatedly.
    """
    try:
        if job.copy_of is not None:
            source, rows = job.copy_of, sum(piece.num_rows for piece in job.pieces)
            return with_retries(
                lambda: _copy(job.storage, source, job.key, rows, job.copy_sha256), _what(job.storage, job.key)
            )
        return write_rows(job.storage, job.rows, job.key, lambda: job.pieces)
    except FoundDamageError as error:
        if job.copy_of is not None:
            return PartDamage(damages=error.damages)
        return PartDamage(damages=check_pieces(job.storage, job.rows, job.pieces))


def check_pieces(storage: Storage, rows: Rows, pieces: Iterable[Place]) -> tuple[Damage, ...]:
    """All damage that there is among some places; each object is named once."""
    reader = rows.reader(storage)
    found: dict[str, Damage] = {}
    for piece in pieces:
        if piece.key in found:
            continue
        try:
            reader.check(piece)
        except FoundDamageError as error:
            found |= {damage.key: damage for damage in error.damages}
    return tuple(found.values())


def write_rows(storage: Storage, rows: Rows, key: str, pieces: Callable[[], Iterable[Place]]) -> PartRecord:
    """Write one file from pieces of which there may be any number; ``pieces`` is called again for another try.

    Raises:
        FoundDamageError: a piece is not what was committed; nothing is visible of the file.
        SinkError: it failed repeatedly.
    """
    return with_retries(lambda: _write(storage, rows, key, pieces()), _what(storage, key))


def _what(storage: Storage, key: str) -> str:
    return f"writing {storage.url}/{key}"


def _copy(storage: Storage, source: str, key: str, rows: int, sha256: str) -> PartRecord:
    with storage.create(key) as file:  # a copy that is not proven never gets its name
        hashed = HashedFile(file)
        check_object(storage, source, sha256, copy=hashed)
    return PartRecord.of(key, rows, hashed)


def _write(storage: Storage, rows: Rows, key: str, pieces: Iterable[Place]) -> PartRecord:
    reader = rows.reader(storage)
    count = 0
    with storage.create(key) as file:
        hashed = HashedFile(file)
        writer = rows.format.open(hashed, rows.schema)
        for piece in pieces:
            count += piece.num_rows
            for table in reader.read(piece):
                writer.write(table)
        writer.close()
    return PartRecord.of(key, count, hashed)
