"""``verify``: proves a published output against its ledger, its checksums and its source.

Streams: memory does not grow with rows. Touches nothing.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from pipeline import layout
from pipeline.config import RunConfig
from pipeline.errors import OutputError
from pipeline.ledger import committed
from pipeline.plan import plan_units
from pipeline.publish import Manifest
from pipeline.sinks import FORMATS
from pipeline.sources import Source, source_of
from pipeline.state import RunState
from pipeline.storage import LocalStorage, Storage, open_storage
from pipeline.types import CommitRecord, Unit
from pipeline.verifying_rows import Expected, Findings, check_publication

__all__ = ["Verification", "verify"]


@dataclass(frozen=True, kw_only=True)
class Verification:
    """What was checked and what was found.

    Attributes:
        output: the folder or URL.
        parts, bytes: published files read, and their size.
        units, rows: checked, input rows.
        output_rows: rows in the published files.
        failed_rows: input rows that failed.
        against_source: whether the input was read too, and compared.
        problems: one line for each, at most 50; empty where the output is proven.
        more_problems: how many there are beyond these.
    """

    output: str
    parts: int
    bytes: int
    units: int
    rows: int
    output_rows: int
    failed_rows: int
    against_source: bool
    problems: tuple[str, ...]
    more_problems: int

    @property
    def ok(self) -> bool:
        """Whether nothing was found."""
        return not self.problems


def verify(
    output: str | os.PathLike[str],
    *,
    input: Any = None,
    storage_options: Mapping[str, Any] | None = None,
    input_storage_options: Mapping[str, Any] | None = None,
    dataset_options: Mapping[str, Any] | None = None,
) -> Verification:
    """Check that an output is what its run committed, and, with ``input``, that it is that input's.

    Checked are: each published file is there, of the recorded size and SHA-256, with the schema of the run, and no
    other files lie beside; each committed unit is published once, with the attempt, the rows, the order and the
    checksum of the data columns that the ledger has; row ids follow from the source's file and row numbers, and
    samples are numbered from 0; dead letters are the failed rows, in order. With ``input`` also: each unit of the
    input is there, in input order, and the passed-through columns (and ids from a column) equal the input's.

    Args:
        output: the folder or URL of a run.
        input: what the run read, as given to :func:`pipeline.run`.
        storage_options: keyword arguments of the file system of ``output``, and of ``input`` unless it has its own.
        input_storage_options: of ``input``.
        dataset_options: as in ``RunConfig``.

    Raises:
        OutputError: no run was begun there, or nothing is published.
        SourceError: ``input`` cannot be read.
    """
    storage = open_storage(output, layout.SCRATCH, storage_options)
    state = RunState.load(storage)
    if state is None:
        raise OutputError(f"{storage.url}: no run was begun there. Check the path.")
    manifest = Manifest.load(storage)
    if not manifest.publications:
        raise OutputError(f"{storage.url}: nothing is published there. Run it again to continue.")
    found = Findings()
    records = committed(storage)
    _check_ledger(manifest, records, state, found)
    _check_strangers(storage, manifest, found)
    if input is None:
        for publication in manifest.publications:
            check_publication(storage, publication, Expected(state=state, records=records), found)
    else:
        options = {
            "storage_options": storage_options or {},
            "input_storage_options": input_storage_options,
            "dataset_options": dataset_options,
        }
        with _opened(input, storage.url, state, options) as source:
            units = _check_source(source, state, manifest, found)
            for publication in manifest.publications:
                expected = Expected(state=state, records=records, source=source, units=units)
                check_publication(storage, publication, expected, found)
    return Verification(
        output=storage.url,
        against_source=input is not None,
        problems=tuple(found.problems),
        more_problems=found.more,
        **found.counts,
    )


@contextmanager
def _opened(input: Any, output: str, state: RunState, options: Mapping[str, Any]) -> Iterator[Source]:
    """The source; what is in memory lies in a temporary folder meanwhile."""
    names = ("id_column", "limit", "columns")
    config = RunConfig(input=input, output=output, **{n: state.fingerprint[n] for n in names}, **options)
    with tempfile.TemporaryDirectory() as folder:
        yield source_of(config, LocalStorage(folder, layout.SCRATCH))


def _check_ledger(
    manifest: Manifest, records: Mapping[str, CommitRecord], state: RunState, found: Findings
) -> None:  # fmt: skip
    """What is committed is published, once, as it was last."""
    times: dict[str, int] = {}
    for publication in manifest.publications:
        for unit in publication.units:
            times[unit.unit_id] = times.get(unit.unit_id, 0) + 1
            record = records.get(unit.unit_id)
            if record is None:
                found.problem(f"{publication.name}: unit {unit.unit_id} is published, and the ledger lacks it")
            elif record.attempt != unit.attempt:
                found.problem(
                    f"{publication.name}: unit {unit.unit_id} is published as of attempt {unit.attempt}, the ledger "
                    f"has attempt {record.attempt}: run again to publish it"
                )
    for unit_id, count in times.items():
        if count > 1:
            found.problem(f"unit {unit_id} is published {count} times")
    for unit_id in records.keys() - times.keys():
        record = records[unit_id]
        found.problem(
            f"rows {record.first_row} to {record.first_row + record.num_rows - 1} of {record.file_key!r} are committed "
            "and not published: run again"
        )
    if len(times) < state.units:
        found.problem(f"{state.units} units were planned, {len(times)} are published")


def _check_strangers(storage: Storage, manifest: Manifest, found: Findings) -> None:
    """Plain readers of the folder would take such files for ours."""
    ours = {f"{p.name}/{part.name}" for p in manifest.publications for part in p.parts}
    suffixes = tuple(format_.suffix for format_ in FORMATS.values())
    for key in storage.keys("."):
        strange = key not in ours and not key.startswith(f"{layout.STATE}/")
        if strange and (key.endswith(suffixes) or key.startswith("data-")):
            found.problem(f"{key}: no publication has this file; remove it")


def _check_source(source: Source, state: RunState, manifest: Manifest, found: Findings) -> dict[str, Unit]:
    """The input's units, after a look at whether they are the output's."""
    changed = [f.key for f in source.files if state.files.get(f.key, f.digest) != f.digest]
    for key in changed:
        found.problem(f"input file {key!r}: its content is not what the run read")
    if changed:
        return {}
    planned = plan_units(source, state.unit_rows, state.fingerprint_hash, state.fingerprint["limit"])
    units = {unit.unit_id: unit for unit in planned}
    there = manifest.unit_ids
    for unit in planned:
        if unit.unit_id not in there:
            found.problem(f"{_where(source, unit)}: not in the output")
    for publication in manifest.publications:
        places = [units[u].index for u in publication.unit_ids if u in units]
        if places != sorted(places):
            found.problem(f"{publication.name}: its units are not in input order")
        for unit_id in publication.unit_ids:
            if unit_id not in units:
                found.problem(f"{publication.name}: unit {unit_id} is of no row of the input")
    return units


def _where(source: Source, unit: Unit) -> str:
    rows = unit.rows
    return f"rows {rows.first_row} to {rows.first_row + rows.num_rows - 1} of {source.files[rows.file].key!r}"
