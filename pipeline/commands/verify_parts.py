"""Checks published rows against the ledger's checksums and the source's rows, part by part.

Streams, so memory does not grow with rows or units.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import groupby

import numpy as np
import pyarrow as pa

from pipeline.commands.regenerate import Drawn
from pipeline.commands.verify_inputs import correction_faults, input_faults
from pipeline.commit.index import Index, IndexedUnit
from pipeline.commit.manifest import Publication
from pipeline.commit.part_files import PartRecord
from pipeline.commit.run_record import RunState
from pipeline.errors import PipelineError, SourceError
from pipeline.plan.retry_failed import retried_rows
from pipeline.plan.units import read_tasks, read_units
from pipeline.schema import DEAD_FIELDS, data_columns, dead_schema, output_schema
from pipeline.sinks import FORMATS
from pipeline.sinks.staged import data_checksum
from pipeline.sinks.stored_rows import RowStream, unit_row_faults
from pipeline.sources import Source
from pipeline.storage.protocol import Storage
from pipeline.types import CommitRecord, column_row_ids, derived_row_ids

_CHUNK = 2**22
_MOST_PROBLEMS = 50


@dataclass(kw_only=True)
class Findings:
    """Collects counts and problems during a verification."""

    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(
        ("parts", "bytes", "units", "rows", "output_rows", "failed_rows"), 0))  # fmt: skip
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    more: int = 0

    def add(self, name: str, count: int) -> None:
        """Add to a count of things checked."""
        self.counts[name] += count

    def problem(self, text: str) -> None:
        """Add a problem."""
        if len(self.problems) < _MOST_PROBLEMS:
            self.problems.append(text)
        else:
            self.more += 1


@dataclass(frozen=True, kw_only=True)
class Expected:
    """The values that the rows of a publication are compared with.

    ``corrected``: see :func:`~pipeline.commands.verify_inputs.correction_faults`; ``drawn``: rows to collect.
    """

    state: RunState
    index: Index
    source: Source | None = None
    corrected: Mapping[int, tuple[pa.Table, Mapping[str, int]]] = field(default_factory=dict)
    drawn: Drawn | None = None

    @property
    def apart(self) -> tuple[int, ...]:
        """Numbers of retries whose rows are not those of the input."""
        return self.state.apart

    @property
    def prefix(self) -> str:
        """Prefix of the result columns."""
        return self.state.fingerprint["column_prefix"]

    def inputs(self, position: int) -> Iterator[tuple[str, pa.Table]]:
        """The source's units with their rows, in the order of the publication; units the source lacks are left out."""
        if self.source is None:
            return
        units = (unit.planned for unit in self.index.published.units(position))
        for task in read_tasks(unit for unit in units if unit is not None):
            tables = read_units(self.source, task.units)
            yield from zip((unit.unit_id for unit in task.units), tables, strict=True)


def check_publication(storage: Storage, publication: Publication, expected: Expected, found: Findings) -> None:
    """Check the schema, files, rows and dead letters of a publication; problems are added to ``found``."""
    columns = _columns_of(publication, expected.state)
    fields = list(publication.schema)[len(columns) :]
    if not publication.schema.equals(output_schema(columns, fields)):
        found.problem(f"{publication.name}: its schema does not begin with the input's columns")
        return
    expected = replace(expected, state=replace(expected.state, columns=columns))
    if not publication.dead_schema.equals(dead_schema(columns, expected.prefix)):
        found.problem(f"{publication.name}: its dead letters' schema is not that of the run's input")
    inputs = expected.inputs(publication.position)
    failures = _Letters()
    units = groupby(expected.index.published.units(publication.position), key=lambda unit: unit.part)
    whole = True
    group = next(units, None)
    for number, (part, key) in enumerate(zip(publication.parts, publication.part_keys, strict=True)):
        held: Iterable[IndexedUnit] = ()
        if group is not None and group[0] == number:
            held = group[1]
        unchanged = check_bytes(storage, key, part, found)
        if unchanged is None:
            whole = False
        else:
            _check_part(storage, key, publication, part, held, inputs, expected, failures, found, unchanged=unchanged)
        if group is not None and group[0] == number:
            group = next(units, None)
        found.add("parts", 1)
        found.add("bytes", part.bytes)
    _check_letters(storage, publication, failures if whole else None, expected, found)


