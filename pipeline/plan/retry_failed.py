"""Retries failed rows: finds them, and merges their new results with the other rows of their units.

A unit keeps its id. Its next attempt covers its failed rows only; the result is the output of the attempt before with
these rows replaced. Knows tables and where rows are stored; does not know Ray or models.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.codec import FinishReason
from pipeline.commit.index import Index
from pipeline.commit.part_files import staged_place
from pipeline.plan.job import Job
from pipeline.sinks.staged import digest_of_rows
from pipeline.types import Place, Unit

REPAIR_FIRST = (
    "Its rows that succeeded have to be generated again with the run's own settings: run with these and repair=True, "
    "then retry the failed rows."
)


def with_previous(units: Iterable[Unit], index: Index, *, derived_ids: bool) -> Iterator[Unit]:
    """Add to units of a later attempt the output rows and the input checksum of the attempt before.

    If that attempt was revoked, or its record is lost, all rows of the unit are generated again.
    """
    for unit in units:
        if unit.attempt == 1:
            yield unit
            continue
        record = index.records.get(unit.unit_id)
        if record is None:
            revoked = index.records.revoked(unit.unit_id)
            yield replace(unit, input_sha256=None if revoked is None else revoked.input_sha256 or None)
            continue
        place = index.published.place(unit.unit_id, record.attempt)
        before = (
            staged_place(record, derived_ids=derived_ids)
            if place is None
            else replace(place, data_sha256=record.data_sha256)
        )
        yield replace(
            unit, previous=before, input_sha256=record.input_sha256 or None, kept_sha256=record.kept_sha256
        )  # fmt: skip


def failed_rows(out: pa.Table, prefix: str) -> list[int]:
    """Numbers of the failed input rows within their unit, from the unit's output rows."""
    return _row_numbers(out, prefix)[_failed(out, prefix)].tolist()


def kept_sha256(out: pa.Table, digests: bytes, prefix: str, apart: Collection[int]) -> str:
    """Checksum of the input rows of a unit that succeeded; see :class:`~pipeline.types.CommitRecord`.

    Args:
        out: the unit's output rows.
        digests: of all of its input rows, from :func:`~pipeline.sinks.staged.row_digests`.
        prefix: prefix of the result columns.
        apart: numbers of retries whose rows are not those of the input.
    """
    return digest_of_rows(digests, kept_rows(out, prefix, apart))


def kept_rows(out: pa.Table, prefix: str, apart: Collection[int]) -> list[int]:
    """Numbers within their unit of rows that succeeded, without rows that were corrected apart. Arguments as above."""
    kept = ~_failed(out, prefix) & (out[f"{prefix}sample_index"].to_numpy() == 0)
    if apart:
        kept &= ~pc.fill_null(pc.is_in(out[f"{prefix}retry"], pa.array(apart, pa.int32())), False).to_numpy()
    return _row_numbers(out, prefix)[kept].tolist()


def retried_rows(out: pa.Table, prefix: str) -> dict[str, int]:
    """Number of each retry in the column ``retry`` (as text, for JSON) -> input rows."""
    numbers = out[f"{prefix}retry"].filter(pc.equal(out[f"{prefix}sample_index"], 0)).drop_null()
    return {str(own["values"]): own["counts"] for own in pc.value_counts(numbers).to_pylist()}


def _row_numbers(out: pa.Table, prefix: str) -> np.ndarray:
    """The number of the input row of each output row; a new input row begins at each sample 0."""
    return np.cumsum(out[f"{prefix}sample_index"].to_numpy() == 0) - 1


def _failed(out: pa.Table, prefix: str) -> np.ndarray:
    return pc.equal(out[f"{prefix}finish_reason"], FinishReason.ERROR.value).to_numpy()


def merge_retried(before: pa.Table, retried: pa.Table, prefix: str, rows: Sequence[int] | None = None) -> pa.Table:
    """A unit's output rows: ``before`` with some of its failed rows replaced by ``retried``, in input order.

    Args:
        before: output rows of the attempt before.
        retried: output rows of the new attempt at the failed rows, in the same order.
        prefix: prefix of the result columns.
        rows: numbers of the failed rows that were done again; None: all.
    """
    numbers = _row_numbers(before, prefix)
    done = numbers[_failed(before, prefix)] if rows is None else np.asarray(rows)
    again = done[_row_numbers(retried, prefix)]
    kept = ~np.isin(numbers, done)
    order = np.argsort(np.concatenate([numbers[kept], again]), kind="stable")
    both = pa.concat_tables([before.filter(pa.array(kept)), retried])
    return both.take(pa.array(order))


def merge_letters(before: pa.Table, retried: pa.Table, dead: pa.Table, out: pa.Table, prefix: str) -> pa.Table:
    """A unit's dead letters: those of failed rows that were not done again, and ``dead``, in the order of ``out``."""
    name = f"{prefix}row_id"
    left = before.filter(pc.invert(pc.is_in(before[name], retried[name].combine_chunks())))
    both = pa.concat_tables([left, dead])
    wanted = out[name].filter(pa.array(_failed(out, prefix))).combine_chunks()
    return both.take(pc.index_in(wanted, both[name].combine_chunks()))


def load_place(job: Job, place: Place) -> pa.Table:
    """The output rows at a place.

    Raises:
        FoundDamageError: they differ from the committed rows.
    """
    return pa.concat_tables(job.rows.reader(job.storage).read(place))
