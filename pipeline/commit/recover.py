"""Recovery, when a run begins: completes decided publications and restores lost records.

Publication records count most, then the manifest, which repeats them in full, then the published files themselves.

Also discards an output (``mode="new"``): first a mark is put, after which nothing of the old run counts; then published
files, the state and the mark are removed. No file is read before it is removed. A writer of the old run that wakes up
does no harm: leases stay, so its epoch does not count; a fence is in the place of its mark; and it removes nothing of
the new run, which numbers its publications from an unused number.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import pyarrow as pa

from pipeline import layout
from pipeline.commit.lease import Lease
from pipeline.commit.manifest import FENCE, Manifest, Publication
from pipeline.commit.publish import make_visible, parts_in, remove_parts
from pipeline.commit.run_record import Origin
from pipeline.commit.sealed import read_state, unseal
from pipeline.errors import DamagedError, LeaseLostError
from pipeline.sinks.dataset_card import NAME, is_card
from pipeline.storage.protocol import Storage


@dataclass(kw_only=True)
class Recovery:
    """The result of a recovery.

    Attributes:
        manifest: the visible publications.
        notes: one line for each problem that was found and corrected.
        unrecorded: published folders that no record names; only with ``repair``.
    """

    manifest: Manifest = field(default_factory=Manifest)
    notes: list[str] = field(default_factory=list)
    unrecorded: list[str] = field(default_factory=list)


def recover(storage: Storage, lease: Lease, origin: Origin | None = None, *, repair: bool = False) -> Recovery:
    """Complete publications that were decided before a kill; put fences so that no former lease holder decides more.

    Records from before the ``origin`` of the run (None reads it) do not count. ``repair``: leave published folders
    without a record to the caller, and give up records whose files are gone.

    Raises:
        DamagedError: there are such folders or records, and ``repair`` is False.
    """
    origin = Origin.of(storage) if origin is None else origin
    found, damaged = Recovery(), False
    try:
        found.manifest = Manifest.load(storage, origin)
    except DamagedError as error:
        damaged = True
        found.manifest = Manifest(first=origin.first)
        found.notes.append(f"{error.fault}; made again from the records of publications")
    _put_lost_records(storage, found)
    first = found.manifest.next_number
    roll = partial(_roll_forward, storage, found, lease, origin.begun, repair=repair)
    roll()
    for epoch in lease.predecessors:
        for number in range(first, found.manifest.next_number + 1):
            if not storage.put_new(layout.publication_record(number, epoch), _fence()):
                roll()
    if damaged:
        found.manifest.save(storage, lease.epoch)
    _check_folders(storage, found, repair=repair)
    return found


def give_up(storage: Storage, manifest: Manifest, publication: Publication, lease: Lease) -> Manifest:
    """Withdraw a publication: a fence replaces its record, its folder is removed, its units will be published again."""
    storage.put(publication.record_key, _fence())
    manifest = replace(manifest, decided=tuple(p for p in manifest.decided if p.position != publication.position))
    manifest.save(storage, lease.epoch)
    storage.delete(publication.name)
    return manifest


def withdraw(
    storage: Storage, found: Recovery, lost: Iterable[Publication], lease: Lease, notes: list[str]
) -> Manifest:  # fmt: skip
    """Remove published folders without a record, and publications whose list of units is lost.

    Adds a note for each; returns the manifest of the others.
    """
    manifest = found.manifest
    for name in found.unrecorded:
        remove_parts(storage, name)
        notes.append(f"{storage.url}/{name}: no record names it; removed, its rows are generated again")
    for publication in lost:
        manifest = give_up(storage, manifest, publication, lease)
        notes.append(f"{storage.url}/{publication.name}: its list of units is lost; generated again")
    return manifest


def _fence() -> bytes:
    return FENCE + uuid.uuid4().hex.encode()


def _put_lost_records(storage: Storage, found: Recovery) -> None:
    """Restore publication records that are missing or damaged from the manifest."""
    there = set(storage.keys(layout.PUBLICATIONS))
    for publication in found.manifest.decided:
        key, wanted = publication.record_key, publication.to_bytes()
        try:
            fault = "" if key in there and read_state(storage, key) == wanted else "not the decided ones"
        except DamagedError as error:
            fault = error.fault
        if fault:
            fault = fault if key in there else "missing"
            found.notes.append(f"{storage.url}/{key}: {fault}; made again from the manifest")
            storage.put(key, wanted)


def _roll_forward(storage: Storage, found: Recovery, lease: Lease, since: int, *, repair: bool) -> None:
    """Make the publications visible that are decided and not in the manifest.

    Raises:
        DamagedError: the files of one are gone, and ``repair`` is False.
    """
    known = {publication.number for publication in found.manifest.decided}
    decided: dict[int, Publication] = {}
    for key in storage.keys(layout.PUBLICATIONS):
        number, epoch = layout.number_of(key)
        if number in known or number < 0 or epoch < since:
            continue
        publication = _record(storage, key, found)
        if publication is not None:
            decided[publication.number] = publication
    while decided:
        new = tuple(decided[number] for number in sorted(decided))
        try:
            found.manifest = make_visible(storage, found.manifest, new, lease.epoch)
            return
        except FileNotFoundError as error:
            lease.verify()
            gone = next(p for p in new if not _is_there(storage, p))
            if not repair:
                raise DamagedError(
                    f"{storage.url}/{gone.record_key}: the files of this publication are gone ({error})",
                    f"Restore {gone.name} from a copy, or run again with repair=True (--repair): its rows are "
                    "generated again.",
                ) from error
            found.notes.append(f"{storage.url}/{gone.record_key}: its files are gone; its rows are published again")
            storage.put(gone.record_key, _fence())
            del decided[gone.number]


def _is_there(storage: Storage, publication: Publication) -> bool:
    places = (publication.name, layout.publishing(publication.number, publication.epoch))
    return any(storage.keys(place) for place in places)


def _record(storage: Storage, key: str, found: Recovery) -> Publication | None:
    """A publication's record; None for a fence, and for a record that was never written completely."""
    try:
        data = read_state(storage, key)
        return None if data.startswith(FENCE) else Publication.parse(unseal(data))
    except (DamagedError, KeyError, TypeError, ValueError, pa.ArrowException) as error:
        # No manifest lists it, so its staged units have not been removed: they are published again.
        found.notes.append(f"{storage.url}/{key}: this record is {error}; its rows are published again")
        # Keep the key taken: this may be the fence that stops a writer which is asleep.
        storage.put(key, _fence())
        return None


