"""Corrected rows, given alone with the ids of the failed rows whose place they take, as the source of a retry."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.errors import SourceError
from pipeline.sinks.staged import data_checksum
from pipeline.sources.formats.jsonl import JsonlSource
from pipeline.sources.source import BAD, HIDDEN, FileSource, SlicedSource, open_input, read_with_retries
from pipeline.sources.tabulate import tabulate
from pipeline.sources.text import TextSource
from pipeline.sources.types import ALL_COLUMNS, Wanted, holds_any_values, spelled_as
from pipeline.storage.urls import is_url, local_path
from pipeline.types import Place, SourceFile, Unit

_ROW_IDS = "(row id)"
"""Name of the last column, unless the rows have a column of this name."""
_READ_ROWS = 4096
_REMEDY = "Give the corrected rows again, with the same command."


@dataclass(frozen=True, kw_only=True)
class CorrectedUnit:
    """The rows of a unit that are corrected.

    Attributes:
        numbers: numbers of the failed rows within the unit, ascending.
        rows: of each, the number of the corrected row.
        letters: the unit's dead letters; None if all of its failed rows are corrected.
    """

    numbers: tuple[int, ...]
    rows: tuple[int, ...]
    letters: Place | None = None


@dataclass(frozen=True, kw_only=True)
class CorrectedRows:
    """A source of corrected rows. It is not cut into slices: units are those of the run. Picklable.

    Attributes:
        files: the files of the run's input, by key. They are not read.
        schema: columns of the rows.
        input_format: as in ``RunConfig``.
        path: the copy of the rows in the output.
        sha256: checksum of all of its columns.
        options: keyword arguments of its file system.
        units: unit id -> its corrected rows.
    """

    files: tuple[SourceFile, ...]
    schema: pa.Schema
    input_format: str
    path: str
    sha256: str
    options: Mapping[str, Any]
    units: Mapping[str, CorrectedUnit]

    @property
    def remedy(self) -> str:
        """The remedy for rows that differ from those that were read."""
        return _REMEDY

    @functools.cached_property
    def _rows(self) -> pa.Table:
        return load_rows(self.path, self.sha256, self.options)

    def rows_of(self, unit: Unit) -> pa.Table:
        """The corrected rows of a unit, in order.

        Raises:
            SourceError: the copy has changed since it was written.
        """
        return self._rows.take(pa.array(self.units[unit.unit_id].rows, pa.int64()))

    def planned_for(self, units: Mapping[str, CorrectedUnit]) -> CorrectedRows:
        """The same rows, for these units."""
        return replace(self, units=units)


def read_as_begun(source: SlicedSource, columns: pa.Schema) -> None:
    """Read an input whose failed rows may have been corrected with the types of the run's columns, and in their order.

    Types of text files are inferred, and other programs write Parquet with types of their own: one corrected row may
    change the type of a column, or the order of all. A value that does not fit its column fails its row.
    """
    if not isinstance(source, FileSource):
        return
    there = {field.name: field for field in columns}
    own = [
        field if field.name not in there or not _is_readable(source, field, there[field.name]) else there[field.name]
        for field in source.schema
    ]
    if {field.name for field in own} == there.keys():
        own.sort(key=lambda field: columns.names.index(field.name))
    if not pa.schema(own).equals(source.schema):
        source.widen(pa.schema(own))


def _is_readable(source: FileSource, own: pa.Field, run: pa.Field) -> bool:
    """Whether a column of another type than the run's can be read as that; cells of text are read one by one."""
    return own.type != run.type and (isinstance(source, TextSource) or source.fits(own.type, run.type))


def load_rows(path: str, sha256: str, options: Mapping[str, Any]) -> pa.Table:
    """The copy of corrected rows at a path or URL.

    Raises:
        SourceError: it is missing, or has changed since it was written.
    """

    def read() -> pa.Table:
        if not is_url(path):
            return pq.read_table(str(local_path(path)), partitioning=None)
        with open_input(path, options) as file:
            return pq.read_table(file)

    rows = read_with_retries(read, path)
    if data_checksum(rows, rows.column_names) != sha256:
        raise SourceError(f"{path}: its corrected rows changed after they were given. {_REMEDY}")
    return rows


