"""Aggregates of published parts, for the report: made while a part is written, and kept under the part's checksum.

So each row of the output is counted exactly once, whatever was killed, done again or replaced: an aggregate counts if
and only if its part is published. One that is missing or damaged is made again from the rows of the part. Nothing in
here fails a run.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa

from pipeline import layout
from pipeline.commit.sealed import seal, unseal
from pipeline.errors import DamagedError, SinkError, log_failure
from pipeline.reporting.aggregate import Aggregate, Aggregator
from pipeline.storage.protocol import Storage

__all__ = ["PartAggregator", "load_aggregates", "sweep_aggregates"]

_LOG = logging.getLogger(__name__)
_READ_AT_ONCE = 32


class PartAggregator:
    """Aggregates the rows of a part that is being written.

    Args:
        prefix: prefix of the names of its columns that are not the input's.
    """

    def __init__(self, prefix: str) -> None:
        self._aggregator: Aggregator | None = Aggregator(prefix)

    def add(self, table: pa.Table) -> None:
        """Count rows. An error is logged, and the part gets no aggregate."""
        try:
            if self._aggregator is not None:
                self._aggregator.add(table)
        except Exception as error:
            self._give_up(error)

    def put(self, storage: Storage, sha256: str) -> None:
        """Keep the aggregate of the part with this checksum."""
        try:
            if self._aggregator is not None:
                storage.put(layout.part_aggregate(sha256), seal(self._aggregator.result().to_dict()))
        except Exception as error:
            self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        self._aggregator = None
        log_failure(_LOG, "a part's rows could not be aggregated; reports will read the part", error)


def load_aggregates(storage: Storage, parts: Sequence[tuple[str, int]]) -> Iterator[Aggregate | None]:
    """For each part, given by checksum and rows, its aggregate; None if there is none that this version can use.

    A bounded number is in memory at a time.
    """
    for first in range(0, len(parts), _READ_AT_ONCE):
        some = parts[first : first + _READ_AT_ONCE]
        keys = [layout.part_aggregate(sha256) for sha256, _ in some]
        try:
            found: Sequence[bytes | None] = storage.read_many(keys)
        except (OSError, SinkError):  # one of them is missing, or cannot be read: find out which
            found = [_read(storage, key) for key in keys]
        for data, (_, rows) in zip(found, some, strict=True):
            yield _parsed(data, rows)


def _read(storage: Storage, key: str) -> bytes | None:
    try:
        return storage.read(key)
    except (OSError, SinkError):
        return None


def _parsed(data: bytes | None, rows: int) -> Aggregate | None:
    try:
        aggregate = None if data is None else Aggregate.from_dict(unseal(data))
    except (DamagedError, LookupError, TypeError, ValueError, AttributeError):
        return None
    return aggregate if aggregate is not None and aggregate.rows == rows else None


def sweep_aggregates(storage: Storage, published: Iterable[str]) -> None:
    """Remove aggregates of parts that are published no more. ``published``: checksums of those that are."""
    kept = {layout.part_aggregate(sha256) for sha256 in published}
    storage.delete_objects([key for key in storage.keys(f"{layout.REPORT}/parts") if key not in kept])
