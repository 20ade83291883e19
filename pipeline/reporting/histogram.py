"""Histograms of a fixed size that merge exactly: bins by fixed edges, a sum of integers, the least and the largest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["SCALES", "Histogram", "Scale", "filled"]

_UNIT = 2**20
"""Sums are of integers, so that their order does not matter: values in millionths, nearly."""
_LOW_BITS = 28
_MOST = 2.0**40
"""Larger values count as this one in a sum."""


@dataclass(frozen=True, kw_only=True)
class Scale:
    """The edges of bins. Bin i has the values from edge i - 1 on that are below edge i; the first and last are open.

    Attributes:
        name: under which a histogram names it.
        edges: ascending.
        unit: of the values.
        whole: whether values are integers.
        logarithmic: whether bins grow with their values, so that a plot gives each bin the same width.
    """

    name: str
    edges: tuple[float, ...]
    unit: str
    whole: bool = False
    logarithmic: bool = False


def _doubling(first: int, last: int, steps: int) -> tuple[float, ...]:
    """Whole edges: every number up to ``first``, then ``steps`` of them in each doubling up to ``last``."""
    edges = list(range(first))
    while first <= last:
        edges += [first + first * step // steps for step in range(steps)]
        first *= 2
    return tuple(map(float, dict.fromkeys(edges)))


def _decades(first: int, last: int, steps: int) -> tuple[float, ...]:
    """0, then ``steps`` edges in each decade from ``10**first`` to ``10**last``."""
    return (0.0, *(10 ** (first + step / steps) for step in range((last - first) * steps + 1)))


def _even(last: float, step: float) -> tuple[float, ...]:
    return tuple(round(step * i, 6) for i in range(round(last / step) + 1))


SCALES: Mapping[str, Scale] = {
    scale.name: scale
    for scale in (
        Scale(name="tokens", edges=_doubling(16, 2**20, 8), unit="tokens", whole=True, logarithmic=True),
        Scale(name="nats", edges=_decades(-3, 2, 6), unit="nats", logarithmic=True),
        Scale(name="seconds", edges=_decades(-3, 4, 6), unit="seconds", logarithmic=True),
        Scale(name="share", edges=_even(1.0, 0.05), unit="share"),
        Scale(name="ratio", edges=_even(2.0, 0.05), unit="tokens per row"),
        Scale(name="rate", edges=(*_even(16.0, 0.5), *range(17, 65)), unit="tokens per forward"),
        Scale(name="rows", edges=(*_even(16.0, 1.0), *range(18, 66, 2), *range(72, 264, 8)), unit="rows per forward"),
    )
}


@dataclass(frozen=True, kw_only=True)
class Histogram:
    """Counts of values by bin.

    Attributes:
        scale: the bins.
        bins: one count for each of ``len(scale.edges) + 1`` bins.
        total: sum of the values, in units of 2**-20.
        least, largest: of the values; None where there are none.
    """

    scale: Scale
    bins: tuple[int, ...]
    total: int = 0
    least: float | None = None
    largest: float | None = None

    @classmethod
    def empty(cls, scale: Scale) -> Histogram:
        """Of no values."""
        return cls(scale=scale, bins=(0,) * (len(scale.edges) + 1))

    @classmethod
    def of(cls, scale: Scale, values: np.ndarray) -> Histogram:
        """Of float64 values; those that are no finite numbers are left out."""
        values = values[np.isfinite(values)]
        if not len(values):
            return cls.empty(scale)
        bins = np.bincount(np.searchsorted(scale.edges, values, side="right"), minlength=len(scale.edges) + 1)
        total = np.rint(np.clip(values, -_MOST, _MOST) * _UNIT).astype(np.int64)
        # In two halves: an int64 would hold the sum of a few of the largest values only.
        high, low = total >> _LOW_BITS, total & ((1 << _LOW_BITS) - 1)
        return cls(
            scale=scale,
            bins=tuple(bins.tolist()),
            total=(int(high.sum()) << _LOW_BITS) + int(low.sum()),
            least=float(values.min()),
            largest=float(values.max()),
        )

    def merged_with(self, other: Histogram) -> Histogram:
        """Of the values of both."""
        return Histogram(
            scale=self.scale,
            bins=tuple(map(sum, zip(self.bins, other.bins, strict=True))),
            total=self.total + other.total,
            least=min((v for v in (self.least, other.least) if v is not None), default=None),
            largest=max((v for v in (self.largest, other.largest) if v is not None), default=None),
        )

    @property
    def count(self) -> int:
        """Number of values."""
        return sum(self.bins)

    @property
    def mean(self) -> float | None:
        """To within a millionth; None without values."""
        return self.total / _UNIT / self.count if self.count else None

    def quantile(self, share: float) -> float | None:
        """A value that this share of the values does not exceed, as far as the bins tell; None without values.

        Values of a bin are taken to be spread evenly over it; those of whole numbers are one of them.
        """
        count, before = self.count, 0
        if not count or self.least is None or self.largest is None:
            return None
        wanted = share * count
        for i, own in enumerate(self.bins):
            if own and before + own >= wanted:
                low, high = self.bounds(i)
                value = low + (high - low) * max(0.0, wanted - before) / own
                if self.scale.whole:
                    value = float(min(int(value), int(high) - 1)) if high - low >= 1 else low
                return min(max(value, self.least), self.largest)
            before += own
        return self.largest

    def bounds(self, bin: int) -> tuple[float, float]:
        """The values between which a bin lies; of an open one, as far as values reach."""
        edges = self.scale.edges
        least = edges[0] if self.least is None else self.least
        largest = edges[-1] if self.largest is None else self.largest
        low = min(least, edges[0]) if bin == 0 else edges[bin - 1]
        high = max(largest, edges[-1]) if bin == len(edges) else edges[bin]
        return low, high

    def to_dict(self) -> dict[str, Any]:
        """Plain values; bins without values are left out."""
        bins = {str(i): own for i, own in enumerate(self.bins) if own}
        return {"scale": self.scale.name, "bins": bins, "total": self.total, "least": self.least,
                "largest": self.largest}  # fmt: skip

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> Histogram:
        """Inverse of :meth:`to_dict`."""
        scale = SCALES[raw["scale"]]
        bins = [0] * (len(scale.edges) + 1)
        for i, own in raw["bins"].items():
            bins[int(i)] = own
        return cls(scale=scale, bins=tuple(bins), total=raw["total"], least=raw["least"], largest=raw["largest"])


def filled(bins: Sequence[int]) -> tuple[int, int]:
    """The first and the last bin with values, as a range; (0, 0) where there are none."""
    there = [i for i, own in enumerate(bins) if own]
    return (there[0], there[-1] + 1) if there else (0, 0)