def row_ids_of(rows: pa.Table) -> list[str]:
    """Of each corrected row, the id of the failed row whose place it takes: the last column."""
    found: list[str] = rows.column(rows.num_columns - 1).to_pylist()
    return found


def table_of(
    source: SlicedSource, where: str, ids: str, columns: pa.Schema, without: Sequence[str], wanted: Wanted = ALL_COLUMNS
) -> pa.Table:  # fmt: skip
    """The rows of a small source, in order, and the ids of the failed rows in the last column.

    ``ids``: the column of row ids; ``columns``: those that pass through; ``without``: those of dead letters, which
    are left out.

    Raises:
        SourceError: a column is missing, a row cannot be read, has no id or that of another one, or a value is of
            another type than the run's.
    """
    absent = [name for name in (ids, *columns.names) if name not in source.schema.names]
    if absent:
        raise SourceError(
            f"{where}: it is neither a whole input file of this run nor a file of corrected rows, which needs "
            f"the columns {absent} too. Correct failed rows in their file; or give each corrected row with all columns "
            f"of the input and its id in {ids!r}, as the dead letters have it."
        )
    if isinstance(source, TextSource):
        source.widen(pa.schema([field for field in columns if _is_read_as(source, field)]))
    table = _whole(source)
    for number, fault in enumerate(table[BAD].to_pylist() if BAD in table.column_names else ()):
        if fault is not None:
            raise SourceError(f"{where}: corrected row {number} cannot be read ({fault}). Correct it.")
    found = table[ids].to_pylist()
    first = {value: i for i, value in reversed(list(enumerate(found)))}
    wrong = next((i for i, value in enumerate(found) if value is None or first[value] != i), None)
    if wrong is not None:
        raise SourceError(
            f"{where}: corrected row {wrong} has {ids}={found[wrong]!r}, and each row needs its own. Fix it."
        )
    others = [name for name in table.column_names if name not in (*HIDDEN, *without, *columns.names)]
    values = [_with_type(table[field.name], source.schema.field(field.name), field, where, wanted) for field in columns]
    name = _ROW_IDS
    while name in (*columns.names, *others):
        name = f"({name})"
    own = pa.field(name, pa.string())
    values += [table[name] for name in others] + [pa.array([str(value) for value in found], own.type)]
    spelled = [spelled_as(field, source.schema.field(field.name)) for field in columns]
    fields = [*spelled, *(table.schema.field(name) for name in others), own]
    return pa.table(values, schema=pa.schema(fields, metadata=columns.metadata))


def _is_read_as(source: TextSource, field: pa.Field) -> bool:
    """Whether cells of a column are read as its type from the beginning; those of few rows look like another one."""
    own = source.schema.field(field.name)
    if pa.types.is_string(field.type):
        return source.fits(own.type, field.type)
    return isinstance(source, JsonlSource) and holds_any_values(own)


def _with_type(
    column: pa.ChunkedArray, own: pa.Field, field: pa.Field, where: str, wanted: Wanted
) -> pa.ChunkedArray:  # fmt: skip
    """A column with the type that it has in the run's input.

    Raises:
        SourceError: a value would change.
    """
    if column.type == field.type and holds_any_values(own) >= holds_any_values(field):
        return column
    if pa.types.is_string(column.type) and pa.types.is_temporal(field.type):
        with suppress(pa.ArrowException):
            return column.cast(field.type)  # files of text have no times
    table = tabulate([{field.name: value} for value in column.to_pylist()], pa.schema([field]), wanted)
    for number, fault in enumerate(table[BAD].to_pylist()):
        if fault is not None:
            fault = fault.rstrip(".")
            raise SourceError(f"{where}: corrected row {number}: {fault}. Give a value of the type of the run's input.")
    return table[field.name]


def _whole(source: SlicedSource) -> pa.Table:
    tables = [table for piece in source.slices(_READ_ROWS) for table in source.read([piece])]
    return pa.concat_tables(tables) if tables else source.schema.empty_table()
