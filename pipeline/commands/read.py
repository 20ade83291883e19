"""``read``: the tables of an output, in input order."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, overload

import pyarrow as pa

from pipeline import layout
from pipeline.cluster.ray_dataset import ray_dataset
from pipeline.cluster.resources import is_private
from pipeline.commit.committed_rows import DEAD_LETTERS, ROWS, PublishedPart, committed_tables
from pipeline.commit.manifest import Manifest
from pipeline.commit.run_record import RunState
from pipeline.errors import ConfigError, DamagedError, OutputError, ResourceError
from pipeline.sinks import FORMATS
from pipeline.sinks.dataset_card import json_schema
from pipeline.sources.spool import features_of
from pipeline.storage.open import open_storage
from pipeline.storage.protocol import Storage

if TYPE_CHECKING:
    import pandas

    from pipeline.cluster.ray_dataset import Dataset

_ROWS_AT_ONCE = 1024
"""Rows that are Python objects at the same time while a table is iterated over."""


@dataclass(frozen=True, kw_only=True)
class OutputTable:
    """The rows or the dead letters of an output, in input order.

    Iterating gives one mapping for each row, a bounded number of rows in memory at a time.

    Attributes:
        schema: columns with exactly their Arrow types.
        tables: reads the rows again, as Arrow tables of bounded size.
        parts: the published files; None if rows are read that are not published.
        storage_options: keyword arguments of the output's file system.
    """

    schema: pa.Schema
    tables: Callable[[], Iterator[pa.Table]] = field(repr=False)
    parts: Sequence[PublishedPart] | None = field(default=None, repr=False)
    storage_options: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def to_arrow(self) -> pa.Table:
        """All rows, in memory."""
        return pa.concat_tables([self.schema.empty_table(), *self.tables()])

    def to_pandas(self) -> pandas.DataFrame:
        """All rows as a pandas frame, with exactly their values.

        Integer columns with nulls, such as counts and seeds where rows failed, have pandas' nullable integer types.
        Integers with nulls inside of lists are Python objects.
        """
        return exact_frame(self.to_arrow())

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for table in self.tables():
            for first in range(0, table.num_rows, _ROWS_AT_ONCE):
                yield from table.slice(first, _ROWS_AT_ONCE).to_pylist()

    @property
    def features(self) -> Any:
        """The columns' types, as ``datasets.load_dataset("json", data_files=..., features=...)`` takes them."""
        is_json = not all(FORMATS[part.format].has_types for part in self.parts or ())
        return features_of(json_schema(self.schema) if is_json else self.schema)

    @property
    def dataset(self) -> Dataset:
        """A lazy Ray dataset over the published files, in the running Ray session.

        Raises:
            ResourceError: no session runs; reading starts none.
            OutputError: rows that are not published.
        """
        if self.parts is None:
            raise OutputError("committed rows that are not published have no Ray dataset. Use to_arrow(), to_pandas() "
                              "or iterate over them.")  # fmt: skip
        if is_private():
            raise ResourceError(
                "dataset: a Ray dataset needs a Ray session, and none runs here. Use to_pandas(), to_arrow() or "
                "iterate over the rows, which need none; or call ray.init() first."
            )
        return ray_dataset(self.parts, self.schema, self.storage_options)


def exact_frame(table: pa.Table) -> pandas.DataFrame:
    """Make a frame: columns of integers with nulls have nullable types, the others pandas' usual ones."""
    frame = table.to_pandas(integer_object_nulls=True)  # integers with nulls inside of lists stay integers
    for place, column in enumerate(table.columns):
        if pa.types.is_integer(column.type) and column.null_count:
            frame.isetitem(place, column.to_pandas(types_mapper=_nullable))
    return frame


def _nullable(arrow: pa.DataType) -> Any:
    import pandas

    return pandas.api.types.pandas_dtype(str(arrow).replace("uint", "UInt").replace("int", "Int"))


_TABLES = {"rows": ROWS, "dead_letters": DEAD_LETTERS, "dropped": DEAD_LETTERS}


