"""``etl --repair``: withdraws publications that cannot be proven, so that their files are new; names damaged ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from pipeline.commands.begin import say
from pipeline.commit.discard import remove_parts
from pipeline.commit.index import Index
from pipeline.commit.lease import Lease
from pipeline.commit.ledger import read_ledger
from pipeline.commit.manifest import Manifest, Publication, index_publication
from pipeline.commit.part_files import Rows
from pipeline.commit.recover import Recovery, give_up, recover
from pipeline.commit.repair import find_published_damage, index_publications
from pipeline.commit.run_record import Origin, RunState
from pipeline.errors import DamagedError
from pipeline.sinks import FORMATS
from pipeline.storage.protocol import Storage

__all__ = ["repair_records", "unproven"]


def repair_records(storage: Storage, lease: Lease, origin: Origin, is_there: Callable[[str], bool]) -> None:
    """Restore what records and lists of units can be restored; withdraw the publications whose cannot.

    The files of a publication that is withdrawn are in no watermark any more, so they are processed anew.

    Args:
        storage: the output.
        lease: the caller's lease.
        origin: of the run that is there.
        is_there: whether the input has a file of this key.

    Raises:
        DamagedError: what has to be withdrawn may hold rows of a file that is gone; or the run's record is damaged.
    """
    found = recover(storage, lease, origin, repair=True)
    say(found.notes)
    state = RunState.load(storage)
    if state is None:
        return
    with Index() as index:
        read_ledger(storage, index.records, origin.begun)
        lists = index_publications(storage, found.manifest, index, _rows_of(state), repair=True, scheduled=True)
        say(lists.notes)
        names = [*(publication.name for publication in lists.lost), *found.unrecorded]
        if names:
            _check_readable(storage, names, index, is_there)
    _withdraw(storage, found, lists.lost, lease)


def _withdraw(storage: Storage, found: Recovery, lost: list[Publication], lease: Lease) -> None:
    manifest = found.manifest
    for name in found.unrecorded:
        remove_parts(storage, name)
        say([f"{storage.url}/{name}: no record names it; removed, its rows are generated anew"])
    for publication in lost:
        manifest = give_up(storage, manifest, publication, lease)
        say([f"{storage.url}/{publication.name}: its list of units is lost; generated anew"])


def _check_readable(storage: Storage, names: list[str], index: Index, is_there: Callable[[str], bool]) -> None:
    for record in index.records.unpublished():
        for own in record.stretches:
            if not is_there(own.file_key):
                raise DamagedError(
                    f"{storage.url}: {', '.join(names)} cannot be proven, and may hold rows of {own.file_key!r}, which "
                    "is not in the input any more, so they cannot be generated anew",
                    "Put the input file back, restore the state from a copy, or discard the table with mode='new'.",
                )


def _rows_of(state: RunState) -> Rows:
    return Rows(
        format=FORMATS[state.fingerprint["output_format"]],
        schema=state.schema,
        inputs=len(state.columns),
        prefix=state.fingerprint["column_prefix"],
        derived_ids=state.fingerprint["id_column"] is None,
    )


def unproven(storage: Storage, manifest: Manifest, origin: Origin) -> Iterator[tuple[Publication, str]]:
    """The publications with a damaged file, or with a unit that the ledger lacks, and why."""
    faults = {damage.key: damage.fault for damage in find_published_damage(storage, manifest, prove=True)}
    with Index() as index:
        read_ledger(storage, index.records, origin.begun)
        for publication in manifest.publications:
            index_publication(storage, publication, index.published)
            fault = next((f"{key}: {faults[key]}" for key in publication.keys if key in faults), None)
            lacking = (unit.unit.unit_id for unit in index.published.units(publication.position) if unit.record is None)
            if fault is None and (unit_id := next(lacking, None)) is not None:
                fault = f"the ledger lacks its unit {unit_id}"
            if fault is not None:
                yield publication, fault
