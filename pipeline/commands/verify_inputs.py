"""Compares a unit's output rows with the input rows that they were generated for."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.plan.retry_failed import kept_sha256
from pipeline.sinks.staged import data_checksum, row_digests
from pipeline.types import CommitRecord


def input_faults(
    table: pa.Table,
    record: CommitRecord,
    source_rows: pa.Table,
    *,
    columns: Sequence[str],
    names: Sequence[str],
    prefix: str,
    apart: Collection[int],
) -> list[str]:
    """The faults of a unit's passed-through columns, and of its input; at most one of each kind.

    Failed rows may have been corrected in the input since; the others are still compared.

    Args:
        table: the unit's output rows.
        record: its ledger record.
        source_rows: its input rows.
        columns: names of the passed-through columns.
        names: of all columns of the input.
        prefix: of the result columns.
        apart: numbers of retries whose rows are not those of the input.
    """
    faults = []
    compared = _own(table, prefix, apart)
    if data_checksum(source_rows, source_rows.column_names) != record.input_sha256:
        if not _are_kept(table, record, row_digests(source_rows, names), prefix, apart):
            faults.append(
                "the input's rows are not those that were read for it (checksum of all their columns differs)"
            )
        else:
            compared &= table[f"{prefix}finish_reason"].to_numpy() != "error"
    numbers = (np.cumsum(table[f"{prefix}sample_index"].to_numpy() == 0) - 1)[compared]
    if len(numbers) and (numbers.min() < 0 or numbers.max() >= source_rows.num_rows):
        return faults
    own, wanted = table.filter(pa.array(compared)), source_rows.take(pa.array(numbers))
    differ = [name for name in columns if data_checksum(own, [name]) != data_checksum(wanted, [name])]
    return [*faults, *(f"column {name!r} differs from the input's" for name in differ)]


def _own(table: pa.Table, prefix: str, apart: Collection[int]) -> np.ndarray:
    """Which output rows are of rows of the input."""
    if not apart:
        return np.ones(table.num_rows, dtype=bool)
    return ~pc.fill_null(pc.is_in(table[f"{prefix}retry"], pa.array(apart, pa.int32())), False).to_numpy()


def _are_kept(table: pa.Table, record: CommitRecord, digests: bytes, prefix: str, apart: Collection[int]) -> bool:
    """Whether the rows that succeeded are those that were read, where others failed."""
    return bool(record.kept_sha256) and kept_sha256(table, digests, prefix, apart) == record.kept_sha256


def correction_faults(
    table: pa.Table, corrected: Mapping[int, tuple[pa.Table, Mapping[str, int]]], columns: Sequence[str], prefix: str
) -> list[str]:
    """The faults of output rows that are of corrected rows; at most one of each kind."""
    faults = []
    for number, (rows, places) in corrected.items():
        own = table.filter(pc.fill_null(pc.equal(table[f"{prefix}retry"], number), False))
        found = [places.get(row_id) for row_id in own[f"{prefix}row_id"].to_pylist()]
        if None in found:
            faults.append(f"a row is said to be of retry {number}, which had no row of its id")
            continue
        wanted = rows.take(pa.array(found, pa.int64()))
        differ = [name for name in columns if data_checksum(own, [name]) != data_checksum(wanted, [name])]
        faults += [f"column {name!r} differs from the corrected rows of retry {number}" for name in differ]
    return faults
