"""The source of files that are added to a table: takes its columns and types, and names the file that cannot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from pipeline.errors import SourceError
from pipeline.sources.finding import Found
from pipeline.sources.source import FileSource
from pipeline.sources.source_opening import ROWS, open_files


def open_added_files(
    name: str,
    found: Sequence[Found],
    options: Mapping[str, Any],
    *,
    table: pa.Schema | None,
    versions: Mapping[str, int] | None = None,
    input_format: str = ROWS,
) -> FileSource:
    """The source of files that are added to a table.

    Args:
        name: of the input, for messages.
        found: the files.
        options: keyword arguments of their file system.
        table: input columns that the table has; None for a new table.
        versions: see :func:`pipeline.sources.source_opening.open_files`.
        input_format: as in ``RunConfig``, but for "auto".

    Raises:
        SourceError: a file cannot be read, or has a column of a type that the table's, or another file's, cannot hold;
            the message names file, column, both types and the remedy.
    """

    def opened(files: Sequence[Found]) -> FileSource:
        return open_files(
            name, files, options, versions=versions, input_format=input_format
        )  # fmt: skip

    try:
        source = opened(found)
    except SourceError:
        _name_conflict([opened([file]) for file in found], table)
        raise
    if table is not None and _conflict(source, table) is not None:
        _name_conflict([opened([file]) for file in found], table)
        raise SourceError(_describe(source, _conflict(source, table) or "", table, "the table"))
    return source


def _conflict(source: FileSource, table: pa.Schema) -> str | None:
    """The first column of a source that does not fit that of a table."""
    both = [field for field in source.schema if field.name in table.names]
    return next((own.name for own in both if not source.fits(own.type, table.field(own.name).type)), None)


def _name_conflict(sources: Sequence[FileSource], table: pa.Schema | None) -> None:
    """Raise the error that names the first file whose columns fit neither the table nor the files before it."""
    seen = pa.schema([]) if table is None else table
    holder = dict.fromkeys(seen.names, "the table")
    for source in sources:
        column = _conflict(source, seen)
        if column is not None:
            raise SourceError(_describe(source, column, seen, holder[column]))
        fresh = [field for field in source.schema if field.name not in seen.names]
        seen = pa.schema([*seen, *fresh])
        holder |= {field.name: f"input file {source.files[0].path!r}" for field in fresh}


def _describe(source: FileSource, column: str, table: pa.Schema, holder: str) -> str:
    own, wanted = source.schema.field(column).type, table.field(column).type
    return (
        f"input file {source.files[0].path!r}: column {column!r} is {own}, and {wanted} in {holder}. Columns may be "
        f"added, their types cannot change: write the file with {wanted} (or leave the column out), or write to "
        "another output."
    )
