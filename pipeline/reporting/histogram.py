"""Histograms of a fixed size that merge exactly: counts by fixed edges, and a sum of integers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

_UNIT = 2**20
"""Sums are of integers, in units of 2**-20, so that their order does not matter."""
_MOST = 2.0**40
"""Larger values count as this one in a sum."""


SCALES: Mapping[str, tuple[float, ...]] = {
    "tokens": tuple(np.unique(np.geomspace(1, 2**20, 161).round()).tolist()),
    "nats": (0.0, *np.geomspace(0.001, 100, 31).tolist()),
    "rate": (*(0.5 * i for i in range(33)), *range(17, 65)),
}
"""Name of a variable -> edges of bins, ascending.

Bin i has the values from edge i - 1 on that are below edge i; the first and last are open.
"""


@dataclass(frozen=True, kw_only=True)
class Histogram:
    """Counts of values by bin.

    Attributes:
        scale: the name of its edges in :data:`SCALES`.
        bins: one count for each bin, one more than edges.
        total: sum of the values, in units of 2**-20.
    """

    scale: str
    bins: tuple[int, ...]
    total: int = 0

    @classmethod
    def empty(cls, scale: str) -> Histogram:
        """Of no values."""
        return cls(scale=scale, bins=(0,) * (len(SCALES[scale]) + 1))

    @classmethod
    def of(cls, scale: str, values: np.ndarray) -> Histogram:
        """Count float64 values; those that are no finite numbers are left out."""
        values = values[np.isfinite(values)]
        edges = SCALES[scale]
        bins = np.bincount(np.searchsorted(edges, values, side="right"), minlength=len(edges) + 1)
        total = np.rint(np.clip(values, -_MOST, _MOST) * _UNIT).astype(np.int64)
        # By Python: an int64 would hold the sum of a few of the largest values only.
        return cls(scale=scale, bins=tuple(bins.tolist()), total=sum(total.tolist()))

    def merged_with(self, other: Histogram) -> Histogram:
        """Count the values of both."""
        bins = tuple(map(sum, zip(self.bins, other.bins, strict=True)))
        return Histogram(scale=self.scale, bins=bins, total=self.total + other.total)

    @property
    def count(self) -> int:
        """Number of values."""
        return sum(self.bins)

    @property
    def mean(self) -> float | None:
        """To within a millionth; None without values."""
        return self.total / _UNIT / self.count if self.count else None

    def to_dict(self) -> dict[str, Any]:
        """Plain values; bins without values are left out."""
        bins = {str(i): own for i, own in enumerate(self.bins) if own}
        return {"scale": self.scale, "bins": bins, "total": self.total}

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> Histogram:
        """Inverse of :meth:`to_dict`."""
        scale = raw["scale"]
        bins = [0] * (len(SCALES[scale]) + 1)
        for i, own in raw["bins"].items():
            bins[int(i)] = own
        return cls(scale=scale, bins=tuple(bins), total=raw["total"])


MOST_LABELS = 20
_MOST_CHARACTERS = 60

Labels = Mapping[str, Mapping[str, int] | None]
"""Column, or ``parsed.FIELD`` -> number of rows by value; None where the values are too many or too long."""


def labels_of(table: pa.Table, prefix: str = "") -> Labels:
    """Count the values of the texts, and of each text field of the column ``parsed``, in rows that succeeded."""
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
    return counts_of(column) if pc.count_distinct(column).as_py() <= MOST_LABELS else None


def counts_of(column: pa.ChunkedArray) -> dict[str, int]:
    """Number of rows by text; nulls are left out."""
    counts = pc.value_counts(column.drop_null()).to_pylist()
    return dict(sorted((own["values"], own["counts"]) for own in counts))
