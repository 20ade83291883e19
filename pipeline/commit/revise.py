"""Revisions: publishes a publication again, with other units in place of some of its units.

A retry puts the latest attempts of units in the place of earlier ones. A scheduled run puts the units of changed input
files in the place of those of their old content. Either is decided by one put, so readers see all of the old rows or
all of the new ones. Units that stay are copied as they were published.
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
from pipeline.commit.part_files import OutputTables, PartJob, staged_dead_place, staged_place
from pipeline.commit.publish import (
    WriteInputs,
    WriteParts,
    decide,
    publication_of,
    write_dead_letters,
    write_parts_here,
    written,
)
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
    """A unit of a revision.

    Attributes:
        unit: as it is published then.
        place, dead: places of its rows and of its dead letters; None if it has none.
        part: number of the part of the old publication that it lies in, or follows.
        bytes: size of its rows when they were staged.
        kept: whether it is as it was published before.
    """

    unit: PublishedUnit
    place: Place
    dead: Place | None
    part: int
    bytes: int
    kept: bool


_Pieces = Callable[[], Iterator[_Piece]]


def outdated(manifest: Manifest, index: Index) -> list[Publication]:
    """The visible publications with a unit that has a later attempt in the ledger."""
    positions = index.published.outdated()
    return [publication for publication in manifest.publications if publication.position in positions]


def revise(
    output: OutputTables,
    manifest: Manifest,
    publication: Publication,
    index: Index,
    *,
    lease: Lease,
    write_parts: WriteParts | None = None,
) -> Manifest:
    """Replace ``publication`` by one that holds the latest attempt of each of its units; returns the new manifest.

    Args:
        output: the output and its tables.
        manifest: the publications so far.
        publication: a visible one.
        index: committed and published units.
        lease: the caller's lease; without it nothing is published.
        write_parts: writes the parts; None: this process writes one after the other.

    Raises:
        FoundDamageError: published parts or staged units differ from the committed ones; nothing is published.
        LeaseLostError: another run took over.
        SinkError: the parts could not be written.
    """
    format_ = FORMATS[publication.format]
    output = replace(
        output,
        rows=replace(output.rows, format=format_, schema=publication.schema),
        dead_rows=replace(output.dead_rows, format=format_, schema=publication.dead_schema),
    )

    def pieces() -> Iterator[_Piece]:
        for unit, dead in dead_pieces(publication, index.published.units(publication.position)):
            yield _kept(unit, dead) if unit.latest is None else _new(unit.latest, unit.part, output)

    return _publish(output, manifest, publication, index, pieces, lease, None, write_parts)


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
    publication = replacement.publication

    def pieces() -> Iterator[_Piece]:
        units = () if replacement.whole else index.published.units(publication.position)
        kept = (
            (record, unit, dead)
            for unit, dead in dead_pieces(publication, units)
            if not _is_gone(record := _record(unit, publication), replacement)
        )
        fresh = ((record, None, None) for record in replacement.fresh())
        both: Iterator[tuple[CommitRecord, IndexedUnit | None, Place | None]] = heapq.merge(
            kept, fresh, key=lambda found: (found[0].file_key, found[0].first_row)
        )
        part = 0
        for record, unit, dead in both:
            part = part if unit is None else unit.part
            yield _new(record, part, output) if unit is None else _kept(unit, dead)

    return _publish(output, manifest, publication, index, pieces, lease, write_inputs, write_parts)


def _is_gone(record: CommitRecord, replacement: Replacement) -> bool:
    return any(stretch.file_key in replacement.gone for stretch in record.stretches)


def _record(unit: IndexedUnit, publication: Publication) -> CommitRecord:
    if unit.record is None:
        raise DamagedError(
            f"{publication.name}: the ledger lacks its unit {unit.unit.unit_id}, so nobody knows which "
            "rows are those of the input files that have changed",
            "Restore the ledger from a copy, use on_changed='ignore', or discard the table with mode='new'.",
        )
    return unit.record


def _kept(unit: IndexedUnit, dead: Place | None) -> _Piece:
    staged = 0 if unit.record is None else unit.record.staged_bytes
    return _Piece(unit=unit.unit, place=unit.place, dead=dead, part=unit.part, bytes=staged, kept=True)


def _new(record: CommitRecord, part: int, output: OutputTables) -> _Piece:
    return _Piece(
        unit=PublishedUnit.of(record),
        place=staged_place(record, derived_ids=output.rows.derived_ids),
        dead=staged_dead_place(record) if record.failed_rows else None,
        part=part,
        bytes=record.staged_bytes,
        kept=False,
    )


def _publish(
    output: OutputTables,
    manifest: Manifest,
    publication: Publication,
    index: Index,
    pieces: _Pieces,
    lease: Lease,
    write_inputs: WriteInputs | None,
    write_parts: WriteParts | None,
) -> Manifest:
    """Publish the pieces in the place of a publication; returns the new manifest."""
    storage, number = output.storage, manifest.next_number
    folder = layout.publishing(number, lease.epoch)
    storage.delete(folder)  # an attempt that found damage may have left parts there
    parts = written((write_parts or write_parts_here)(_part_jobs(output, publication, index, pieces, folder)))
    dead = write_dead_letters(
        storage, number, lease, output.dead_rows, lambda: joined(p.dead for p in pieces() if p.dead is not None)
    )
    units = write_units(storage, layout.units(number, lease.epoch), lambda: (piece.unit for piece in pieces()))
    inputs = manifest.inputs if write_inputs is None else write_inputs(number, publication.position)
    revision = publication_of(
        output, lease, number=number, position=publication.position, revision=publication.revision + 1, parts=parts,
        dead_letters=dead, units=units, inputs=inputs,
    )  # fmt: skip
    return decide(storage, manifest, revision, index, lease)


def _part_jobs(
    output: OutputTables, publication: Publication, index: Index, pieces: _Pieces, folder: str
) -> Iterator[PartJob]:
    """A job for each part, at least one; units that come are written next to those that they lay next to before."""
    rows = output.rows
    same = publication.schema.equals(rows.schema) and publication.format == rows.format.name
    counts: dict[int, int] = {}
    for unit in index.published.units(publication.position):
        counts[unit.part] = counts.get(unit.part, 0) + 1
    number = 0
    for (part, _), group in groupby(_filled(pieces(), output.target_part_bytes), key=lambda found: found[0]):
        own = [piece for _, piece in group]
        whole = same and len(own) == counts.get(part) and all(piece.kept for piece in own)
        yield PartJob(
            storage=output.storage,
            rows=rows,
            key=f"{folder}/{layout.part(number)}{rows.format.suffix}",
            pieces=tuple(joined(piece.place for piece in own)),
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
        size += piece.bytes
        yield (part, closed), piece


def dead_pieces(
    publication: Publication, units: Iterable[IndexedUnit]
) -> Iterator[tuple[IndexedUnit, Place | None]]:  # fmt: skip
    """The units of a publication, each with the place of its dead letters, if it has any."""
    row = 0
    for unit in units:
        failed, place = unit.unit.failed, None
        if failed:
            assert publication.dead_letters is not None
            key = layout.published_dead_letters(publication.dead_letters.name)
            sha256 = publication.dead_letters.sha256
            place = Place(key=key, first_row=row, num_rows=failed, format=publication.format, sha256=sha256)
        yield unit, place
        row += failed


def joined(pieces: Iterable[Place]) -> Iterator[Place]:
    """Merge adjacent pieces of a part, so that they are read in one pass."""
    held: Place | None = None
    for piece in pieces:
        if (
            held is not None
            and held.format is not None
            and (piece.key, piece.first_row) == (held.key, held.first_row + held.num_rows)
        ):
            held = replace(held, num_rows=held.num_rows + piece.num_rows)
            continue
        if held is not None:
            yield held
        held = piece
    if held is not None:
        yield held