def _columns_of(publication: Publication, state: RunState) -> pa.Schema:
    """The input's columns at the time of a publication: scheduled runs may add further ones."""
    if not state.scheduled:
        return state.columns
    count = len(publication.dead_schema) - len(DEAD_FIELDS)
    return pa.schema(list(state.columns)[:count], metadata=state.columns.metadata)


def _rows_of(inputs: Iterator[tuple[str, pa.Table]], unit_id: str) -> pa.Table:
    """The source's rows of a unit; skips units before it."""
    found = next((table for own_id, table in inputs if own_id == unit_id), None)
    if found is None:
        raise SourceError("the input ended before these rows, or could not be read up to them")
    return found


def check_bytes(storage: Storage, key: str, part: PartRecord, found: Findings) -> bool | None:
    """Whether the file equals the published one byte for byte; None if it is missing."""
    digest, size = hashlib.sha256(), 0
    try:
        with storage.open(key) as file:
            while chunk := file.read(_CHUNK):
                digest.update(chunk)
                size += len(chunk)
    except FileNotFoundError:
        found.problem(f"{key}: missing, with {part.rows} rows")
        return None
    if size != part.bytes or digest.hexdigest() != part.sha256:
        what = f"{size} bytes in the place of {part.bytes}" if size != part.bytes else "other bytes (SHA-256 differs)"
        found.problem(f"{key}: changed since it was published: {what}")
        return False  # its rows are still compared, to find those that differ
    return True


def _check_part(
    storage: Storage,
    key: str,
    publication: Publication,
    part: PartRecord,
    units: Iterable[IndexedUnit],
    inputs: Iterator[tuple[str, pa.Table]],
    expected: Expected,
    failures: _Letters,
    found: Findings,
    *,
    unchanged: bool,
) -> None:
    """Check each unit's rows against the ledger and the source."""
    wanted = part.rows
    try:
        rows = wanted if unchanged else sum(table.num_rows for table in _tables(storage, key, publication))
        stream = RowStream(_tables(storage, key, publication), publication.schema)
        for unit in units:
            source_rows = None if unit.planned is None else _rows_of(inputs, unit.unit.unit_id)
            table = stream.take(unit.unit.rows)
            record = unit.record
            if expected.drawn is not None and unit.planned is not None and source_rows is not None:
                expected.drawn.collect(unit.planned, source_rows, table, expected.prefix)
            if record is None:
                continue
            faults = _unit_faults(table, record, source_rows, expected)
            for fault in faults:
                found.problem(f"{key}, {record.where}: {fault}")
            found.add("units", 1)
            found.add("rows", record.num_rows)
            found.add("output_rows", table.num_rows)
            failures.add(table, expected.prefix, found)
            if faults and rows != wanted:
                found.problem(f"{key}: {rows} rows in the place of {wanted}; the rest of the file is not compared")
                return
    except (pa.ArrowException, OSError, ValueError, KeyError, PipelineError) as error:
        found.problem(f"{key}: cannot be read to its end ({type(error).__name__}: {str(error)[:200]})")


def _tables(storage: Storage, key: str, publication: Publication) -> Iterator[pa.Table]:
    with storage.open(key) as file:
        yield from FORMATS[publication.format].tables(file, publication.schema)


