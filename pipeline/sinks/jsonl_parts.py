"""JSON Lines parts: one object per row, in UTF-8; :mod:`pipeline.sinks.json_values` converts the values."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, BinaryIO

import pyarrow as pa

from pipeline.sinks.dataset_card import card_of
from pipeline.sinks.json_values import from_json_values, to_json_values

_BATCH_ROWS = 4096


class JsonlFormat:
    """JSON Lines."""

    name = "jsonl"
    suffix = ".jsonl"

    def open(self, file: BinaryIO | io.BufferedIOBase, schema: pa.Schema) -> _JsonlPart:
        """Begin a part file."""
        return _JsonlPart(file, schema)

    def tables(self, file: BinaryIO, schema: pa.Schema) -> Iterator[pa.Table]:
        """One table per few thousand rows; one empty table if there are no rows."""
        lines = iter(file)
        held = list(islice(lines, _BATCH_ROWS))
        while True:
            rows = [json.loads(line) for line in held]
            columns = [from_json_values([_cell(row, field) for row in rows], field.type) for field in schema]
            yield pa.table(columns, schema=schema)
            held = list(islice(lines, _BATCH_ROWS))
            if not held:
                return

    def card(self, schema: pa.Schema) -> bytes:
        """The types of the columns."""
        return card_of(schema, f"data-*/*{self.suffix}")


def _cell(row: Mapping[str, Any], field: pa.Field) -> Any:
    """A value; null where the table gained the column after the row was written."""
    return row.get(field.name) if field.nullable else row[field.name]


class _JsonlPart:
    def __init__(self, file: BinaryIO | io.BufferedIOBase, schema: pa.Schema) -> None:
        self._file = file
        self._names = schema.names

    def write(self, table: pa.Table) -> None:
        for batch in table.to_batches(max_chunksize=_BATCH_ROWS):
            columns = [to_json_values(column) for column in batch.columns]
            for row in zip(*columns, strict=True):
                text = json.dumps(dict(zip(self._names, row, strict=True)), ensure_ascii=False, allow_nan=False)
                self._file.write(text.encode() + b"\n")

    def close(self) -> None:
        """Nothing is buffered."""
