"""Revisions: a publication again, with the units whose failed rows were done once more as they are now.

Knows tables' places and the publication protocol; nothing of Ray or models.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from pipeline import layout
from pipeline.lease import Lease
from pipeline.publish import (
    Manifest,
    PartJob,
    PartRecord,
    Publication,
    PublishedUnit,
    decide,
    staged_dead_place,
    staged_place,
    write_part,
)
from pipeline.sinks import FORMATS
from pipeline.storage import Storage
from pipeline.types import CommitRecord, Place

__all__ = ["outdated", "places", "revise"]


def outdated(manifest: Manifest, records: Mapping[str, CommitRecord]) -> list[Publication]:
    """The visible publications that hold a unit of which the ledger has a later attempt."""
    return [
        publication
        for publication in manifest.publications
        if any(records[unit.unit_id].attempt > unit.attempt for unit in publication.units if unit.unit_id in records)
    ]


def places(manifest: Manifest, records: Mapping[str, CommitRecord]) -> dict[str, Place]:
    """Unit -> where the output rows of its latest attempt are: in a part, or staged."""
    found = {unit_id: staged_place(record) for unit_id, record in records.items()}
    for publication in manifest.publications:
        for part in _parts(publication):
            for unit, place in part.units:
                if unit.unit_id in records and records[unit.unit_id].attempt == unit.attempt:
                    found[unit.unit_id] = place
    return found


@dataclass(frozen=True, kw_only=True)
class _Part:
    """A published part and the units in it, with their places."""

    record: PartRecord
    key: str
    units: tuple[tuple[PublishedUnit, Place], ...]


def _parts(publication: Publication) -> Iterator[_Part]:
    """The parts of a publication. A unit lies in one part whole."""
    units = iter(publication.units)
    for record in publication.parts:
        key = f"{publication.name}/{record.name}"
        held: list[tuple[PublishedUnit, Place]] = []
        row = 0
        while row < record.rows:
            unit = next(units)
            held.append((unit, Place(key=key, first_row=row, num_rows=unit.rows, format=publication.format)))
            row += unit.rows
        yield _Part(record=record, key=key, units=tuple(held))


def revise(
    storage: Storage,
    manifest: Manifest,
    publication: Publication,
    records: Mapping[str, CommitRecord],
    *,
    lease: Lease,
    write_parts: Callable[[Sequence[PartJob]], Iterable[PartRecord]] | None = None,
) -> Manifest:
    """Put a publication in the place of ``publication`` that holds the latest attempt of each of its units.

    Args:
        storage: the output.
        manifest: what is visible.
        publication: one of it.
        records: the ledger's.
        lease: the caller's; without it nothing is published.
        write_parts: runs :func:`pipeline.publish.write_part` over jobs, results in order; None does it here.

    Raises:
        LeaseError: another run took over.
        SinkError: the parts could not be written.
    """
    number = len(manifest.decided)
    folder = layout.publishing(number, lease.token)
    format_ = FORMATS[publication.format]
    jobs = [
        PartJob(
            storage=storage,
            format=format_,
            schema=publication.schema,
            key=f"{folder}/{part.record.name}",
            pieces=_pieces(part, records),
            copy_of=None if any(_is_later(unit, records) for unit, _ in part.units) else part.key,
        )
        for part in _parts(publication)
    ]
    parts = tuple((write_parts or (lambda js: map(write_part, js)))(jobs))
    units = tuple(PublishedUnit.of(records[unit_id]) for unit_id in publication.unit_ids)
    letters = _dead_pieces(publication, records)
    dead = None
    if letters:
        key = layout.dead_letters(number, lease.token) + format_.suffix
        job = PartJob(storage=storage, format=format_, schema=publication.dead_schema, key=key, pieces=letters)
        dead = write_part(job)
    revision = replace(
        publication,
        number=number,
        revision=publication.revision + 1,
        token=lease.token,
        parts=parts,
        dead_letters=dead,
        units=units,
    )
    return decide(storage, manifest, revision, lease)


def _is_later(unit: PublishedUnit, records: Mapping[str, CommitRecord]) -> bool:
    return records[unit.unit_id].attempt > unit.attempt


def _pieces(part: _Part, records: Mapping[str, CommitRecord]) -> tuple[Place, ...]:
    pieces = (staged_place(records[u.unit_id]) if _is_later(u, records) else place for u, place in part.units)
    return tuple(_joined(pieces))


def _joined(pieces: Iterable[Place]) -> Iterator[Place]:
    """Neighbours in one part are read in one pass."""
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


def _dead_pieces(publication: Publication, records: Mapping[str, CommitRecord]) -> tuple[Place, ...]:
    """Where the dead letters of a revision are: those of units as they were, and of later attempts."""
    pieces: list[Place] = []
    row = 0
    for unit in publication.units:
        record = records[unit.unit_id]
        if record.attempt > unit.attempt:
            pieces += [staged_dead_place(record)] if record.failed_rows else []
        elif unit.failed:
            assert publication.dead_letters is not None
            key = layout.published_dead_letters(publication.dead_letters.name)
            pieces.append(Place(key=key, first_row=row, num_rows=unit.failed, format=publication.format))
        row += unit.failed
    return tuple(_joined(pieces))
