"""What a run finds in an output when it begins: decided publications rolled forward, lost records made again.

Truth, from the most to the least: the publications' records, the manifest (which holds them once more, whole), the
published files themselves.
"""

from __future__ import annotations

import uuid
from dataclasses import replace
from functools import partial

import pyarrow as pa

from pipeline import layout
from pipeline.commit.discard import parts_in, remove_parts
from pipeline.commit.lease import Lease
from pipeline.commit.manifest import FENCE, Manifest, Publication
from pipeline.commit.publish import make_visible
from pipeline.commit.run_record import Origin
from pipeline.commit.sealed import read_state, unseal
from pipeline.errors import DamagedError
from pipeline.storage.protocol import Storage

__all__ = ["Recovery", "give_up", "recover"]


class Recovery:
    """What was found.

    Attributes:
        manifest: what is visible.
        notes: one line for each thing that was not as it should be.
        strange: published folders that no record names; only where a repair was asked for.
    """

    def __init__(self) -> None:
        self.manifest = Manifest()
        self.notes: list[str] = []
        self.strange: list[str] = []


def recover(storage: Storage, lease: Lease, origin: Origin | None = None, *, repair: bool = False) -> Recovery:
    """Finish publications that were decided before a kill; former holders of the lease can decide nothing after this.

    Args:
        storage: the output.
        lease: held by the caller.
        origin: of the run; None looks it up. Records from before it began do not count.
        repair: leave published folders of which nothing can be known to the caller, and give up records whose files
            are gone.

    Raises:
        DamagedError: there are such folders or records, and ``repair`` is not asked for.
    """
    origin = Origin.of(storage) if origin is None else origin
    found, damaged = Recovery(), False
    try:
        found.manifest = Manifest.load(storage, origin)
    except DamagedError as error:
        damaged = True
        found.manifest = Manifest(first=origin.first)
        found.notes.append(f"{str(error).split('. Run', 1)[0]}; made anew from the records of what was published")
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
    """Take a publication back: its record becomes a fence, its folder goes, its units are to be published anew."""
    storage.put(publication.record_key, _fence())
    manifest = replace(manifest, decided=tuple(p for p in manifest.decided if p.slot != publication.slot))
    manifest.save(storage, lease.epoch)
    storage.delete(publication.name)
    return manifest


def _fence() -> bytes:
    return FENCE + uuid.uuid4().hex.encode()


def _put_lost_records(storage: Storage, found: Recovery) -> None:
    """Put anew the records that only the manifest still has whole."""
    there = set(storage.keys(layout.PUBLICATIONS))
    for publication in found.manifest.decided:
        key, wanted = publication.record_key, publication.to_bytes()
        try:
            fault = "" if key in there and read_state(storage, key) == wanted else "not what was decided"
        except DamagedError as error:
            fault = str(error)
        if fault:
            fault = fault if key in there else "missing"
            found.notes.append(f"{storage.url}/{key}: {fault}; made anew from the manifest")
            storage.put(key, wanted)


def _roll_forward(storage: Storage, found: Recovery, lease: Lease, since: int, *, repair: bool) -> None:
    """Make visible what was decided and is not in the manifest.

    Raises:
        DamagedError: the files of one are gone, and ``repair`` is not asked for.
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
                    f"{storage.url}/{gone.record_key}: the files of this publication are gone ({error}). Restore "
                    f"{gone.name} from a copy, or run again with repair=True (--repair): its rows are generated anew."
                ) from error
            found.notes.append(f"{storage.url}/{gone.record_key}: its files are gone; what it held is published again")
            storage.put(gone.record_key, _fence())
            del decided[gone.number]


def _is_there(storage: Storage, publication: Publication) -> bool:
    places = (publication.name, layout.publishing(publication.number, publication.epoch))
    return any(storage.keys(place) for place in places)


def _record(storage: Storage, key: str, found: Recovery) -> Publication | None:
    """A publication's record; None of a fence, and of a record that never came to be."""
    try:
        data = read_state(storage, key)
        return None if data.startswith(FENCE) else Publication.parse(unseal(data))
    except (DamagedError, KeyError, TypeError, ValueError, pa.ArrowException) as error:
        # It is in no manifest, so nothing that was staged for it has been removed: the units are published again.
        found.notes.append(f"{storage.url}/{key}: this record is {error}; what it was to publish is published again")
        # The name stays taken: it may be the fence that holds off a writer which is asleep.
        storage.put(key, _fence())
        return None


def _check_folders(storage: Storage, found: Recovery, *, repair: bool) -> None:
    """Remove published folders whose place another has taken; of those that no record names nothing is known.

    Raises:
        DamagedError: there is such a folder, and ``repair`` is not asked for.
    """
    visible = {publication.slot: publication for publication in found.manifest.publications}
    names = {publication.name for publication in visible.values()}
    for name in storage.folders():
        if not layout.is_publication(name) or name in names:
            continue
        if not parts_in(storage, name):  # somebody's own, or empty
            continue
        slot, revision = layout.slot_of(name)
        superseded = slot in visible and revision < visible[slot].revision and storage.exists(visible[slot].name)
        if not (superseded or repair):
            raise DamagedError(
                f"{storage.url}/{name}: no record names this publication: it was lost, so what is in the folder cannot "
                "be proven. Restore the record from a copy, or run again with repair=True (--repair): the folder is "
                "removed and its rows are generated anew."
            )
        if superseded:
            found.notes.append(f"{storage.url}/{name}: replaced since; removed")
            remove_parts(storage, name)
        else:
            found.strange.append(name)
