"""The protocol of a table sink: a table of another system that takes the publications of an output, each exactly once.

A sink keeps the revision of each publication in the transaction that adds the rows, so a second try finds the commits
that are done. It refuses a commit if the table has changed since :meth:`TableSink.look` (:class:`ConflictError`); the
export then looks again. ``docs/reference/formats.md`` has a sink in 50 lines.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol, cast

import pyarrow as pa

from pipeline import layout
from pipeline.codec import first_line
from pipeline.errors import ConfigError, OutputError, PipelineError, SinkError
from pipeline.sinks.stored_rows import SupportsWrite

_MODULES = {"delta": "delta_table", "iceberg": "iceberg_table"}
TABLE_FORMATS = tuple(_MODULES)
"""Names of the formats; the module of each, in this package, has a function ``open_sink``."""


class ConflictError(SinkError):
    """Another process has committed to the table since it was looked at. Look again."""


@dataclass(frozen=True, kw_only=True)
class TableFile:
    """A published Parquet file.

    Attributes:
        name: a path in the table; files of one name have the same bytes.
        bytes, rows: size of the file, and its number of rows.
        copy_to: writes its bytes to a stream. Raises DamagedError if they are not as published, after the last one.
        tables: its rows in order, as Arrow tables of bounded size. Raises DamagedError before the first one.
    """

    name: str
    bytes: int
    rows: int
    copy_to: Callable[[SupportsWrite], object] = field(repr=False)
    tables: Callable[[], Iterator[pa.Table]] = field(repr=False)


@dataclass(frozen=True, kw_only=True)
class TableCommit:
    """A publication to commit: its rows replace the rows that the table has of this run and position.

    Attributes:
        run: name of the output in tables; it stays the same wherever the output is moved to.
        position: number of the publication, from 0; ``(run, position)`` are unique in a table.
        revision: 0, or how often the publication was replaced. The table keeps it under ``(run, position)``.
        replaces: the revision that the table has; None if it has no rows of this position.
        schema: columns of the rows, a subset of the columns that :meth:`TableSink.fit` was given.
        files: the rows.
        replaced: names of the files of the revision that is replaced.
    """

    run: str
    position: int
    revision: int
    replaces: int | None
    schema: pa.Schema
    files: Sequence[TableFile]
    replaced: Collection[str]

    @property
    def name(self) -> str:
        """Folder of the publication in the output."""
        return layout.publication(self.position, self.revision)


class TableSink(Protocol):
    """A table, which need not exist."""

    @property
    def url(self) -> str:
        """Its name in messages."""
        ...

    @property
    def version(self) -> int:
        """Version of the state that was looked at; 0 where the table has no versions."""
        ...

    def look(self) -> None:
        """Read the state of the table. The other methods refer to it. Raises OutputError if it cannot be read."""
        ...

    def is_empty(self) -> bool:
        """Whether there is no table, or no row in it."""
        ...

    def done(self, run: str, positions: Sequence[int]) -> Mapping[int, int]:
        """The revisions that the table keeps for positions of a run; without the positions that it has no rows of."""
        ...

    def fit(self, schema: pa.Schema) -> bool:
        """Make the table, or add columns that it lacks, null in older rows; whether there was something to do.

        Raises:
            ConfigError: it cannot hold a column.
            OutputError: the table that is there cannot take the rows.
            ConflictError, SinkError: as for :meth:`commit`.
        """
        ...

    def commit(self, change: TableCommit) -> None:
        """Replace the rows and keep the revision, wholly or not at all.

        Raises:
            ConflictError: the table has changed since it was looked at.
            OutputError: the rows to replace cannot be found.
            SinkError: it failed; the same command continues.
        """
        ...


def open_sink(
    format: str, to: str | os.PathLike[str], storage_options: Mapping[str, Any], table_options: Mapping[str, Any]
) -> TableSink:
    """A table of one of :data:`TABLE_FORMATS`.

    Raises:
        ConfigError: the format is unknown, its package is not installed, or an option is wrong.
    """
    if format not in _MODULES:
        raise ConfigError(f"format={format!r}: one of {list(TABLE_FORMATS)}. Pick one of these.")
    module = importlib.import_module(f"pipeline.sinks.{_MODULES[format]}")
    return cast("TableSink", module.open_sink(to, storage_options, table_options))


@contextmanager
def needing(package: str, extra: str) -> Iterator[None]:
    """Context that imports a package.

    Raises:
        ConfigError: it is not installed.
    """
    try:
        yield
    except ImportError:
        raise ConfigError(f"format={extra!r}: needs the package {package}. Install it: pip install "
                          f"'wedlm-batch[{extra}]'.") from None  # fmt: skip


@contextmanager
def committing(url: str, refusals: tuple[type[Exception], ...]) -> Iterator[None]:
    """Context of one commit: ``refusals``, because of another commit, are ConflictErrors, other failures SinkErrors."""
    try:
        yield
    except PipelineError:
        raise
    except Exception as error:  # errors of stores and catalogs have many kinds
        text = first_line(error)
        if isinstance(error, refusals) or "already exists" in text:
            raise ConflictError(f"{url}: {text}") from None
        if isinstance(error, ValueError):
            raise OutputError(f"{url}: not committed ({text}). Check the options and columns of the table.") from None
        raise SinkError(f"{url}: not committed ({text}). The same command continues.") from None


def check_replaced(change: TableCommit, there: Collection[str], url: str) -> None:
    """Check that the files whose place a commit takes are in the table.

    Raises:
        OutputError: some are not.
    """
    if gone := set(change.replaced).difference(there):
        raise OutputError(
            f"{url}: {change.name} takes the place of files that are not in the table any more ({min(gone)}, ...; "
            "OPTIMIZE, DELETE or another writer has rewritten them). Export to a new table."
        )


def check_faults(faults: Sequence[str], url: str) -> None:
    """Refuse a table for reasons.

    Raises:
        OutputError: names them.
    """
    if faults:
        raise OutputError(f"{url}: the table cannot take the output's files: {'; '.join(faults)}. Export to a table of "
                          "its own.")  # fmt: skip


_NESTED = (pa.types.is_struct, pa.types.is_map, pa.types.is_list, pa.types.is_large_list)
_PLAIN = (pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.bool_(), pa.string(),
          pa.large_string(), pa.string_view(), pa.binary(), pa.large_binary(), pa.binary_view(), pa.date32(),
          pa.timestamp("us"), pa.timestamp("us", "UTC"))  # fmt: skip


def plain_columns(schema: pa.Schema, format: str, not_in_names: str = "") -> pa.Schema:
    """The columns as tables declare them: without metadata, and nullable, so that others may write to the table too.

    Raises:
        ConfigError: names the columns that cannot be held, and the remedy.
    """
    schema = pa.schema([pa.field(field.name, _decoded(field.type)) for field in schema])
    names = [field.name for field in schema if any(set(own.name) & set(not_in_names) for own in _fields(field))]
    kinds = [f"{field.name}: {field.type}" for field in schema if not all(_is_held(own.type) for own in _fields(field))]
    if names or kinds:
        spaces = f", or names with one of {not_in_names!r}" if names else ""
        raise ConfigError(
            f"format={format!r}: its tables cannot hold columns {[*names, *kinds]} (no unsigned integers, half floats, "
            "times, durations, timestamps in another unit than us or another zone than UTC, fixed sizes, nulls alone, "
            f"longer decimals, extensions{spaces}). Rename or cast them in the input, or leave them out with "
            "columns=[...]; of a JSON schema, parse={parsed: {json: true}} writes JSON text."
        )
    return schema


def _fields(field: pa.Field) -> Iterator[pa.Field]:
    """A column and all fields in it."""
    yield field
    for at in range(field.type.num_fields):
        yield from _fields(field.type.field(at))


def _is_held(kind: pa.DataType) -> bool:
    """Whether a type can be held, without the types in it."""
    kind = _decoded(kind)
    nested = any(is_kind(kind) for is_kind in _NESTED)
    return (nested and kind.num_fields > 0) or kind in _PLAIN or pa.types.is_decimal128(kind)


def _decoded(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_dictionary(kind) else kind
