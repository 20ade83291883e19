"""Columns from folders that are named ``name=value``, as Hive, Spark and Arrow lay out partitioned tables.

Names, values and types are those that ``pyarrow.dataset`` infers with ``partitioning="hive"``: integers of 32 bits if
all values of a name are such, else text. Where the files themselves have a column of that name, theirs counts.
"""

from __future__ import annotations

import urllib.parse
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import pyarrow as pa

from pipeline.types import SourceFile

__all__ = ["Partitions", "partitions_in"]

_NULL = "__HIVE_DEFAULT_PARTITION__"


def partitions_in(folders: str) -> tuple[tuple[str, str | None], ...]:
    """The names and values in a ``/``-separated path of folders; of a name that occurs twice, the last value."""
    pairs = (folder.split("=", 1) for folder in folders.split("/") if folder.find("=") > 0)
    return tuple({name: _value(text) for name, text in pairs}.items())


def _value(text: str) -> str | None:
    with suppress(UnicodeDecodeError):  # no text was encoded like this
        text = urllib.parse.unquote(text, errors="strict")
    return None if text == _NULL else text


@dataclass(frozen=True, kw_only=True)
class Partitions:
    """The columns that folders add to the files in them.

    Attributes:
        fields: the columns.
        values: for each file, the value of each column.
    """

    fields: tuple[pa.Field, ...] = ()
    values: tuple[tuple[pa.Scalar, ...], ...] = ()

    @classmethod
    def of(cls, files: Sequence[SourceFile], columns: Sequence[str]) -> Partitions:
        """Those of ``files``, but for names that are among the files' own ``columns``."""
        rows = [dict(file.partitions) for file in files]
        names = [name for name in dict.fromkeys(name for row in rows for name in row) if name not in columns]
        arrays = [_typed([row.get(name) for row in rows]) for name in names]
        fields = tuple(pa.field(name, array.type) for name, array in zip(names, arrays, strict=True))
        return cls(fields=fields, values=tuple(zip(*arrays, strict=True)) if arrays else ())

    def cast(self, types: Mapping[str, pa.DataType]) -> Partitions:
        """The same columns, those in ``types`` of these types."""
        fields = tuple(field.with_type(types.get(field.name, field.type)) for field in self.fields)
        values = tuple(
            tuple(value.cast(field.type) for value, field in zip(row, fields, strict=True)) for row in self.values
        )
        return Partitions(fields=fields, values=values)

    def add_to(self, table: pa.Table, file: int, hidden: Sequence[str]) -> pa.Table:
        """The rows of a file, with the columns in front of the ``hidden`` ones."""
        if not self.fields:
            return table
        place = sum(name not in hidden for name in table.column_names)
        for field, value in zip(reversed(self.fields), reversed(self.values[file]), strict=True):
            table = table.add_column(place, field, pa.repeat(value, table.num_rows))
        return table


def _typed(texts: list[str | None]) -> pa.Array:
    array = pa.array(texts, pa.string())
    if array.null_count == len(array):
        return array
    try:
        return array.cast(pa.int32())
    except pa.ArrowInvalid:
        return array
