"""Writes a published file in one pass: reads rows from staged units or parts, checks, writes and hashes them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa

from pipeline import layout
from pipeline.commit.sealed import seal, unseal
from pipeline.errors import DamagedError, SinkError, log_failure
from pipeline.reporting.aggregate import Aggregate, Aggregator
from pipeline.sinks.formats import HashedFile, PartFormat
from pipeline.sinks.stored_rows import PlaceReader, check_object
from pipeline.storage.damage import Damage, FoundDamageError
from pipeline.storage.protocol import Storage
from pipeline.storage.retry import map_ahead, with_retries
from pipeline.types import CommitRecord, Place


@dataclass(frozen=True, kw_only=True)
class PartRecord:
    """A written file: its name in its folder, number of rows, size in bytes, and SHA-256."""

    name: str
    rows: int
    bytes: int
    sha256: str

    @classmethod
    def of(cls, key: str, rows: int, written: HashedFile) -> PartRecord:
        """From a file that has just been written under ``key``."""
        return cls(name=key.rsplit("/", 1)[-1], rows=rows, bytes=written.tell(), sha256=written.sha256)


@dataclass(frozen=True, kw_only=True)
class PartDamage:
    """The result of a file that could not be written: the damaged objects that it was to be made from."""

    damages: tuple[Damage, ...]


@dataclass(frozen=True, kw_only=True)
class Rows:
    """Description of a published table (output rows or dead letters). Picklable.

    Attributes:
        format: format of its files.
        schema: schema of its rows.
        inputs: number of its columns that are the input's; these come first.
        prefix: prefix of the names of the other columns.
        derived_ids: whether row ids are derived from file and row number.
        aggregated: whether an aggregate is kept of each file, for the report.
    """

    format: PartFormat
    schema: pa.Schema
    inputs: int
    prefix: str
    derived_ids: bool
    aggregated: bool = False

    def reader(self, storage: Storage) -> PlaceReader:
        """A reader of such rows in an output."""
        return PlaceReader(storage, self.schema, self.inputs, self.prefix)


@dataclass(frozen=True, kw_only=True)
class OutputTables:
    """The part of a run that publishing needs: its storage and its two tables.

    Attributes:
        storage: the output.
        rows: the table of output rows.
        dead_rows: the dead-letter table.
        target_part_bytes: staged bytes per part, approximately.
    """

    storage: Storage
    rows: Rows
    dead_rows: Rows
    target_part_bytes: int


@dataclass(frozen=True, kw_only=True)
class PartJob:
    """A part file to write from the rows at some places, in order. Picklable: any process can write it.

    With ``copy_of``, that part is copied instead, after a check of its SHA-256 (``copy_sha256``).
    """

    storage: Storage
    rows: Rows
    key: str
    pieces: tuple[Place, ...] = ()
    copy_of: str | None = None
    copy_sha256: str = ""


def staged_place(record: CommitRecord, *, derived_ids: bool) -> Place:
    """The staged output rows of a committed unit, with the checksum and row numbers to check."""
    return Place(
        key=layout.staged_rows(record.unit_id, record.attempt, record.rows_sha256),
        first_row=0,
        num_rows=record.output_rows,
        sha256=record.rows_sha256,
        input=record.stretches if derived_ids else None,
    )


def staged_dead_place(record: CommitRecord) -> Place:
    """The staged dead letters of a committed unit."""
    key = layout.staged_dead(record.unit_id, record.attempt, record.dead_sha256)
    return Place(key=key, first_row=0, num_rows=record.failed_rows, sha256=record.dead_sha256)


def staged_keys(record: CommitRecord) -> tuple[str, ...]:
    """Keys of the staged objects of a committed unit."""
    rows = layout.staged_rows(record.unit_id, record.attempt, record.rows_sha256)
    if not record.failed_rows:
        return (rows,)
    return rows, layout.staged_dead(record.unit_id, record.attempt, record.dead_sha256)


def write_part(job: PartJob) -> PartRecord | PartDamage:
    """Write one part file; each piece is checked as it is read, and few are in memory at a time."""
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
    """All damage among these places; each damaged object once."""
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
    """Write one file from any number of pieces; ``pieces`` is called again for every attempt.

    Raises:
        FoundDamageError: a piece differs from the committed one; no file is written.
    """
    return with_retries(lambda: _write(storage, rows, key, pieces()), _what(storage, key))


def _what(storage: Storage, key: str) -> str:
    return f"writing {storage.url}/{key}"


def _copy(storage: Storage, source: str, key: str, rows: int, sha256: str) -> PartRecord:
    with storage.create(key) as file:  # a copy whose check fails is discarded
        hashed = HashedFile(file)
        check_object(storage, source, sha256, copy=hashed)
    return PartRecord.of(key, rows, hashed)


def _write(storage: Storage, rows: Rows, key: str, pieces: Iterable[Place]) -> PartRecord:
    reader = rows.reader(storage)
    aggregator = PartAggregator(rows.prefix) if rows.aggregated else None
    count = 0
    with storage.create(key) as file:
        hashed = HashedFile(file)
        writer = rows.format.open(hashed, rows.schema)
        for piece in pieces:
            count += piece.num_rows
            for table in reader.read(piece):
                writer.write(table)
                if aggregator is not None:
                    aggregator.add(table)
        writer.close()
    record = PartRecord.of(key, count, hashed)
    if aggregator is not None:
        aggregator.put(storage, record.sha256)
    return record


_LOG = logging.getLogger(__name__)


class PartAggregator:
    """Aggregates the rows of a part that is being written."""

    def __init__(self, prefix: str) -> None:
        self._aggregator: Aggregator | None = Aggregator(prefix)

    def add(self, table: pa.Table) -> None:
        """Count rows. An error is logged, and the part gets no aggregate."""
        try:
            if self._aggregator is not None:
                self._aggregator.add(table)
        except Exception as error:
            self._give_up(error)

    def put(self, storage: Storage, sha256: str) -> None:
        """Keep the aggregate of the part with this checksum."""
        try:
            if self._aggregator is not None:
                storage.put(layout.part_aggregate(sha256), seal(self._aggregator.result().to_dict()))
        except Exception as error:
            self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        self._aggregator = None
        log_failure(_LOG, "a part's rows could not be aggregated; reports will read the part", error)


def load_aggregates(storage: Storage, parts: Iterable[tuple[str, int]]) -> Iterator[Aggregate | None]:
    """For each part, given by checksum and rows, its aggregate; None if there is none that this version can use."""

    def load(part: tuple[str, int]) -> Aggregate | None:
        sha256, rows = part
        try:
            aggregate = Aggregate.from_dict(unseal(storage.read(layout.part_aggregate(sha256))))
        except (OSError, SinkError, DamagedError, LookupError, TypeError, ValueError, AttributeError):
            return None
        return aggregate if aggregate is not None and aggregate.rows == rows else None

    return map_ahead(load, parts)


def sweep_aggregates(storage: Storage, published: Iterable[str]) -> None:
    """Remove aggregates of parts that are published no more. ``published``: checksums of those that are."""
    kept = {layout.part_aggregate(sha256) for sha256 in published}
    storage.delete_objects([key for key in storage.keys(f"{layout.REPORT}/parts") if key not in kept])
