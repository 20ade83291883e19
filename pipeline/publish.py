"""From staged units to plain files that appear at once, in input order.

Steps, each of which a kill may interrupt: (1) write the part files, the dead letters and the list of units aside; (2)
put the publication record: from here on the publication is decided and only rolled forward; (3) give the folder
its visible name (one rename; on object stores copies inside the store, all at once); (4) list it in the
manifest; (5) remove the staged units. A run that begins calls :func:`recover` first, which redoes (3) to (5)
for a decided publication.

A revision (:mod:`pipeline.revising`) takes the place of a publication some of whose failed rows were done again:
it is a publication too, whose step (3) begins with removing the folder of the one before. A reader of the folder
never sees both; for the moment between, one that lists the folder sees neither.

What a reader may see: :func:`pipeline.read` goes by the manifest, hence sees all of a publication or nothing
of it, everywhere. A plain reader that lists the folder sees the same on a local file system; on an object
store, between (2) and the end of (3), it sees some of the publication's parts: each of them whole, none twice,
and no other files.

The record's name holds the writer's token and its put succeeds once. Whoever takes over a lease that was not
given back puts a fence under the name that the former holder would use (:func:`recover`): should that one
wake up, its put fails.

In memory are a publication's parts, of some hundred megabytes each; its units, of which there may be many
millions, are read from the index and written out one after the other.
"""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable, Iterable, Iterator

import pyarrow as pa

from pipeline import layout
from pipeline.errors import LeaseError
from pipeline.index import Index, PublishedUnit, PublishedUnits
from pipeline.lease import Lease
from pipeline.parts import PartJob, PartRecord, staged_dead_place, staged_place, write_part, write_rows
from pipeline.publications import (
    Manifest,
    Publication,
    decided,
    index_publication,
    write_units,
)
from pipeline.sinks.base import PartFormat
from pipeline.storage import Storage
from pipeline.types import CommitRecord, Place

__all__ = ["WriteParts", "decide", "publish", "recover", "write_dead_letters"]

WriteParts = Callable[[Iterable[PartJob]], Iterable[PartRecord]]
"""Runs :func:`pipeline.parts.write_part` over jobs, which it draws as it needs them; results in order."""


def recover(storage: Storage, published: PublishedUnits, lease: Lease | None = None) -> Manifest:
    """Finish a publication that was decided before a kill; the manifest as it then is.

    Args:
        storage: the output.
        published: the index of what is visible, to be filled.
        lease: held by the caller; former holders that never gave theirs back can decide nothing after this.
    """
    manifest = Manifest.load(storage)
    if lease is not None:
        first = len(manifest.decided)
        manifest = _roll_forward(storage, manifest)
        for token in lease.predecessors:
            manifest = _fence_off(storage, manifest, token, first)
        lease.forget_predecessors()
    manifest = _roll_forward(storage, manifest)
    for publication in manifest.publications:
        index_publication(storage, publication, published)
    _clean(storage, manifest, published)
    return manifest


def _roll_forward(storage: Storage, manifest: Manifest) -> Manifest:
    records = [Publication.parse(record) for record in decided(storage, len(manifest.decided))]
    for publication in sorted(records, key=lambda publication: publication.number):
        manifest = _make_visible(storage, manifest, publication)
    return manifest


def _fence_off(storage: Storage, manifest: Manifest, token: str, first: int) -> Manifest:
    """Take the names of the records that a former holder may yet put: of the publications since it looked."""
    for number in range(first, len(manifest.decided) + 1):
        fence = f"fenced off by {uuid.uuid4().hex}".encode()
        if not storage.put_new(layout.publication_record(number, token), fence):
            manifest = _roll_forward(storage, manifest)
    return manifest


