"""Aggregates of output rows: counts and histograms; of a fixed size, and mergeable in any order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.codec import FinishReason, redact
from pipeline.reporting.histogram import Histogram, Labels, counts_of, labels_of, merged

VERSION = 6
"""Of the stored form. Another one is made again from its rows."""
_AT_ONCE = 8192
"""Rows that are aggregated at once: fewer cost more for each."""
_LISTED = 100
"""Rows that are kept by themselves: the least certain ones."""
_TEXT_CHARACTERS = 200

MEASURES: Mapping[str, tuple[str, str]] = {
    "completion_tokens": ("completion_tokens", "tokens"),
    "tokens_per_forward": ("stats.tokens_per_forward", "rate"),
    "mean_entropy": ("stats.mean_entropy", "nats"),
}
"""Histogram -> the path of its column (a dot leads to a field) and its scale. A null, or a column that is not there,
counts for no value."""


class UncertainRow(NamedTuple):
    """A generation with a high mean entropy. As JSON it is a list, in the order of the attributes.

    ``entropy``: mean of the distributions that its tokens were taken from, in nats; ``text``: its beginning.
    """

    entropy: float
    row_id: str
    sample_index: int
    tokens: int
    text: str


@dataclass(frozen=True, kw_only=True)
class Aggregate:
    """Counts and histograms of some output rows, and the least certain of them.

    Attributes:
        rows: output rows: one for each generation, one for each failed input row.
        finish_reasons: number of output rows by reason.
        histograms: by the names of :data:`MEASURES`.
        labels: column of few different values -> rows by value; see :mod:`pipeline.reporting.histogram`.
        uncertain: the least certain rows, the least certain first; at most 100.
    """

    rows: int = 0
    finish_reasons: Mapping[str, int] = field(default_factory=dict)
    histograms: Mapping[str, Histogram] = field(
        default_factory=lambda: {name: Histogram.empty(scale) for name, (_, scale) in MEASURES.items()}
    )
    labels: Labels = field(default_factory=dict)
    uncertain: tuple[UncertainRow, ...] = ()

    @property
    def failed(self) -> int:
        """Failed input rows."""
        return self.finish_reasons.get(FinishReason.ERROR.value, 0)

    @property
    def generations(self) -> int:
        """Output rows that are no failures."""
        return self.rows - self.failed

    @classmethod
    def of(cls, table: pa.Table, prefix: str = "") -> Aggregate:
        """Aggregate the output rows of a table, whose result columns have this prefix, all at once."""
        succeeded = pc.not_equal(table[f"{prefix}finish_reason"], FinishReason.ERROR.value)
        return cls(
            rows=table.num_rows,
            finish_reasons=counts_of(table[f"{prefix}finish_reason"]),
            histograms={
                name: Histogram.of(scale, _numbers(table, prefix, path)) for name, (path, scale) in MEASURES.items()
            },
            labels=labels_of(table.filter(succeeded), prefix),
            uncertain=_uncertain(table, prefix),
        )

    def merged_with(self, other: Aggregate) -> Aggregate:
        """Aggregate the rows of both."""
        reasons = sorted({*self.finish_reasons, *other.finish_reasons})
        return Aggregate(
            rows=self.rows + other.rows,
            finish_reasons={n: self.finish_reasons.get(n, 0) + other.finish_reasons.get(n, 0) for n in reasons},
            histograms={name: self.histograms[name].merged_with(other.histograms[name]) for name in MEASURES},
            labels=merged(*(own.labels for own in (self, other) if own.generations)),
            uncertain=_least_certain([*self.uncertain, *other.uncertain]),
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "version": VERSION,
            "rows": self.rows,
            "finish_reasons": dict(self.finish_reasons),
            "histograms": {name: own.to_dict() for name, own in self.histograms.items()},
            "labels": dict(self.labels),
            "uncertain": list(self.uncertain),
        }

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> Aggregate | None:
        """Inverse of :meth:`to_dict`; None for an unknown version: its rows have to be read."""
        if raw.get("version") != VERSION:
            return None
        return cls(
            rows=raw["rows"],
            finish_reasons=raw["finish_reasons"],
            histograms={name: Histogram.from_dict(raw["histograms"][name]) for name in MEASURES},
            labels=raw["labels"],
            uncertain=tuple(UncertainRow(*row) for row in raw["uncertain"]),
        )


class Aggregator:
    """Aggregates tables one after the other, with little more than one of them in memory."""

    def __init__(self, prefix: str = "") -> None:
        self._prefix = prefix
        self._held: list[pa.Table] = []
        self._rows = 0
        self._sum = Aggregate()

    def add(self, table: pa.Table) -> None:
        """Count the rows of a table."""
        self._held.append(table)
        self._rows += table.num_rows
        if self._rows >= _AT_ONCE:
            self._flush()

    def result(self) -> Aggregate:
        """Of all rows so far."""
        self._flush()
        return self._sum

    def _flush(self) -> None:
        if self._held:
            table = pa.concat_tables(self._held).combine_chunks()  # many small chunks take four times as long
            self._sum = self._sum.merged_with(Aggregate.of(table, self._prefix))
        self._held, self._rows = [], 0


def _column(table: pa.Table, prefix: str, path: str) -> pa.ChunkedArray | None:
    """A column of float64, or a field of one; None if it is not there."""
    name, _, inside = path.partition(".")
    if prefix + name not in table.column_names:
        return None
    column = table[prefix + name]
    if inside:
        if column.type.get_field_index(inside) < 0:
            return None
        column = pc.struct_field(column, inside)
    return column.cast(pa.float64())


def _numbers(table: pa.Table, prefix: str, path: str) -> np.ndarray:
    """The values of a column, or of a field of it, as float64; nulls are left out, as is a column that is not there."""
    column = _column(table, prefix, path)
    return np.zeros(0) if column is None else np.asarray(column.drop_null())


def _uncertain(table: pa.Table, prefix: str) -> tuple[UncertainRow, ...]:
    """The least certain rows of a table. Among rows of equal entropy ids decide."""
    entropy = _column(table, prefix, "stats.mean_entropy")
    if entropy is None:
        return ()
    ids = {name: table[prefix + name] for name in ("row_id", "sample_index", "completion_tokens", "text")}
    known = pa.table({"entropy": entropy, **ids}).filter(pc.is_finite(entropy))
    order = [("entropy", "descending"), ("row_id", "ascending"), ("sample_index", "ascending")]
    first = known.take(pc.select_k_unstable(known, min(_LISTED, known.num_rows), sort_keys=order))
    rows = [UncertainRow(*row) for row in zip(*first.to_pydict().values(), strict=True)]
    # Masked before it is cut: half of a credential is not recognised.
    return tuple(row._replace(text=redact(row.text or "")[:_TEXT_CHARACTERS]) for row in rows)


def _least_certain(rows: list[UncertainRow]) -> tuple[UncertainRow, ...]:
    return tuple(sorted(rows, key=lambda row: (-row.entropy, row.row_id, row.sample_index))[:_LISTED])
