"""From staged units to plain files that appear at once, in input order.

Steps, each of which a kill may interrupt: (1) write the part files, the dead letters and the list of units aside, and
prove every staged unit while it is read; (2) put the publication record: from here on the publication is decided and
only rolled forward; (3) give the folder its visible name (one rename; on object stores copies inside the store, all at
once); (4) list it in the manifest; (5) remove the staged units. A run that begins calls
:func:`pipeline.commit.recover.recover` first, which redoes (3) and (4) for a decided publication.

A revision (:mod:`pipeline.commit.revise`) takes the place of a publication some of whose rows were done again:
it is a publication too, whose step (3) begins with removing the folder of the one before. A reader of the folder
never sees both; for the moment between, one that lists the folder sees neither.

What a reader may see: :func:`pipeline.read` goes by the manifest, hence sees all of a publication or nothing
of it, everywhere. A plain reader that lists the folder sees the same on a local file system; on an object
store, between (2) and the end of (3), it sees some of the publication's parts: each of them whole, none twice,
and no other files.

The record's name holds the writer's epoch and its put succeeds once. Whoever takes over a lease that was not
given back puts a fence under the name that the former holder would use: should that one wake up, its put fails.

In memory are a publication's parts, of some hundred megabytes each; its units, of which there may be many
millions, are read from the index and written out one after the other.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from pipeline import layout
from pipeline.commit.index import Index, PublishedUnit
from pipeline.commit.lease import Lease
from pipeline.commit.manifest import Manifest, Publication, index_publication, write_units
from pipeline.commit.part_files import (
    OutputTables,
    PartDamage,
    PartJob,
    PartRecord,
    Rows,
    check_pieces,
    staged_dead_place,
    staged_keys,
    staged_place,
    write_part,
    write_rows,
)
from pipeline.damage import FoundDamageError
from pipeline.errors import DamagedError, LeaseLostError
from pipeline.storage.protocol import Storage
from pipeline.types import CommitRecord, Place

__all__ = [
    "WriteParts",
    "clean",
    "decide",
    "make_visible",
    "publish",
    "write_dead_letters",
    "write_parts_here",
    "written",
]

WriteParts = Callable[[Iterable[PartJob]], Iterable[PartRecord | PartDamage]]
"""Runs :func:`pipeline.commit.part_files.write_part` over jobs, which it draws as it needs them; results in order."""


def publish(
    output: OutputTables, manifest: Manifest, index: Index, *, lease: Lease, write_parts: WriteParts | None = None
) -> Manifest:
    """Make visible the planned units that are committed and not visible yet, in input order; the manifest then.

    Where there are none, on the first publication of an empty input, one part without rows is published, so that
    readers find a schema.

    Args:
        output: the output and its tables.
        manifest: what is visible already.
        index: of the plan, the ledger, and what is visible.
        lease: the caller's; without it nothing is published.
        write_parts: writes the parts; None does it here, one by one.

    Raises:
        FoundDamageError: staged units are not what was committed; nothing is published.
        LeaseLostError: another run took over.
        SinkError: the parts could not be written.
    """
    storage, number = output.storage, manifest.next_number
    folder = layout.publishing(number, lease.epoch)
    storage.delete(folder)  # an attempt that met with damage may have left parts there
    derived = output.rows.derived_ids
    jobs = (
        PartJob(
            storage=storage,
            rows=output.rows,
            key=f"{folder}/{layout.part(i)}{output.rows.format.suffix}",
            pieces=pieces,
        )
        for i, pieces in enumerate(_grouped(index.publishable(), output.target_part_bytes, derived))
    )
    parts = written((write_parts or write_parts_here)(jobs))
    dead = write_dead_letters(
        storage, number, lease, output.dead_rows, lambda: map(staged_dead_place, index.publishable(failed_only=True))
    )
    units = write_units(
        storage, layout.units(number, lease.epoch), lambda: map(PublishedUnit.of, index.publishable())
    )  # fmt: skip
    publication = Publication(
        number=number,
        slot=manifest.next_slot,
        revision=0,
        epoch=lease.epoch,
        format=output.rows.format.name,
        schema=output.rows.schema,
        dead_schema=output.dead_rows.schema,
        parts=parts,
        dead_letters=dead,
        units=units,
    )
    return decide(storage, manifest, publication, index, lease)


def write_parts_here(jobs: Iterable[PartJob]) -> Iterator[PartRecord | PartDamage]:
    """One after the other, in this process."""
    return map(write_part, jobs)


def written(results: Iterable[PartRecord | PartDamage]) -> tuple[PartRecord, ...]:
    """The records of files, all of which have been written.

    Raises:
        FoundDamageError: some have not; names all that was found in all of them.
    """
    every = list(results)
    damages = [damage for result in every if isinstance(result, PartDamage) for damage in result.damages]
    if damages:
        raise FoundDamageError(damages)
    return tuple(result for result in every if isinstance(result, PartRecord))


def _grouped(records: Iterable[CommitRecord], target_bytes: int, derived_ids: bool) -> Iterator[tuple[Place, ...]]:
    """The pieces of each part, at least one part."""
    group: list[Place] = []
    size = parts = 0
    for record in records:
        group.append(staged_place(record, derived_ids=derived_ids))
        size += record.staged_bytes
        if size >= target_bytes:
            yield tuple(group)
            group, size, parts = [], 0, parts + 1
    if group or not parts:
        yield tuple(group)


def write_dead_letters(
    storage: Storage, number: int, lease: Lease, rows: Rows, pieces: Callable[[], Iterator[Place]]
) -> PartRecord | None:
    """Write the dead-letter table of a publication; None where there are no failed rows.

    Raises:
        FoundDamageError: pieces are not what was committed; names all of them.
        SinkError: it failed repeatedly.
    """
    if next(pieces(), None) is None:
        return None
    try:
        return write_rows(storage, rows, layout.dead_letters(number, lease.epoch) + rows.format.suffix, pieces)
    except FoundDamageError:
        raise FoundDamageError(check_pieces(storage, rows, pieces())) from None


def decide(storage: Storage, manifest: Manifest, publication: Publication, index: Index, lease: Lease) -> Manifest:
    """Publish what is written under its publishing name: steps (2) to (5); the manifest as it then is.

    Raises:
        LeaseLostError: another run took over.
    """
    lease.verify()
    if not storage.put_new(publication.record_key, publication.to_bytes()):
        raise LeaseLostError(f"{storage.url}: another run took over this output. This one publishes nothing.")
    try:
        manifest = make_visible(storage, manifest, (publication,), lease.epoch)
    except FileNotFoundError as error:
        lease.verify()  # a successor has discarded all
        raise DamagedError(
            f"{storage.url}: the parts of {publication.name} were removed before they became visible ({error}). Run "
            "again to continue."
        ) from error
    index_publication(storage, publication, index.published)
    lease.verify()  # what is removed now is nobody else's
    clean(storage, manifest, index, lease.epoch)
    return manifest


def make_visible(storage: Storage, manifest: Manifest, decided: tuple[Publication, ...], epoch: int) -> Manifest:
    """Steps (3) and (4) for publications in the order of their numbers; what is done already is left."""
    manifest = replace(manifest, decided=(*manifest.decided, *decided))
    last = {publication.slot: publication for publication in manifest.decided}
    for publication in decided:
        if last[publication.slot] is not publication:
            continue  # another has taken its place since
        for revision in range(publication.revision):
            storage.delete(layout.publication(publication.slot, revision))
        storage.promote(layout.publishing(publication.number, publication.epoch), publication.name)
    manifest.save(storage, epoch)
    return manifest


def clean(storage: Storage, manifest: Manifest, index: Index, epoch: int, *, unnamed: bool = False) -> None:
    """Remove what is published from the staging folder, and what runs that were killed left unfinished.

    Of what was written in later epochs, or for publications that this manifest does not know, nothing is touched:
    should this process sleep here, it is a successor's.

    Args:
        storage: the output.
        manifest: what is visible.
        index: of the ledger and of what is visible.
        epoch: of the caller's lease.
        unnamed: also what is staged and not in the ledger; no unit may be under way.
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
    named = {layout.published_dead_letters(p.dead_letters.name) for p in visible if p.dead_letters is not None}
    named |= {p.units_key for p in visible}
    there = itertools.chain(storage.keys(layout.DEAD_LETTERS), storage.keys(layout.UNITS))
    storage.delete_objects([key for key in there if key not in named and _is_past(key, manifest, epoch)])
    unfinished = {key.rpartition("/")[0] for key in storage.keys(layout.PUBLISH) if _is_past(key, manifest, epoch)}
    for folder in sorted(unfinished):
        storage.delete(folder)
    storage.sweep()


def _is_past(key: str, manifest: Manifest, epoch: int) -> bool:
    number, written = layout.number_of(key)
    return number < manifest.next_number and written <= epoch
