"""Output rows wherever they are: in a staged unit, or in a stretch of a published part."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from pipeline.sinks import FORMATS
from pipeline.sinks.staging import load_staged
from pipeline.storage import Storage
from pipeline.types import Place

__all__ = ["read_place"]


def read_place(storage: Storage, place: Place, schema: pa.Schema) -> Iterator[pa.Table]:
    """The rows at a place, in order, as ``schema``, a bounded number at a time."""
    if place.format is None:
        yield load_staged(storage, place.key).cast(schema)
        return
    stop = place.first_row + place.num_rows
    end = 0
    with storage.open(place.key) as file:
        for table in FORMATS[place.format].tables(file, schema):
            begin, end = end, end + table.num_rows
            if end > place.first_row:
                yield table.slice(max(0, place.first_row - begin), min(end, stop) - max(begin, place.first_row))
            if end >= stop:
                return