def _check_folders(storage: Storage, found: Recovery, *, repair: bool) -> None:
    """Remove published folders that a revision replaced, and find published folders that no record names.

    Raises:
        DamagedError: no record names a folder, and ``repair`` is False.
    """
    visible = {publication.position: publication for publication in found.manifest.publications}
    names = {publication.name for publication in visible.values()}
    for name in storage.folders():
        if not layout.is_publication(name) or name in names:
            continue
        if not parts_in(storage, name):  # not a run's, or empty
            continue
        position, revision = layout.position_of(name)
        superseded = (
            position in visible and revision < visible[position].revision and storage.exists(visible[position].name)
        )
        if not (superseded or repair):
            raise DamagedError(
                f"{storage.url}/{name}: no record names this publication: it was lost, so the folder's rows cannot "
                "be proven",
                "Restore the record from a copy, or run again with repair=True (--repair): the folder is removed and "
                "its rows are generated again.",
            )
        if superseded:
            found.notes.append(f"{storage.url}/{name}: replaced since; removed")
            remove_parts(storage, name)
        else:
            found.unrecorded.append(name)


_BEGUN = b"discard "


def discard(storage: Storage, lease: Lease, keep: Sequence[str] = ()) -> int:
    """Remove a run's state and everything it published.

    ``keep``: keys of rows in memory, which the next run has written there already.

    Returns: The first number for publications of the next run.

    Raises:
        LeaseLostError: another run took over.
    """
    if not storage.put_new(layout.discard_mark(lease.epoch), _BEGUN + uuid.uuid4().hex.encode()):
        raise LeaseLostError(f"{storage.url}: another run took over this output. This one removes nothing.")
    return _remove(storage, lease, keep)


def finish_discard(storage: Storage, lease: Lease) -> int | None:
    """Complete a discard that another process began; put fences so that no former lease holder can begin one.

    Returns:
        As :func:`discard`; None if no discard had been begun.

    Raises:
        LeaseLostError: another run took over; it goes on with the removal.
    """
    for epoch in lease.predecessors:
        storage.put_new(layout.discard_mark(epoch), b"fenced off by " + uuid.uuid4().hex.encode())
    return _remove(storage, lease) if _marks(storage) else None


def is_discarding(storage: Storage) -> bool:
    """Whether a discard was begun and is not complete."""
    return bool(_marks(storage))


def _remove(storage: Storage, lease: Lease, keep: Sequence[str] = ()) -> int:
    folders = [name for name in storage.folders() if layout.is_publication(name)]
    used = [layout.position_of(name)[0] for name in folders]
    used += [layout.number_of(key)[0] for kind in (layout.PUBLICATIONS, layout.UNITS) for key in storage.keys(kind)]
    # A sleeping writer works at most on the number after these.
    first = 2 + max(used, default=-1) if lease.predecessors else 0
    for name in folders:
        lease.verify()
        if not remove_parts(storage, name):
            first = max(first, 1 + layout.position_of(name)[0])
    if storage.exists(NAME) and is_card(storage.read(NAME)):
        storage.delete_objects([NAME])
    for folder in (layout.PUBLISH, layout.STAGED):
        lease.verify()
        storage.delete(folder)
    kept = (f"{layout.LEASES}/", f"{layout.DISCARDED}/")
    for keys in storage.walk(layout.STATE):
        lease.verify()
        storage.delete_objects([key for key in keys if not key.startswith(kept) and key not in keep])
    storage.delete_objects(_marks(storage))  # the fences stay: the writers they stop may be asleep
    return first


def _marks(storage: Storage) -> list[str]:
    """Keys of the marks of discards that are not complete."""
    return [key for key in storage.keys(layout.DISCARDED) if storage.read(key).startswith(_BEGUN)]
