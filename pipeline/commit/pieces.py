"""The parts of a publication, with the units of each file. Plain logic; reads and writes nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import groupby

from pipeline import layout
from pipeline.commit.index import Index, PublishedUnit
from pipeline.commit.manifest import Publication
from pipeline.commit.part_files import OutputTables, PartJob, staged_dead_place, staged_place
from pipeline.types import CommitRecord, Place


@dataclass(frozen=True, kw_only=True)
class Piece:
    """A unit of a publication that is being made.

    Attributes:
        unit: as it is published then.
        place, dead: places of its rows and of its dead letters; None if it has none.
        part: of a revision, the part of the publication before that it lies in, or follows.
        bytes: size of its rows when they were staged.
        kept: whether it is as it was published before.
    """

    unit: PublishedUnit
    place: Place
    dead: Place | None
    part: int
    bytes: int
    kept: bool


Pieces = Callable[[], Iterator[Piece]]


def new_piece(record: CommitRecord, output: OutputTables, part: int = 0) -> Piece:
    """A committed unit; see :class:`Piece`."""
    return Piece(
        unit=PublishedUnit.of(record),
        place=staged_place(record, derived_ids=output.rows.derived_ids),
        dead=staged_dead_place(record) if record.failed_rows else None,
        part=part,
        bytes=record.staged_bytes,
        kept=False,
    )


def part_jobs(
    output: OutputTables, before: Publication | None, index: Index, pieces: Pieces, folder: str
) -> Iterator[PartJob]:
    """A job for each part, at least one.

    Units that come are written next to those that they lay next to ``before``; a part that stays is copied.
    """
    rows = output.rows
    counts: dict[int, int] = {}
    same = before is not None and before.schema.equals(rows.schema) and before.format == rows.format.name
    if before is not None and same:
        for unit in index.published.units(before.position):
            counts[unit.part] = counts.get(unit.part, 0) + 1
    number = 0
    for (part, _), group in groupby(_filled(pieces(), output.target_part_bytes), key=lambda found: found[0]):
        own = [piece for _, piece in group]
        whole = before is not None and len(own) == counts.get(part) and all(piece.kept for piece in own)
        yield PartJob(
            storage=output.storage,
            rows=rows,
            key=f"{folder}/{layout.part(number)}{rows.format.suffix}",
            pieces=tuple(joined(piece.place for piece in own)),
            copy_of=before.part_keys[part] if before is not None and whole else None,
            copy_sha256="" if before is None else before.parts[part].sha256,
        )
        number += 1
    if not number:
        yield PartJob(storage=output.storage, rows=rows, key=f"{folder}/{layout.part(0)}{rows.format.suffix}")


def _filled(pieces: Iterable[Piece], target_bytes: int) -> Iterator[tuple[tuple[int, int], Piece]]:
    """Each piece with its place: the old part, and how often that was closed as too large."""
    part, closed, size = -1, 0, 0
    for piece in pieces:
        if piece.part != part:
            part, closed, size = piece.part, 0, 0
        if size >= target_bytes:
            closed, size = closed + 1, 0
        size += piece.bytes
        yield (part, closed), piece


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