def _unit_faults(
    table: pa.Table, record: CommitRecord, source_rows: pa.Table | None, expected: Expected
) -> list[str]:  # fmt: skip
    """The faults of a unit's output rows, at most one of each kind."""
    prefix, columns = expected.prefix, expected.state.columns
    faults = []
    if table.num_rows != record.output_rows:
        faults.append(f"{table.num_rows} output rows where {record.output_rows} were committed")
    faults += unit_row_faults(table, _wanted_ids(record, source_rows, expected), record.num_rows, prefix)
    faults += _retry_faults(table, record, prefix)
    faults += correction_faults(table, expected.corrected, columns.names, prefix)
    failed = int(np.count_nonzero(table[f"{prefix}finish_reason"].to_numpy() == "error"))
    if failed != record.failed_rows:
        faults.append(f"{failed} failed rows where {record.failed_rows} were committed")
    if not _is_committed(table, record, len(columns), prefix, gains=expected.state.scheduled):
        faults.append("the values of the data columns are not those that were committed (checksum differs)")
    if source_rows is not None:
        assert expected.source is not None
        faults += input_faults(
            table, record, source_rows, columns=columns.names, names=expected.source.schema.names, prefix=prefix,
            apart=expected.apart,
        )  # fmt: skip
    return faults


def _retry_faults(table: pa.Table, record: CommitRecord, prefix: str) -> list[str]:
    """Whether as many rows are of each retry as the ledger says."""
    found = retried_rows(table, prefix)
    if found == dict(record.retried):
        return []
    return [f"rows by number of their retry are {found} where {dict(record.retried)} were committed"]


def _is_committed(table: pa.Table, record: CommitRecord, inputs: int, prefix: str, *, gains: bool) -> bool:
    """Whether rows have the checksum that was committed; with ``gains``, perhaps before columns were added as null."""
    names = data_columns(table.schema, inputs, prefix)
    while data_checksum(table, names) != record.data_sha256:
        if not gains or not inputs or table[names[inputs - 1]].null_count < table.num_rows:
            return False
        inputs -= 1
        names.pop(inputs)
    return True


def _wanted_ids(record: CommitRecord, source_rows: pa.Table | None, expected: Expected) -> list[str] | None:
    """The unit's row ids in order; None if they come from a column of an input that was not given."""
    column = expected.state.fingerprint["id_column"]
    if column is None:
        return derived_row_ids(record.stretches)
    if source_rows is None:
        return None
    return column_row_ids(source_rows[column].to_pylist(), derived_row_ids(record.stretches))


class _Letters:
    """A running digest of failed rows: id and message."""

    def __init__(self) -> None:
        self.count = 0
        self._digest = hashlib.sha256()

    def add(self, table: pa.Table, prefix: str, found: Findings | None = None) -> None:
        """Add the failed rows of a table of output rows, or all rows of a table of dead letters."""
        reason = f"{prefix}finish_reason"
        if reason in table.column_names:
            table = table.filter(pa.array(table[reason].to_numpy() == "error"))
        for row_id, error in zip(*(table[prefix + name].to_pylist() for name in ("row_id", "error")), strict=True):
            self._digest.update(f"{row_id}\x1f{error}\x1e".encode())
        self.count += table.num_rows
        if found is not None:
            found.add("failed_rows", table.num_rows)

    @property
    def digest(self) -> str:
        return self._digest.hexdigest()


def _check_letters(
    storage: Storage, publication: Publication, failures: _Letters | None, expected: Expected, found: Findings
) -> None:
    letters = _Letters()
    part = publication.dead_letters
    if part is not None:
        key = str(publication.dead_key)
        if check_bytes(storage, key, part, found) is None:
            return
        try:
            with storage.open(key) as file:
                for table in FORMATS[publication.format].tables(file, publication.dead_schema):
                    letters.add(table, expected.prefix)
        except (pa.ArrowException, OSError, ValueError, KeyError) as error:
            found.problem(f"{key}: cannot be read to its end ({error})")
            return
    if failures is not None and (letters.count, letters.digest) != (failures.count, failures.digest):
        found.problem(
            f"{publication.name}: its {failures.count} failed rows are not the {letters.count} of its dead letters"
        )
