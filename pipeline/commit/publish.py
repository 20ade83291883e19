"""Publishes staged units as plain files in input order; all files of a publication become visible at once.

The steps: (1) write the part files, the dead letters and the list of units aside, and check every staged unit; (2) put
the publication record, which decides it; (3) give the folder its visible name; (4) list it in the manifest; (5) remove
the staged units. A kill may interrupt any of them; recovery repeats (3) and (4). A revision
(:mod:`pipeline.commit.revise`) is a publication whose step (3) first removes the folder of the one before.

Memory holds the records of a publication's parts, but not its units, which are streamed from the index.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

import pyarrow as pa

from pipeline import layout
from pipeline.commit.index import Index
from pipeline.commit.lease import Lease
from pipeline.commit.lists import index_publication, write_units
from pipeline.commit.manifest import Manifest, Publication
from pipeline.commit.part_files import (
    OutputTables,
    PartDamage,
    PartJob,
    PartRecord,
    Rows,
    check_pieces,
    staged_keys,
    write_rows,
)
from pipeline.commit.pieces import Pieces, joined, new_piece, part_jobs
from pipeline.errors import DamagedError, LeaseLostError
from pipeline.sinks import FORMATS
from pipeline.sinks.dataset_card import NAME, card_of, is_card
from pipeline.storage.damage import FoundDamageError
from pipeline.storage.protocol import Storage
from pipeline.types import Place

WriteInputs = Callable[[int, int], tuple[PartRecord, ...]]
"""Writes the watermark of the publication of this number and position; returns its lists."""
WriteParts = Callable[[Iterable[PartJob]], Iterable[PartRecord | PartDamage]]
"""Applies :func:`pipeline.commit.part_files.write_part` to jobs, which it draws lazily; results in order."""


def publish(
    output: OutputTables,
    manifest: Manifest,
    index: Index,
    *,
    lease: Lease,
    write_parts: WriteParts,
    write_inputs: WriteInputs | None = None,
) -> Manifest:
    """Publish the planned units that are committed and not visible yet, in input order; returns the new manifest.

    If there are none, one part without rows is published, so that readers find a schema. ``write_inputs``: None leaves
    the watermark as it is.

    Raises:
        FoundDamageError: staged units differ from the committed ones; nothing is published.
        LeaseLostError: another run took over.
    """
    return publish_pieces(
        output, manifest, index, lambda: (new_piece(record, output) for record in index.publishable()), lease=lease,
        failed=lambda: (new_piece(record, output) for record in index.publishable(failed_only=True)),
        write_parts=write_parts, write_inputs=write_inputs,
    )  # fmt: skip


def publish_pieces(
    output: OutputTables,
    manifest: Manifest,
    index: Index,
    pieces: Pieces,
    *,
    lease: Lease,
    write_parts: WriteParts,
    before: Publication | None = None,
    failed: Pieces | None = None,
    write_inputs: WriteInputs | None = None,
) -> Manifest:
    """Publish units, in the place of the publication ``before`` or as a new one; returns the new manifest.

    ``pieces`` gives the units in order, and ``failed`` those with failed rows (None: search ``pieces``). The other
    arguments and the errors are those of :func:`publish`.
    """
    storage, rows, number = output.storage, output.rows, manifest.next_number
    position = manifest.next_position if before is None else before.position
    folder = layout.publishing(number, lease.epoch)
    storage.delete(folder)  # an attempt that found damage may have left parts there
    parts = written(write_parts(part_jobs(output, before, index, pieces, folder)))
    failed = failed or pieces
    dead = write_dead_letters(
        storage, number, lease, output.dead_rows, lambda: joined(p.dead for p in failed() if p.dead is not None)
    )
    publication = Publication(
        number=number,
        position=position,
        revision=0 if before is None else before.revision + 1,
        epoch=lease.epoch,
        format=rows.format.name,
        schema=rows.schema,
        dead_schema=output.dead_rows.schema,
        parts=parts,
        dead_letters=dead,
        units=write_units(storage, layout.units(number, lease.epoch), lambda: (piece.unit for piece in pieces())),
        inputs=manifest.inputs if write_inputs is None else write_inputs(number, position),
    )
    return decide(storage, manifest, publication, index, lease)


def written(results: Iterable[PartRecord | PartDamage]) -> tuple[PartRecord, ...]:
    """The records of part files, if all could be written.

    Raises:
        FoundDamageError: some could not; holds the damages of all of them.
    """
    every = list(results)
    damages = [damage for result in every if isinstance(result, PartDamage) for damage in result.damages]
    if damages:
        raise FoundDamageError(damages)
    return tuple(result for result in every if isinstance(result, PartRecord))


def write_dead_letters(
    storage: Storage, number: int, lease: Lease, rows: Rows, pieces: Callable[[], Iterator[Place]]
) -> PartRecord | None:
    """Write the dead-letter table of a publication; None if there are no failed rows.

    Raises:
        FoundDamageError: pieces differ from the committed ones; names all of them.
    """
    if next(pieces(), None) is None:
        return None
    try:
        return write_rows(storage, rows, layout.dead_letters(number, lease.epoch) + rows.format.suffix, pieces)
    except FoundDamageError:
        raise FoundDamageError(check_pieces(storage, rows, pieces())) from None


def decide(storage: Storage, manifest: Manifest, publication: Publication, index: Index, lease: Lease) -> Manifest:
    """Steps (2) to (5) for a publication whose files are written; returns the new manifest.

    Raises:
        LeaseLostError: another run took over.
    """
    lease.verify()
    if not storage.put_new(publication.record_key, publication.to_bytes()):
        raise LeaseLostError(f"{storage.url}: another run took over this output. This one publishes nothing.")
    try:
        manifest = make_visible(storage, manifest, (publication,), lease.epoch)
    except FileNotFoundError as error:
        lease.verify()  # a successor may have discarded everything
        raise DamagedError(
            f"{storage.url}: the parts of {publication.name} were removed before they became visible ({error})",
            "Run again to continue.",
        ) from error
    index_publication(storage, publication, index.published)
    lease.verify()  # so that nothing of a successor is removed
    clean(storage, manifest, index, lease)
    return manifest


def make_visible(storage: Storage, manifest: Manifest, decided: tuple[Publication, ...], epoch: int) -> Manifest:
    """Steps (3) and (4) for publications in the order of their numbers; steps already done are skipped."""
    manifest = replace(manifest, decided=(*manifest.decided, *decided))
    last = {publication.position: publication for publication in manifest.decided}
    for publication in decided:
        if last[publication.position] is not publication:
            continue  # a revision replaces it
        for revision in range(publication.revision):
            remove_parts(storage, layout.publication(publication.position, revision))
        storage.promote(layout.publishing(publication.number, publication.epoch), publication.name)
        put_card(storage, publication.format, publication.schema)
    manifest.save(storage, epoch)
    return manifest


def parts_in(storage: Storage, folder: str) -> list[str]:
    """Keys of the files in a folder that a run may have put there."""
    return [key for key in storage.keys(folder) if layout.is_part(key.removeprefix(f"{folder}/"))]


def remove_parts(storage: Storage, folder: str) -> bool:
    """Remove a run's files from a folder; True if the folder is gone, False if files of others stay in it."""
    parts = parts_in(storage, folder)
    if len(parts) == len(storage.keys(folder)):
        storage.delete(folder)  # at once, where the storage can
        return True
    storage.delete_objects(parts)
    return False


