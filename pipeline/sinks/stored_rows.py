"""Reads output rows from staged units or published parts, and checks them against their checksums."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from pipeline.schema import data_columns
from pipeline.sinks import FORMATS
from pipeline.sinks.formats import cast_table
from pipeline.sinks.staged import data_checksum, load_staged
from pipeline.storage.damage import Damage, FoundDamageError, as_damage
from pipeline.storage.protocol import Storage
from pipeline.types import Place, derived_row_ids

_CHUNK_BYTES = 2**22
_PROVEN: set[tuple[str, str, str | None]] = set()


class PlaceReader:
    """Reads rows from places of one output and checks them; :class:`~pipeline.types.Place` has the checksums.

    Args:
        storage: the output.
        schema: schema of the rows.
        inputs: number of its columns that are the input's.
        prefix: prefix of the names of the other columns.
    """

    def __init__(self, storage: Storage, schema: pa.Schema, inputs: int, prefix: str) -> None:
        self._storage = storage
        self._schema = schema
        self._inputs = inputs
        self._prefix = prefix
        self._proven: set[tuple[str, str, str | None]] = set()

    def read(self, place: Place) -> Iterator[pa.Table]:
        """The rows at a place, in order, a bounded number at a time.

        Raises:
            FoundDamageError: the object is missing, cannot be read, or differs from the committed one.
        """
        if place.format is None:
            yield self._staged(place)
            return
        # Decode nothing before its checksum was checked. An object may have many places with a checksum of their own
        # (one per unit); the process remembers for all of them which objects it has checked.
        proven = self._proven if place.data_sha256 is None else _PROVEN
        name = (self._storage.url, place.key, place.sha256)
        if place.sha256 is not None and name not in proven:
            check_object(self._storage, place.key, place.sha256)
            proven.add(name)
        if place.data_sha256 is not None:
            yield self._proven_stretch(place, place.data_sha256)
        else:
            yield from self._stretch(place)

    def check(self, place: Place) -> None:
        """Check a place without using its rows; raises as :meth:`read`."""
        for _ in self.read(place):
            pass

    def _staged(self, place: Place) -> pa.Table:
        table = load_staged(self._storage, place.key, place.sha256)
        faults = []
        if table.num_rows != place.num_rows:
            faults.append(f"{table.num_rows} rows where {place.num_rows} were committed")
        elif place.input is not None:
            ids = derived_row_ids(place.input)
            faults = unit_row_faults(table, ids, len(ids), self._prefix)
        if faults:
            raise FoundDamageError([Damage(key=place.key, fault=faults[0])])
        return cast_table(table, self._schema)  # columns that a table has gained since are null

    def _proven_stretch(self, place: Place, wanted: str) -> pa.Table:
        try:
            table = pa.concat_tables([self._schema.empty_table(), *self._stretch(place)])
        except (pa.ArrowException, OSError, ValueError, KeyError) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise  # Arrow's errors for damaged data have no errno
            raise FoundDamageError([Damage(key=place.key, fault=f"cannot be read to its end ({error})")]) from error
        if data_checksum(table, data_columns(table.schema, self._inputs, self._prefix)) != wanted:
            fault = f"rows {place.first_row} to {place.first_row + place.num_rows - 1} differ from the committed ones"
            raise FoundDamageError([Damage(key=place.key, fault=fault)])
        return table

    def _stretch(self, place: Place) -> Iterator[pa.Table]:
        assert place.format is not None
        stop = place.first_row + place.num_rows
        end = 0
        with as_damage(place.key):
            file = self._storage.open(place.key)
        with file:
            for table in FORMATS[place.format].tables(file, self._schema):
                begin, end = end, end + table.num_rows
                if end > place.first_row:
                    yield table.slice(max(0, place.first_row - begin), min(end, stop) - max(begin, place.first_row))
                if end >= stop:
                    return
        raise FoundDamageError([Damage(key=place.key, fault=f"ends at row {end}, row {stop} was published")])


class SupportsWrite(Protocol):
    """Something with a ``write`` method."""

    def write(self, data: Any, /) -> int:
        """Append."""
        ...


def check_object(storage: Storage, key: str, sha256: str, copy: SupportsWrite | None = None) -> None:
    """Check an object's SHA-256, and write its bytes to ``copy`` if given.

    Raises:
        FoundDamageError: it is missing, cannot be read, or has another checksum.
    """
    digest = hashlib.sha256()
    with as_damage(key):
        file = storage.open(key)
    with file:
        while True:
            with as_damage(key):
                chunk = file.read(_CHUNK_BYTES)
            if not chunk:
                break
            digest.update(chunk)
            if copy is not None:
                copy.write(chunk)
    if digest.hexdigest() != sha256:
        raise FoundDamageError([Damage(key=key, fault="changed since it was published (SHA-256 differs)")])


class RowStream:
    """Takes rows from a stream of tables, any number at a time."""

    def __init__(self, tables: Iterator[pa.Table], schema: pa.Schema) -> None:
        self._tables = tables
        self._held = schema.empty_table()

    def has_rows(self) -> bool:
        """Whether there is another row."""
        return self.peek(1).num_rows > 0

    def peek(self, rows: int) -> pa.Table:
        """The next ``rows`` rows, or fewer at the end; they stay."""
        while self._held.num_rows < rows and (table := next(self._tables, None)) is not None:
            self._held = pa.concat_tables([self._held, table])
        return self._held.slice(0, rows)

    def take(self, rows: int) -> pa.Table:
        """The next ``rows`` rows, or fewer at the end."""
        taken = self.peek(rows)
        self._held = self._held.slice(taken.num_rows)
        return taken


def unit_row_faults(table: pa.Table, ids: Sequence[str] | None, rows: int, prefix: str) -> list[str]:
    """Check that output rows are those of a unit: every input row once, in order, its samples numbered from 0.

    ``ids``: row ids of its ``rows`` input rows, in order; None if they are not known.

    Returns:
        The faults; empty if there are none.
    """
    faults = []
    samples = table[f"{prefix}sample_index"].to_numpy()
    numbers = np.cumsum(samples == 0) - 1
    if len(samples) and (samples[0] != 0 or np.any((samples[1:] != 0) & (np.diff(samples) != 1))):
        faults.append("the samples of a row are not numbered from 0 without a gap")
    if ids is not None:
        there = table[f"{prefix}row_id"].to_pylist()
        wanted = [ids[i] if 0 <= i < len(ids) else None for i in numbers.tolist()]
        first = next((i for i, own in enumerate(there) if own != wanted[i]), None)
        if first is not None:
            faults.append(f"row {there[first]!r} where {wanted[first] or 'none'!r} belongs")
    count = int(numbers[-1]) + 1 if len(numbers) else 0
    if count != rows:
        faults.append(f"{count} input rows where the unit has {rows}")
    return faults
