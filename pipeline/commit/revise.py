"""Revisions: publishes a publication again, with other units in place of some of its units.

A retry puts the latest attempts of units in the place of earlier ones. A scheduled run puts the units of changed input
files in the place of those of their old content. Either is decided by one put, so readers see all of the old rows or
all of the new ones. Units that stay are copied as they were published.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from pipeline.commit.index import Index, IndexedUnit
from pipeline.commit.lease import Lease
from pipeline.commit.manifest import Manifest, Publication
from pipeline.commit.part_files import OutputTables
from pipeline.commit.pieces import Piece, new_piece
from pipeline.commit.publish import WriteInputs, WriteParts, publish_pieces
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
    write_parts: WriteParts,
) -> Manifest:
    """Replace ``publication`` by one that holds the latest attempt of each of its units; returns the new manifest.

    Raises as :func:`~pipeline.commit.publish.publish`, also for published parts.
    """
    format_ = FORMATS[publication.format]
    output = replace(
        output,
        rows=replace(output.rows, format=format_, schema=publication.schema),
        dead_rows=replace(output.dead_rows, format=format_, schema=publication.dead_schema),
    )

    def pieces() -> Iterator[Piece]:
        for unit, dead in dead_pieces(publication, index.published.units(publication.position)):
            yield _kept(unit, dead) if unit.latest is None else new_piece(unit.latest, output, unit.part)

    return publish_pieces(output, manifest, index, pieces, lease=lease, before=publication, write_parts=write_parts)


def replace_files(
    output: OutputTables,
    manifest: Manifest,
    index: Index,
    replacement: Replacement,
    *,
    lease: Lease,
    write_inputs: WriteInputs,
    write_parts: WriteParts,
) -> Manifest:
    """Publish a revision without the rows of some files, and with those of new units; returns the new manifest.

    Raises:
        DamagedError: the ledger lacks published units, so their files are not known.
        Others: as :func:`~pipeline.commit.publish.publish`, also for published parts.
    """
    publication = replacement.publication

    def pieces() -> Iterator[Piece]:
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
            yield new_piece(record, output, part) if unit is None else _kept(unit, dead)

    return publish_pieces(
        output, manifest, index, pieces, lease=lease, before=publication, write_parts=write_parts,
        write_inputs=write_inputs,
    )  # fmt: skip


def _is_gone(record: CommitRecord, replacement: Replacement) -> bool:
    return any(stretch.file_key in replacement.gone for stretch in record.stretches)


def _record(unit: IndexedUnit, publication: Publication) -> CommitRecord:
    if unit.record is None:
        raise DamagedError(
            f"{publication.name}: the ledger lacks its unit {unit.unit.unit_id}, so the "
            "rows of the changed input files are unknown",
            "Restore the ledger from a copy, use on_changed='ignore', or discard the table with mode='new'.",
        )
    return unit.record


def _kept(unit: IndexedUnit, dead: Place | None) -> Piece:
    staged = 0 if unit.record is None else unit.record.staged_bytes
    return Piece(unit=unit.unit, place=unit.place, dead=dead, part=unit.part, bytes=staged, kept=True)


def dead_pieces(
    publication: Publication, units: Iterable[IndexedUnit]
) -> Iterator[tuple[IndexedUnit, Place | None]]:  # fmt: skip
    """The units of a publication, each with the place of its dead letters, if it has any."""
    row = 0
    for unit in units:
        failed, place = unit.unit.failed, None
        if failed:
            assert publication.dead_letters is not None
            assert publication.dead_key is not None
            place = Place(key=publication.dead_key, first_row=row, num_rows=failed, format=publication.format,
                          sha256=publication.dead_letters.sha256)  # fmt: skip
        yield unit, place
        row += failed
