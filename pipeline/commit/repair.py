"""Repairs damage in an output: finds the units whose rows are affected, and revokes them so that they run again.

Staged units are checked when they are read for publishing; damaged ones are revoked and generated again in the same
run. Published files are checked for existence and size when a run begins, and for their checksum when they are read
for a revision. They are only replaced if the user asks for it (``repair``), after the checksum of every file was
checked.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import pyarrow as pa

from pipeline import layout
from pipeline.commit.index import Index, PublishedUnit
from pipeline.commit.lease import current_holder
from pipeline.commit.ledger import Ledger
from pipeline.commit.lists import index_publication, write_units
from pipeline.commit.manifest import Manifest, Publication
from pipeline.commit.part_files import PartRecord, Rows
from pipeline.errors import DamagedError, OutputError, SinkError
from pipeline.schema import data_columns
from pipeline.sinks import FORMATS
from pipeline.sinks.staged import data_checksum
from pipeline.sinks.stored_rows import RowStream, check_object
from pipeline.storage.damage import Damage, FoundDamageError
from pipeline.storage.protocol import Storage
from pipeline.types import CommitRecord, Revocation

_LOG = logging.getLogger(__name__)
_NAMED = 3
"""Most damaged files that a message names."""


@dataclass(kw_only=True)
class Lists:
    """The result of restoring lists of units.

    Attributes:
        notes: a line for each restored list.
        lost: publications whose list cannot be restored.
    """

    notes: list[str] = field(default_factory=list)
    lost: list[Publication] = field(default_factory=list)


def index_publications(
    storage: Storage, manifest: Manifest, index: Index, rows: Rows, *, repair: bool = False, scheduled: bool = False
) -> Lists:
    """Enter the visible publications in the index. A list of units that is lost is restored from the published rows.

    ``repair``: go on without publications whose list cannot be restored. ``scheduled``: the plan has the units of
    this run only, so published rows may be those of others.

    Raises:
        DamagedError: a list cannot be restored, as the published rows do not match the ledger.
    """
    lost: list[tuple[Publication, DamagedError]] = []
    for publication in manifest.publications:
        try:
            index_publication(storage, publication, index.published)
        except DamagedError as error:
            lost.append((publication, error))
    found = Lists()
    for publication, why in lost:
        try:
            _restore_list(storage, publication, index, rows, why, scheduled=scheduled)
        except DamagedError:
            if not repair:
                raise
            found.lost.append(publication)
            continue
        index_publication(storage, publication, index.published)
        found.notes.append(
            f"{storage.url}/{publication.units_key}: lost or damaged; made again from the published rows"
        )
    return found


def _restore_list(
    storage: Storage, publication: Publication, index: Index, rows: Rows, why: DamagedError, *, scheduled: bool
) -> None:
    candidates = index.records.unpublished_in_order if scheduled else index.publishable
    aside = f"{layout.SCRATCH}/{publication.name}.units"
    remedy = (
        f"Restore it from a copy, or run again with repair=True (--repair): the rows of {publication.name} are "
        "generated again."
    )
    try:
        for key, part in zip(publication.part_keys, publication.parts, strict=True):
            check_object(storage, key, part.sha256)  # decode nothing before its checksum was checked
        again = write_units(storage, aside, lambda: _units_found(storage, publication, candidates(), rows))
    except (FoundDamageError, SinkError, pa.ArrowException, ValueError, KeyError) as fault:
        raise DamagedError(f"{why.fault}, and it cannot be made again: {fault}", remedy) from fault
    finally:
        storage.delete(aside)
    if again.sha256 != publication.units.sha256:
        raise DamagedError(
            f"{why.fault}, and it cannot be made again: the published rows are not those of the ledger", remedy
        )
    write_units(storage, publication.units_key, lambda: _units_found(storage, publication, candidates(), rows))


def _units_found(
    storage: Storage, publication: Publication, candidates: Iterator[CommitRecord], rows: Rows
) -> Iterator[PublishedUnit]:
    """The units of a publication, found by comparing checksums of its rows with those of ``candidates``, in order."""
    names = data_columns(rows.schema, rows.inputs, rows.prefix)
    for key in publication.part_keys:
        with storage.open(key) as file:
            tables = FORMATS[publication.format].tables(file, publication.schema)
            stream = RowStream(tables, publication.schema)
            while stream.has_rows():
                record = next(candidates, None)
                if record is None:
                    raise FoundDamageError([Damage(key=key, fault="holds rows of no unit of the ledger")])
                if data_checksum(stream.peek(record.output_rows), names) == record.data_sha256:
                    stream.take(record.output_rows)
                    yield PublishedUnit.of(record)


def find_published_damage(storage: Storage, manifest: Manifest, *, prove: bool) -> tuple[Damage, ...]:
    """Published files that are missing or of another size; with ``prove`` also those with another checksum."""
    found: list[Damage] = []
    letters = storage.sizes(layout.DEAD_LETTERS) if manifest.publications else {}
    for publication in manifest.publications:
        sizes = {**letters, **storage.sizes(publication.name)}
        for key, part in publication.files.items():
            fault = _size_fault(sizes.get(key), part)
            if fault is None and prove:
                try:
                    check_object(storage, key, part.sha256)
                except FoundDamageError as error:
                    found += error.damages
            elif fault is not None:
                found.append(Damage(key=key, fault=fault))
    return tuple(found)


def _size_fault(size: int | None, part: PartRecord) -> str | None:
    if size is None:
        return f"missing, with {part.rows} rows"
    return None if size == part.bytes else f"{size} bytes in the place of {part.bytes}"


def describe_damage(url: str, damages: Sequence[Damage]) -> str:
    """The error message for damaged published files."""
    named = "; ".join(f"{url}/{damage.key}: {damage.fault}" for damage in damages[:_NAMED])
    more = f"; and {len(damages) - _NAMED} more" if len(damages) > _NAMED else ""
    return (
        f"{named}{more}. Restore the published files from a copy, or run again with repair=True (--repair): "
        "every published file is checked, and the rows of damaged ones are generated again."
    )


@contextmanager
def published(storage: Storage, remedy: str) -> Iterator[None]:
    """Context: damage of a published file that is copied is an error with this remedy.

    Raises:
        DamagedError: the file is missing or not as it was published.
    """
    try:
        yield
    except FoundDamageError as error:
        raise DamagedError(f"{storage.url}/{error}", remedy) from error


def reading_error(storage: Storage, damages: Sequence[Damage]) -> OutputError:
    """The error of a reader that found ``damages``. Files that a run replaces at this moment are not damaged."""
    visible = {key for publication in Manifest.load(storage).publications for key in publication.files}
    holder = current_holder(storage)
    if holder is None and visible.issuperset(damage.key for damage in damages):
        return DamagedError(describe_damage(storage.url, damages))
    writer = "a run" if holder is None else holder.describe()
    return OutputError(
        f"{storage.url}/{damages[0].key}: {damages[0].fault}. It may have been replaced during the read, as {writer} "
        "published rows. Read again after that run has ended."
    )


def _revocations_for(damages: Iterable[Damage], manifest: Manifest, index: Index) -> list[Revocation]:
    """The revocations for the units of damaged objects, one per unit.

    Raises:
        DamagedError: an object belongs to no unit.
    """
    found: dict[str, Revocation] = {}
    for damage in damages:
        for unit_id, attempt in _units_of(damage, manifest, index):
            record = index.records.get(unit_id)
            if record is not None and record.attempt > attempt:
                continue  # a later attempt counts, whose rows are elsewhere
            found[unit_id] = Revocation(
                unit_id=unit_id,
                attempt=attempt,
                reason=f"{damage.key}: {damage.fault}",
                input_sha256="" if record is None else record.input_sha256,
            )
    return list(found.values())


def _units_of(damage: Damage, manifest: Manifest, index: Index) -> list[tuple[str, int]]:
    """``(unit id, attempt)`` of the units whose rows or dead letters an object holds."""
    if damage.key.startswith(f"{layout.STAGED}/"):
        return [layout.staged_attempt(damage.key)]
    for publication in manifest.publications:
        units = index.published.units(publication.position)
        if damage.key in publication.part_keys:
            number = publication.part_keys.index(damage.key)
            return [(u.unit.unit_id, u.unit.attempt) for u in units if u.part == number]
        if damage.key == publication.dead_key:
            return [(u.unit.unit_id, u.unit.attempt) for u in units if u.unit.failed]
    raise DamagedError(f"{damage.key}: {damage.fault}, and it belongs to no unit", "Discard the run with mode='new'.")


def revoke(damages: Sequence[Damage], manifest: Manifest, index: Index, ledger: Ledger) -> set[str]:
    """Revoke the units of damaged objects; returns the ids of the units to generate again.

    Raises:
        DamagedError: a unit's rows are no longer in the input; then nothing is revoked.
    """
    if not damages:
        return set()
    revocations = _revocations_for(damages, manifest, index)
    for revocation in revocations:
        if not index.units.has(revocation.unit_id):
            record = index.records.get(revocation.unit_id)
            where = "a file" if record is None else repr(record.file_key)
            raise DamagedError(
                f"{revocation.reason}. It holds rows of {where}, which is not in the input any more, so they cannot be "
                "generated again: put the input file back, restore the published file from a copy, or discard the run "
                "with mode='new'."
            )
    ledger.revoke(revocations)
    for damage in damages:
        _LOG.warning("%s: %s; its rows are generated again", damage.key, damage.fault)
    return {revocation.unit_id for revocation in revocations}