def publish(
    storage: Storage,
    manifest: Manifest,
    index: Index,
    *,
    lease: Lease,
    schema: pa.Schema,
    dead_schema: pa.Schema,
    format: PartFormat,
    target_bytes: int,
    write_parts: WriteParts | None = None,
) -> Manifest:
    """Make visible the planned units that are committed and not visible yet, in input order; the manifest then.

    Where there are none, on the first publication of an empty input, one part without rows is published, so that
    readers find a schema.

    Args:
        storage: the output.
        manifest: what is visible already.
        index: of the plan, the ledger, and what is visible.
        lease: the caller's; without it nothing is published.
        schema: of the output table.
        dead_schema: of the dead-letter table.
        format: of the files.
        target_bytes: a part is closed when its staged (compressed) bytes reach this.
        write_parts: writes the parts; None does it here, one by one.

    Raises:
        LeaseError: another run took over.
        SinkError: the parts could not be written.
    """
    number = len(manifest.decided)
    folder = layout.publishing(number, lease.token)
    jobs = (
        PartJob(
            storage=storage,
            format=format,
            schema=schema,
            key=f"{folder}/{layout.part(i)}{format.suffix}",
            pieces=pieces,
        )
        for i, pieces in enumerate(_grouped(index.publishable(), target_bytes))
    )
    parts = tuple((write_parts or _one_by_one)(jobs))
    dead = write_dead_letters(
        storage, number, lease, format, dead_schema, lambda: map(staged_dead_place, index.publishable(failed_only=True))
    )
    units = write_units(
        storage, layout.units(number, lease.token), lambda: map(PublishedUnit.of, index.publishable())
    )  # fmt: skip
    publication = Publication(
        number=number,
        slot=len(manifest.publications),
        revision=0,
        token=lease.token,
        format=format.name,
        schema=schema,
        dead_schema=dead_schema,
        parts=parts,
        dead_letters=dead,
        units=units,
    )
    return decide(storage, manifest, publication, index.published, lease)


def _one_by_one(jobs: Iterable[PartJob]) -> Iterator[PartRecord]:
    return map(write_part, jobs)


def _grouped(records: Iterable[CommitRecord], target_bytes: int) -> Iterator[tuple[Place, ...]]:
    """The pieces of each part, at least one part."""
    group: list[Place] = []
    size = parts = 0
    for record in records:
        group.append(staged_place(record))
        size += record.staged_bytes
        if size >= target_bytes:
            yield tuple(group)
            group, size, parts = [], 0, parts + 1
    if group or not parts:
        yield tuple(group)


def write_dead_letters(
    storage: Storage,
    number: int,
    lease: Lease,
    format: PartFormat,
    schema: pa.Schema,
    pieces: Callable[[], Iterator[Place]],
) -> PartRecord | None:
    """Write the dead-letter table of a publication; None where there are no failed rows.

    Raises:
        SinkError: it failed repeatedly.
    """
    if next(pieces(), None) is None:
        return None
    return write_rows(storage, format, schema, layout.dead_letters(number, lease.token) + format.suffix, pieces)


def decide(
    storage: Storage, manifest: Manifest, publication: Publication, published: PublishedUnits, lease: Lease
) -> Manifest:
    """Publish what is written under its publishing name: steps (2) to (5); the manifest as it then is.

    Raises:
        LeaseError: another run took over.
    """
    _decide(storage, publication, lease)
    manifest = _make_visible(storage, manifest, publication)
    index_publication(storage, publication, published)
    _clean(storage, manifest, published)
    return manifest


def _decide(storage: Storage, publication: Publication, lease: Lease) -> None:
    """Put the record: the moment of publication."""
    lease.verify()
    if not storage.put_new(publication.record_key, publication.to_bytes()):
        raise LeaseError(f"{storage.url}: another run took over this output. This one publishes nothing.")


def _make_visible(storage: Storage, manifest: Manifest, publication: Publication) -> Manifest:
    if publication.revision:
        storage.delete(layout.publication(publication.slot, publication.revision - 1))
    storage.promote(layout.publishing(publication.number, publication.token), publication.name)
    manifest = Manifest(decided=(*manifest.decided, publication))
    manifest.save(storage)
    return manifest


def _clean(storage: Storage, manifest: Manifest, published: PublishedUnits) -> None:
    """Remove what is published from the staging folder, and what runs that were killed left unfinished."""
    for keys in storage.walk(layout.STAGED):
        staged = [(key, *layout.staged_attempt(key)) for key in keys]
        attempts = published.attempts([unit_id for _, unit_id, _ in staged])
        storage.delete_objects([key for key, unit_id, attempt in staged if attempt <= attempts.get(unit_id, 0)])
    visible = manifest.publications
    named = {layout.published_dead_letters(p.dead_letters.name) for p in visible if p.dead_letters is not None}
    named |= {p.units_key for p in visible}
    there = itertools.chain(storage.keys(layout.DEAD_LETTERS), storage.keys(layout.UNITS))
    storage.delete_objects([key for key in there if key not in named])
    storage.delete(layout.PUBLISH)  # what is decided has left this folder
    storage.sweep()
