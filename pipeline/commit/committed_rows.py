"""Reads the committed rows of an output: published rows, and the staged rows of units that are not published yet."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

import pyarrow as pa

from pipeline.commit.index import Index, IndexedUnit, Inputs
from pipeline.commit.ledger import read_ledger
from pipeline.commit.lists import index_publication, load_watermark
from pipeline.commit.manifest import Manifest, Publication
from pipeline.commit.part_files import staged_dead_place, staged_place
from pipeline.commit.repair import describe_damage, reading_error
from pipeline.commit.run_record import RunState
from pipeline.errors import DamagedError, OutputError
from pipeline.sinks import FORMATS
from pipeline.sinks.stored_rows import PlaceReader, RowStream
from pipeline.storage.damage import Damage, FoundDamageError
from pipeline.storage.protocol import Storage
from pipeline.storage.retry import map_ahead
from pipeline.storage.urls import join
from pipeline.types import CommitRecord, Place


@dataclass(frozen=True, kw_only=True)
class PublishedPart:
    """A published file. Picklable.

    Attributes:
        storage: the output.
        key: its key there.
        format: see :data:`pipeline.sinks.FORMATS`.
        schema: of the rows that are read from it.
        lacks: whether the file lacks columns of ``schema``, which the table gained later; they are null.
    """

    storage: Storage
    key: str
    format: str
    schema: pa.Schema
    lacks: bool = False

    @property
    def path(self) -> str:
        """Its path or URL."""
        return join(self.storage.url, self.key)

    def tables(self) -> Iterator[pa.Table]:
        """Its rows, as tables of bounded size.

        Raises:
            DamagedError: the file is missing or not as it was published.
            OutputError: a run replaced it during the read.
        """
        try:
            with self.storage.open(self.key) as file:
                yield from FORMATS[self.format].tables(file, self.schema)
        except (pa.ArrowException, OSError, ValueError, KeyError) as error:
            if isinstance(error, OSError) and error.errno not in (None, errno.ENOENT, errno.EIO):
                raise  # the store does not answer: no damage
            fault = "missing" if isinstance(error, FileNotFoundError) else f"not as it was published ({error})"
            raise reading_error(self.storage, [Damage(key=self.key, fault=fault)]) from error


def published_rows(storage: Storage, publication: Publication) -> list[PublishedPart]:
    """The parts of a publication, in input order."""
    return [
        PublishedPart(storage=storage, key=key, format=publication.format, schema=publication.schema)
        for key in publication.part_keys
    ]


def published_dead_letters(storage: Storage, publication: Publication) -> list[PublishedPart]:
    """The dead-letter file of a publication, as a list of at most one; empty if no row failed."""
    key, schema = publication.dead_key, publication.dead_schema
    return [] if key is None else [PublishedPart(storage=storage, key=key, format=publication.format, schema=schema)]


@dataclass(frozen=True, kw_only=True)
class CommittedTable:
    """One of the two tables of an output.

    Attributes:
        parts: the published files of a publication.
        published: rows of a unit in these files.
        committed: rows of a unit in its staged object.
        place: where they are staged.
    """

    parts: Callable[[Storage, Publication], list[PublishedPart]]
    published: Callable[[IndexedUnit], int]
    committed: Callable[[CommitRecord], int]
    place: Callable[[CommitRecord], Place]


ROWS = CommittedTable(
    parts=published_rows,
    published=lambda unit: unit.unit.rows,
    committed=lambda record: record.output_rows,
    place=lambda record: staged_place(record, derived_ids=False),
)
DEAD_LETTERS = CommittedTable(
    parts=published_dead_letters,
    published=lambda unit: unit.unit.failed,
    committed=lambda record: record.failed_rows,
    place=staged_dead_place,
)


def committed_tables(storage: Storage, table: CommittedTable, state: RunState, schema: pa.Schema) -> Iterator[pa.Table]:
    """The rows of every committed unit, once, of its latest attempt, some at a time.

    Published units come first, in their order; then those that are not published yet, by file and row. Memory holds
    some units, of however many there are.

    Raises:
        DamagedError: a file is missing or not as it was committed.
        OutputError: a run published some of these rows meanwhile.
    """
    manifest = Manifest.load(storage)
    reader = PlaceReader(storage, schema, len(state.columns), state.fingerprint["column_prefix"])

    def staged(record: CommitRecord) -> pa.Table:
        try:
            return pa.concat_tables(reader.read(table.place(record)))
        except FoundDamageError as error:
            if Manifest.load(storage) != manifest:
                raise OutputError(f"{storage.url}: a run published rows while they were read. Read again.") from error
            raise DamagedError(describe_damage(storage.url, error.damages)) from error

    with Index() as index, Inputs() as inputs:
        if state.scheduled:
            load_watermark(storage, manifest, inputs)
        read_ledger(storage, index.records, state.begun)
        for publication in manifest.publications:
            index_publication(storage, publication, index.published)
        overtaken = index.published.outdated()
        for publication in manifest.publications:
            parts = (replace(part, schema=schema) for part in table.parts(storage, publication))
            pieces = (piece for part in parts for piece in part.tables())
            if publication.position in overtaken:
                rows = RowStream(pieces, schema)
                yield from _latest(index.published.units(publication.position), rows, table, staged)
            else:
                yield from pieces
        # Of a file whose rows are published, others are of an older or a coming version.
        pending = (r for r in index.records.unpublished_in_order() if inputs.get(r.file_key) is None)
        yield from map_ahead(staged, (r for r in pending if table.committed(r)))


def _latest(
    units: Iterable[IndexedUnit],
    pieces: RowStream,
    table: CommittedTable,
    staged: Callable[[CommitRecord], pa.Table],
) -> Iterator[pa.Table]:
    """A publication's rows, those of units with a later committed attempt replaced by that attempt's."""
    for unit in units:
        own = pieces.take(table.published(unit))
        if unit.latest is None:
            yield own
        if unit.latest is not None and table.committed(unit.latest):
            yield staged(unit.latest)
