"""Checks that the ids of a column are unique, in memory that does not grow with the number of rows.

Hashes of the ids are spread over files by their first bits, so that each file fits in memory and equal ids are in the
same file.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from pipeline.commit.index import PlannedUnits
from pipeline.errors import SourceError
from pipeline.plan.units import read_tasks, read_units
from pipeline.sources.source import BAD, Source
from pipeline.types import Unit, derived_row_ids

__all__ = ["check_unique_ids"]

_PART_ROWS = 2**19
"""Number of hashes that are sorted at once, and that are buffered before they are written."""
_ENTRY = np.dtype([("high", "<u8"), ("low", "<u8"), ("row", "<u8")])


def check_unique_ids(source: Source, units: PlannedUnits, column: str, *, derives: bool = False) -> None:
    """Check that no id is null or empty and no id occurs twice; a row that could not be read needs none.

    Writes 24 bytes per row to the folder for temporary files.

    Args:
        source: the input.
        units: all of its units.
        column: the column of ids.
        derives: a row may lack its id.

    Raises:
        SourceError: a null, empty or repeated id, with the row it is in.
    """
    bits = max(0, (units.rows - 1) // _PART_ROWS).bit_length()
    with tempfile.TemporaryDirectory(prefix="wedlm-ids-") as folder:
        held: list[np.ndarray] = []
        rows = 0
        for entries in _entries(source, units, column, derives):
            held.append(entries)
            rows += len(entries)
            if rows >= _PART_ROWS:
                _spread(Path(folder), np.concatenate(held), bits)
                held, rows = [], 0
        if held:
            _spread(Path(folder), np.concatenate(held), bits)
        for part in sorted(Path(folder).iterdir()):
            same = _equal(np.fromfile(part, _ENTRY))
            if same is not None:
                raise SourceError(
                    f"id_column={column!r}: input rows {same[0]} and {same[1]} (counted from 0 over all files) have "
                    "the same id. Make ids unique, or leave id_column out."
                )


def _entries(source: Source, units: PlannedUnits, column: str, derives: bool) -> Iterator[np.ndarray]:
    """Hashes of the ids of each unit, with their rows' numbers over all files."""
    row = 0
    for task in read_tasks(units):
        for unit, table in zip(task.units, read_units(source, task.units), strict=True):
            ids = table[column].to_pylist()
            derived = derived_row_ids(unit.stretches(source.files))
            faults = table[BAD].to_pylist() if BAD in table.column_names else [None] * len(ids)
            ids = [
                own if value in (None, "") and (derives or fault is not None) else value
                for value, own, fault in zip(ids, derived, faults, strict=True)
            ]
            hashes = _hashed(ids, source, unit, column)
            entries = np.empty(len(hashes), _ENTRY)
            entries["high"], entries["low"] = hashes[:, 0], hashes[:, 1]
            entries["row"] = np.arange(row, row + len(hashes))
            row += len(hashes)
            yield entries


def _hashed(ids: list[object], source: Source, unit: Unit, column: str) -> np.ndarray:
    """A 128-bit hash of each id as two numbers; accidental collisions are negligible at any input size."""
    for offset, value in enumerate(ids):
        if value in (None, "") or isinstance(value, (list, dict, float)):
            places = [(piece.file, piece.first_row + i) for piece in unit.slices for i in range(piece.num_rows)]
            file, row = places[offset]
            raise SourceError(
                f"id_column={column!r}: {value!r} in row {row} of {source.files[file].path} is not an id. "
                "Ids are text or integers, never null or empty."
            )
    digests = (hashlib.blake2b(str(value).encode(), digest_size=16).digest() for value in ids)
    return np.frombuffer(b"".join(digests), "<u8").reshape(-1, 2)


def _spread(folder: Path, entries: np.ndarray, bits: int) -> None:
    """Append entries to the files of their first ``bits`` bits."""
    parts = (entries["high"] >> np.uint64(64 - bits)).astype(np.int64) if bits else np.zeros(len(entries), np.int64)
    order = np.argsort(parts, kind="stable")
    ends = np.searchsorted(parts[order], np.arange(2**bits), side="right")
    for number, group in enumerate(np.split(entries[order], ends[:-1])):
        if len(group):
            with (folder / f"{number:08d}").open("ab") as file:
                group.tofile(file)


def _equal(entries: np.ndarray) -> tuple[int, int] | None:
    """The row numbers of two entries with the same hash, the first such pair in the input; None if there is none."""
    ordered = entries[np.lexsort((entries["row"], entries["low"], entries["high"]))]
    same = (ordered["high"][1:] == ordered["high"][:-1]) & (ordered["low"][1:] == ordered["low"][:-1])
    places = np.flatnonzero(same)
    if not len(places):
        return None
    place = places[np.argmin(ordered["row"][places])]
    return int(ordered["row"][place]), int(ordered["row"][place + 1])
