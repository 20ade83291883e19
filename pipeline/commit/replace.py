"""Replacement: publishes a publication again with other rows for some of its input files, at once.

A publication with the rows of new versions is a revision: one put decides its record, and readers see a file's old rows
or its new rows. Units of files that did not change are copied as they were published.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import groupby

from pipeline import layout
from pipeline.commit.index import Index, IndexedUnit, PublishedUnit
from pipeline.commit.lease import Lease
from pipeline.commit.manifest import Manifest, Publication, write_units
from pipeline.commit.part_files import OutputTables, PartJob, Rows, staged_dead_place, staged_place
from pipeline.commit.publish import (
    WriteInputs,
    WriteParts,
    decide,
    publication_of,
    write_dead_letters,
    write_parts_here,
    written,
)
from pipeline.commit.revise import dead_pieces, joined
from pipeline.errors import DamagedError
from pipeline.sinks import FORMATS
from pipeline.types import CommitRecord, Place


@dataclass(frozen=True, kw_only=True)
class Replacement:
    """Rows that are replaced in a publication, and their replacements.

    Attributes:
        publication: a visible one.
        gone: keys of the input files whose rows go.
        whole: whether these are all of its files, so that nothing of it stays.
        fresh: gives the records of the units that come, by first file and row; called several times.
    """

    publication: Publication
    gone: frozenset[str]
    whole: bool
    fresh: Callable[[], Iterable[CommitRecord]]


@dataclass(frozen=True, kw_only=True)
class _Piece:
    """A unit of the revision.

    Attributes:
        kept: the unit as it was published before; None if it is new.
        dead: place of its dead letters, if it is kept and has any.
        record: its ledger record.
        part: number of the part of the old publication that it lies in, or follows.
    """

    kept: IndexedUnit | None
    dead: Place | None
    record: CommitRecord
    part: int

    @property
    def unit(self) -> PublishedUnit:
        return PublishedUnit.of(self.record) if self.kept is None else self.kept.unit


def replace_files(
    output: OutputTables,
    manifest: Manifest,
    index: Index,
    replacement: Replacement,
    *,
    lease: Lease,
    write_inputs: WriteInputs,
    write_parts: WriteParts | None = None,
) -> Manifest:
    """Publish a revision without the rows of some files, and with those of new units; returns the new manifest.

    Args:
        output: the output and its tables.
        manifest: the publications so far.
        index: committed and published units.
        replacement: replaced rows and their replacements.
        lease: the caller's lease; without it nothing is published.
        write_inputs: writes the watermark.
        write_parts: writes the parts; None: this process writes one after the other.

    Raises:
        DamagedError: the ledger lacks published units, so their files are not known.
        FoundDamageError: published parts or staged units differ from the committed ones; nothing is published.
        LeaseLostError: another run took over.
        SinkError: the parts could not be written.
    """
    storage, number, publication = output.storage, manifest.next_number, replacement.publication
    folder = layout.publishing(number, lease.epoch)
    storage.delete(folder)  # an attempt that found damage may have left parts there
    jobs = _part_jobs(output, replacement, index, folder)
    parts = written((write_parts or write_parts_here)(jobs))
    letters = replace(output.dead_rows, format=FORMATS[output.rows.format.name])
    dead = write_dead_letters(storage, number, lease, letters, lambda: joined(_dead_pieces(replacement, index)))
    units = write_units(
        storage, layout.units(number, lease.epoch), lambda: (piece.unit for piece in _pieces(replacement, index))
    )
    revision = publication_of(
        output, lease, number=number, position=publication.position, revision=publication.revision + 1, parts=parts,
        dead_letters=dead, units=units, inputs=write_inputs(number, publication.position),
    )  # fmt: skip
    return decide(storage, manifest, revision, index, lease)


def _pieces(replacement: Replacement, index: Index) -> Iterator[_Piece]:
    """The units of the revision, by first file and row."""
    publication = replacement.publication
    units = () if replacement.whole else index.published.units(publication.position)
    published = dead_pieces(publication, units)
    kept = ((unit, place, _record(unit, replacement)) for unit, place in published if not _is_gone(unit, replacement))
    fresh = ((None, None, record) for record in replacement.fresh())
    both: Iterator[tuple[IndexedUnit | None, Place | None, CommitRecord]] = heapq.merge(
        kept, fresh, key=lambda found: (found[2].file_key, found[2].first_row)
    )
    part = 0
    for unit, dead, record in both:
        part = part if unit is None else unit.part
        yield _Piece(kept=unit, dead=dead, record=record, part=part)


def _is_gone(unit: IndexedUnit, replacement: Replacement) -> bool:
    record = _record(unit, replacement)
    return any(stretch.file_key in replacement.gone for stretch in record.stretches)


def _record(unit: IndexedUnit, replacement: Replacement) -> CommitRecord:
    if unit.record is None:
        raise DamagedError(
            f"{replacement.publication.name}: the ledger lacks its unit {unit.unit.unit_id}, so nobody knows which "
            "rows are those of the input files that have changed",
            "Restore the ledger from a copy, use on_changed='ignore', or discard the table with mode='new'.",
        )
    return unit.record


def _part_jobs(output: OutputTables, replacement: Replacement, index: Index, folder: str) -> Iterator[PartJob]:
    """A job for each part, at least one; units that come are written beside those that they lay beside before."""
    publication, rows = replacement.publication, output.rows
    same = publication.schema.equals(rows.schema) and publication.format == rows.format.name
    counts: dict[int, int] = {}
    for unit in index.published.units(publication.position):
        counts[unit.part] = counts.get(unit.part, 0) + 1
    number = 0
    for (part, _), group in groupby(_filled(_pieces(replacement, index), output.target_part_bytes), key=lambda p: p[0]):
        pieces = [piece for _, piece in group]
        whole = same and len(pieces) == counts[part] and all(piece.kept is not None for piece in pieces)
        yield PartJob(
            storage=output.storage,
            rows=rows,
            key=f"{folder}/{layout.part(number)}{rows.format.suffix}",
            pieces=tuple(joined(_place(piece, rows) for piece in pieces)),
            copy_of=publication.part_keys[part] if whole else None,
            copy_sha256=publication.parts[part].sha256,
        )
        number += 1
    if not number:
        yield PartJob(storage=output.storage, rows=rows, key=f"{folder}/{layout.part(0)}{rows.format.suffix}")


def _filled(pieces: Iterable[_Piece], target_bytes: int) -> Iterator[tuple[tuple[int, int], _Piece]]:
    """Each piece with its place: the old part, and how often that was closed as too large."""
    part, closed, size = -1, 0, 0
    for piece in pieces:
        if piece.part != part:
            part, closed, size = piece.part, 0, 0
        if size >= target_bytes:
            closed, size = closed + 1, 0
        size += piece.record.staged_bytes
        yield (part, closed), piece


def _place(piece: _Piece, rows: Rows) -> Place:
    return staged_place(piece.record, derived_ids=rows.derived_ids) if piece.kept is None else piece.kept.place


def _dead_pieces(replacement: Replacement, index: Index) -> Iterator[Place]:
    """The dead letters of kept units in the old table, and of new units as they are staged."""
    for piece in _pieces(replacement, index):
        if piece.kept is None and piece.record.failed_rows:
            yield staged_dead_place(piece.record)
        elif piece.dead is not None:
            yield piece.dead
