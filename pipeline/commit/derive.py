"""Publishes rows that were made from another output: no units and no ledger, one publication, all of it or nothing.

The steps are those of :mod:`pipeline.commit.publish`, and a kill leaves the same: files without a visible name, which
the next run removes, or a decided publication, which it completes. In the list of units each part with rows is one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass

import pyarrow as pa

from pipeline import layout
from pipeline.commit.index import Index, PublishedUnit
from pipeline.commit.lease import Lease
from pipeline.commit.lists import write_units
from pipeline.commit.manifest import Manifest, Publication
from pipeline.commit.part_files import PartRecord
from pipeline.commit.publish import decide
from pipeline.sinks.formats import HashedFile, PartFormat, PartWriter
from pipeline.storage.protocol import Storage
from pipeline.storage.retry import with_retries


@dataclass(frozen=True, kw_only=True)
class DerivedTables:
    """The two tables to publish: rows, and notes of the rows that were left out.

    Attributes:
        format: of the files.
        schema, dropped_schema: of the tables.
        pieces: reads ``(rows, notes)`` in order, a bounded number at a time; called again for every attempt.
        part_rows: rows of a part.
    """

    format: PartFormat
    schema: pa.Schema
    dropped_schema: pa.Schema
    pieces: Callable[[], Iterable[tuple[pa.Table, pa.Table]]]
    part_rows: int


def publish_derived(
    storage: Storage, manifest: Manifest, tables: DerivedTables, fingerprint: str, *, index: Index, lease: Lease
) -> Manifest:
    """Write the tables and publish them; returns the new manifest.

    ``fingerprint``: hash of everything that the rows follow from; ``index``: an empty one.

    Raises:
        LeaseLostError: another run took over.
    """
    number, suffix = manifest.next_number, tables.format.suffix
    folder = layout.publishing(number, lease.epoch)
    dropped_key = layout.dead_letters(number, lease.epoch) + suffix

    def write() -> tuple[tuple[PartRecord, ...], PartRecord | None]:
        storage.delete(folder)  # an attempt that failed may have left parts there
        with ExitStack() as stack:
            rows = stack.enter_context(_Parts(storage, tables, tables.schema, _part_key(folder, suffix)))
            notes = stack.enter_context(_Parts(storage, tables, tables.dropped_schema, lambda part: dropped_key))
            for kept, dropped in tables.pieces():
                lease.check()
                if kept.num_rows:  # else it might begin a part that stays without rows
                    rows.write(kept)
                if dropped.num_rows:
                    notes.write(dropped, rotate=False)
            return rows.close(at_least_one=True), next(iter(notes.close()), None)

    parts, dropped = with_retries(write, f"writing {storage.url}/{folder}")

    def units() -> Iterable[PublishedUnit]:
        for part in parts:
            if not part.rows:
                continue
            unit_id = hashlib.blake2b(f"{fingerprint}/{part.name}".encode(), digest_size=16).hexdigest()
            yield PublishedUnit(unit_id=unit_id, attempt=1, rows=part.rows, failed=0)

    publication = Publication(
        number=number,
        position=manifest.next_position,
        revision=0,
        epoch=lease.epoch,
        format=tables.format.name,
        schema=tables.schema,
        dead_schema=tables.dropped_schema,
        parts=parts,
        dead_letters=dropped,
        units=write_units(storage, layout.units(number, lease.epoch), units),
    )
    return decide(storage, manifest, publication, index, lease)


def _part_key(folder: str, suffix: str) -> Callable[[int], str]:
    return lambda part: f"{folder}/{layout.part(part)}{suffix}"


class _Parts:
    """Writes a table as files, one after the other. A block that ends with an error leaves its last file unwritten."""

    def __init__(
        self, storage: Storage, tables: DerivedTables, schema: pa.Schema, key: Callable[[int], str]
    ) -> None:  # fmt: skip
        self._storage, self._tables, self._schema, self._key = storage, tables, schema, key
        self._done: list[PartRecord] = []
        self._open: tuple[ExitStack, HashedFile, PartWriter] | None = None
        self._rows = 0

    def __enter__(self) -> _Parts:
        return self

    def __exit__(self, *error: object) -> None:
        if self._open is not None:
            self._open[0].__exit__(*error)  # type: ignore[arg-type]

    def write(self, table: pa.Table, *, rotate: bool = True) -> None:
        """Append rows."""
        (self._open or self._begin())[2].write(table)
        self._rows += table.num_rows
        if rotate and self._rows >= self._tables.part_rows:
            self._end()

    def close(self, *, at_least_one: bool = False) -> tuple[PartRecord, ...]:
        """Finish the last file; the records of all."""
        if self._open is None and at_least_one and not self._done:
            self._begin()
        if self._open is not None:
            self._end()
        return tuple(self._done)

    def _begin(self) -> tuple[ExitStack, HashedFile, PartWriter]:
        stack = ExitStack()
        hashed = HashedFile(stack.enter_context(self._storage.create(self._key(len(self._done)))))
        self._open = stack, hashed, self._tables.format.open(hashed, self._schema)
        return self._open

    def _end(self) -> None:
        assert self._open is not None
        stack, hashed, writer = self._open
        writer.close()
        self._open = None
        stack.close()
        self._done.append(PartRecord.of(self._key(len(self._done)), self._rows, hashed))
        self._rows = 0
