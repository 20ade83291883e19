"""Revisions: publishes a publication again with the latest attempts of its units.

Knows where rows are stored and how a publication is made; does not know Ray or models.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import groupby

from pipeline import layout
from pipeline.commit.index import Index, IndexedUnit, PublishedUnit
from pipeline.commit.lease import Lease
from pipeline.commit.manifest import Manifest, Publication, write_units
from pipeline.commit.part_files import OutputTables, PartJob, Rows, staged_dead_place, staged_place
from pipeline.commit.publish import WriteParts, decide, write_dead_letters, write_parts_here, written
from pipeline.sinks import FORMATS
from pipeline.storage.protocol import Storage
from pipeline.types import Place


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
    storage, number = output.storage, manifest.next_number
    format_ = FORMATS[publication.format]
    rows = replace(output.rows, format=format_, schema=publication.schema)
    letters = replace(output.dead_rows, format=format_, schema=publication.dead_schema)
    folder = layout.publishing(number, lease.epoch)
    storage.delete(folder)  # an attempt that found damage may have left parts there
    jobs = _part_jobs(output.storage, rows, publication, index, folder)
    parts = written((write_parts or write_parts_here)(jobs))
    dead = write_dead_letters(storage, number, lease, letters, lambda: joined(_dead_pieces(publication, index)))
    units = write_units(
        storage, layout.units(number, lease.epoch), lambda: map(_latest, index.published.units(publication.position))
    )
    revision = replace(
        publication,
        number=number,
        revision=publication.revision + 1,
        epoch=lease.epoch,
        parts=parts,
        dead_letters=dead,
        units=units,
        inputs=manifest.inputs,
    )
    return decide(storage, manifest, revision, index, lease)


def _part_jobs(storage: Storage, rows: Rows, publication: Publication, index: Index, folder: str) -> Iterator[PartJob]:
    """A job for each part; the units of one part are in memory at a time."""
    for number, group in groupby(index.published.units(publication.position), key=lambda unit: unit.part):
        units, part = list(group), publication.parts[number]
        pieces = (_piece(unit, derived_ids=rows.derived_ids) for unit in units)
        yield PartJob(
            storage=storage,
            rows=rows,
            key=f"{folder}/{part.name}",
            pieces=tuple(joined(pieces)),
            copy_of=publication.part_keys[number] if all(unit.latest is None for unit in units) else None,
            copy_sha256=part.sha256,
        )


def _latest(unit: IndexedUnit) -> PublishedUnit:
    return unit.unit if unit.latest is None else PublishedUnit.of(unit.latest)


def _piece(unit: IndexedUnit, *, derived_ids: bool) -> Place:
    return unit.place if unit.latest is None else staged_place(unit.latest, derived_ids=derived_ids)


def _dead_pieces(publication: Publication, index: Index) -> Iterator[Place]:
    """The dead letters of a revision: of unchanged units in the old table, of later attempts as they are staged."""
    units = index.published.units(publication.position)
    for unit, place in dead_pieces(publication, units):
        if unit.latest is not None:
            if unit.latest.failed_rows:
                yield staged_dead_place(unit.latest)
        elif place is not None:
            yield place


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