def put_card(storage: Storage, format: str, schema: pa.Schema) -> None:
    """Write the files that readers need next to the parts, unless a foreign file has the name."""
    own = FORMATS[format]
    if not own.has_types and (not storage.exists(NAME) or is_card(storage.read(NAME))):
        storage.put(NAME, card_of(schema, f"data-*/*{own.suffix}"))


def clean(storage: Storage, manifest: Manifest, index: Index, lease: Lease, *, unnamed: bool = False) -> None:
    """Remove staged units that are published, and unfinished files that killed runs left.

    Files of later epochs, and of publications that this manifest does not know, are left alone: if this process sleeps
    here, they are a successor's.

    ``unnamed``: also remove staged units that the ledger does not name; only while no unit is running.
    """
    for keys in storage.walk(layout.STAGED):
        staged = [(key, *layout.staged_attempt(key)) for key in keys]
        ids = list({unit_id for _, unit_id, _ in staged})
        attempts = index.published.attempts(ids)
        done = {key for key, unit_id, attempt in staged if attempt <= attempts.get(unit_id, 0)}
        if unnamed:
            done |= set(keys) - {key for record in index.records.among(ids) for key in staged_keys(record)}
        storage.delete_objects(sorted(done))
    visible = manifest.publications
    named = {key for p in visible for key in (p.dead_key, p.units_key)}
    named |= {f"{layout.INPUTS}/{part.name}" for part in manifest.inputs}
    there = itertools.chain.from_iterable(map(storage.keys, (layout.DEAD_LETTERS, layout.UNITS, layout.INPUTS)))
    storage.delete_objects([key for key in there if key not in named and _is_past(key, manifest, lease.epoch)])
    unfinished = {
        key.rpartition("/")[0] for key in storage.keys(layout.PUBLISH) if _is_past(key, manifest, lease.epoch)
    }
    for folder in sorted(unfinished):
        storage.delete(folder)
    storage.sweep(before=lease.taken)


def _is_past(key: str, manifest: Manifest, epoch: int) -> bool:
    number, written = layout.number_of(key)
    return number < manifest.next_number and written <= epoch
