"""Counts of labels: how many rows have each value, where a result column has few different short texts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["Labels", "labels_of", "merged"]

MOST_LABELS = 20
_MOST_CHARACTERS = 60

Labels = Mapping[str, Mapping[str, int] | None]
"""Column, or ``parsed.FIELD`` -> number of rows by value; None where the values are too many or too long."""


def labels_of(table: pa.Table, prefix: str = "") -> Labels:
    """Count the values of the texts, and of each text field of the column ``parsed``.

    Args:
        table: output rows that succeeded.
        prefix: prefix of the names of result columns.
    """
    if not table.num_rows:
        return {}
    columns = {"text": table[f"{prefix}text"]}
    parsed = f"{prefix}parsed"
    if parsed in table.column_names and pa.types.is_struct(table.schema.field(parsed).type):
        own = table[parsed]
        names = [field.name for field in own.type if pa.types.is_string(field.type)]
        columns = {f"parsed.{name}": pc.struct_field(own, [name]) for name in names}
    return {name: _counted(column) for name, column in columns.items()}


def merged(*parts: Labels) -> Labels:
    """Add the counts of several parts. A column that one of them has not counted is not counted."""
    found: dict[str, Mapping[str, int] | None] = {}
    for name in sorted({name for part in parts for name in part}):
        counts: Counter[str] = Counter()
        complete = True
        for part in parts:
            own = part.get(name)
            complete &= own is not None
            counts.update(own or {})
        found[name] = dict(sorted(counts.items())) if complete and len(counts) <= MOST_LABELS else None
    return found


def _counted(column: pa.ChunkedArray) -> dict[str, int] | None:
    longest = pc.max(pc.utf8_length(column)).as_py()
    if longest is not None and longest > _MOST_CHARACTERS:
        return None
    counts = pc.value_counts(column.combine_chunks())
    if len(counts) > MOST_LABELS:
        return None
    return dict(sorted((own["values"].as_py(), own["counts"].as_py()) for own in counts if own["values"].is_valid))