@overload
def read(
    output: str | os.PathLike[str],
    *,
    table: Literal["rows", "dead_letters", "dropped"] = ...,
    format: None = None,
    committed: bool = ...,
    storage_options: Mapping[str, Any] | None = ...,
) -> OutputTable: ...
@overload
def read(
    output: str | os.PathLike[str],
    *,
    table: Literal["rows", "dead_letters", "dropped"] = ...,
    format: Literal["ray"],
    committed: bool = ...,
    storage_options: Mapping[str, Any] | None = ...,
) -> Dataset: ...
@overload
def read(
    output: str | os.PathLike[str],
    *,
    table: Literal["rows", "dead_letters", "dropped"] = ...,
    format: Literal["arrow"],
    committed: bool = ...,
    storage_options: Mapping[str, Any] | None = ...,
) -> pa.Table: ...
def read(
    output: str | os.PathLike[str],
    *,
    table: Literal["rows", "dead_letters", "dropped"] = "rows",
    format: Literal["arrow", "ray"] | None = None,
    committed: bool = False,
    storage_options: Mapping[str, Any] | None = None,
) -> Any:
    """A table of an output, in input order: all of each publication or nothing of it.

    Args:
        output: the folder or URL of a run.
        table: "rows", the generations; "dead_letters", the failed input rows with their reasons; "dropped", a note of
            each row that :func:`pipeline.filter` left out.
        format: None gives an :class:`~pipeline.commands.read.OutputTable`, which reads the files when it is
            used (``to_pandas()``, ``to_arrow()``, iteration, ``dataset``); "arrow" its ``to_arrow()``, "ray" its
            ``dataset``.
        committed: also read committed rows that are not published yet (the run is under way or was interrupted):
            published rows first, then the others by file and row. Rows whose failures were retried are the new ones.
        storage_options: keyword arguments of the URL's file system.

    Raises:
        OutputError: nothing is published there; or with ``committed``, no run was begun there; or an output of its
            kind has no such table.
        ResourceError: a Ray dataset is asked for where no Ray session runs.
    """
    storage = open_storage(output, layout.SCRATCH, storage_options)
    _check_table(storage, table, committed=committed)
    found = _committed(storage, table) if committed else _published(storage, table, storage_options or {})
    if format == "arrow":
        return found.to_arrow()
    return found.dataset if format == "ray" else found


def _check_table(storage: Storage, table: str, *, committed: bool) -> None:
    """Refuse a table that outputs of this kind do not have.

    Raises:
        ConfigError: there is no table of this name.
        OutputError: not in this kind of output.
    """
    if table not in _TABLES:
        raise ConfigError(f"table={table!r}: must be one of {', '.join(map(repr, _TABLES))}. Pick one of these.")
    try:
        state = RunState.load(storage)
    except DamagedError:
        return
    if state is None or (table == "rows" and not committed):
        return
    if state.derived is None and table == "dropped":
        raise OutputError(f"{storage.url}: a run drops no rows. Read table='dead_letters' for the failed ones.")
    if state.derived is not None and (table == "dead_letters" or committed):
        what = "nothing that is not published" if committed else "no dead letters; those of its source do"
        raise OutputError(f"{storage.url}: made by `{state.derived.command}`, it has {what}. Read table='dropped' for "
                          "the rows that it left out.")  # fmt: skip


def _published(storage: Storage, table: str, options: Mapping[str, Any]) -> OutputTable:
    manifest = Manifest.load(storage)
    if not manifest.publications:
        state = "no run"
        if storage.exists(layout.RUN):
            state = "a run was begun but not finished: run it again to continue, or read with committed=True"
        raise OutputError(f"{storage.url}: nothing is published there ({state}).")
    schema = manifest.widest.schema if table == "rows" else manifest.widest.dead_schema
    parts = [
        replace(part, schema=schema, lacks=len(part.schema) < len(schema))
        for publication in manifest.publications
        for part in _TABLES[table].parts(storage, publication)
    ]
    return OutputTable(
        schema=schema,
        tables=lambda: (piece for part in parts for piece in part.tables()),
        parts=parts,
        storage_options=options,
    )


def _committed(storage: Storage, table: str) -> OutputTable:
    state = RunState.load_begun(storage)
    schema = state.schema if table == "rows" else state.dead_schema

    def tables() -> Iterator[pa.Table]:
        return committed_tables(storage, _TABLES[table], state, schema)

    return OutputTable(schema=schema, tables=tables)
