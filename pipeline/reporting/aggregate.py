"""Aggregates of output rows: counts, sums, histograms and sampled rows; of a fixed size, and mergeable in any order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.codec import FinishReason
from pipeline.reporting.histogram import SCALES, Histogram
from pipeline.reporting.samples import SampledRow, lowest, row_hashes, sampled_rows

__all__ = ["MEASURES", "SAMPLED_FAILURES", "SAMPLED_ROWS", "SUMS", "Aggregate", "Aggregator", "Measure", "merged"]

VERSION = 1
SAMPLED_ROWS = 24
"""Sampled rows that succeeded."""
SAMPLED_FAILURES = 12
"""Sampled rows that failed."""
_AT_ONCE = 8192
"""Rows that are aggregated at once: fewer cost more for each."""


@dataclass(frozen=True, kw_only=True)
class Measure:
    """A histogram over the output rows.

    Attributes:
        name: of the histogram.
        path: of its column, without the prefix; behind a dot a field of it.
        scale: its bins.
        sign: -1 shows log-probabilities as positive numbers.
    """

    name: str
    path: str
    scale: str
    sign: int = 1


MEASURES: tuple[Measure, ...] = (
    Measure(name="prompt_tokens", path="prompt_tokens", scale="tokens"),
    Measure(name="completion_tokens", path="completion_tokens", scale="tokens"),
    Measure(name="tokens_per_forward", path="stats.tokens_per_forward", scale="rate"),
    Measure(name="prefix_cacheability", path="stats.prefix_cacheability", scale="ratio"),
    Measure(name="window_mean", path="stats.window_mean", scale="rows"),
    Measure(name="draft_agreement", path="stats.draft_agreement", scale="share"),
    Measure(name="mean_entropy", path="stats.mean_entropy", scale="nats"),
    Measure(name="max_entropy", path="stats.max_entropy", scale="nats"),
    Measure(name="surprisal", path="stats.mean_logprob", scale="nats", sign=-1),
    Measure(name="token_surprisal", path="logprobs", scale="nats", sign=-1),
    Measure(name="queue_seconds", path="timings.queue_seconds", scale="seconds"),
    Measure(name="run_seconds", path="timings.run_seconds", scale="seconds"),
)
"""Every histogram. Where a column is null, or is not there, a row counts for none."""

SUMS: Mapping[str, str] = {
    "prompt_tokens": "prompt_tokens",
    "completion_tokens": "completion_tokens",
    "decode_forwards": "stats.decode_forwards",
    "rows_forwarded": "stats.rows_forwarded",
    "out_of_order_fills": "stats.out_of_order_fills",
    "cached_prompt_tokens": "stats.cached_prompt_tokens",
    "preemptions": "stats.preemptions",
}
"""Sum -> path of its column, as in :class:`Measure`."""


@dataclass(frozen=True, kw_only=True)
class Aggregate:
    """What a report says about some output rows.

    Attributes:
        rows: output rows: one for each generation, one for each failed input row.
        sums: by the names of :data:`SUMS`.
        finish_reasons, models: number of output rows by value.
        strategies: number of generations, their tokens and decode forwards by strategy.
        commits: number of decode forwards by how many tokens they committed.
        histograms: by the names of :data:`MEASURES`.
        samples, failures: sampled rows that succeeded, and that failed.
    """

    rows: int = 0
    sums: Mapping[str, int] = field(default_factory=lambda: dict.fromkeys(SUMS, 0))
    finish_reasons: Mapping[str, int] = field(default_factory=dict)
    models: Mapping[str, int] = field(default_factory=dict)
    strategies: Mapping[str, tuple[int, int, int]] = field(default_factory=dict)
    commits: Mapping[int, int] = field(default_factory=dict)
    histograms: Mapping[str, Histogram] = field(
        default_factory=lambda: {m.name: Histogram.empty(SCALES[m.scale]) for m in MEASURES}
    )
    samples: tuple[SampledRow, ...] = ()
    failures: tuple[SampledRow, ...] = ()

    @property
    def failed(self) -> int:
        """Failed input rows."""
        return self.finish_reasons.get(FinishReason.ERROR.value, 0)

    @property
    def generations(self) -> int:
        """Output rows that are no failures."""
        return self.rows - self.failed

    @classmethod
    def of(cls, table: pa.Table, inputs: int, prefix: str = "") -> Aggregate:
        """Of the rows of a table, all at once.

        Args:
            table: output rows.
            inputs: number of its columns that are the input's; these come first.
            prefix: prefix of the names of the others.
        """
        failed = pc.equal(table[f"{prefix}finish_reason"], FinishReason.ERROR.value).to_numpy()
        ids, indexes = table[f"{prefix}row_id"].to_pylist(), table[f"{prefix}sample_index"].to_pylist()
        hashes = row_hashes(ids, indexes)

        def sample(among: np.ndarray, most: int) -> tuple[SampledRow, ...]:
            where = np.flatnonzero(among)
            if len(where) > most:  # the others cannot be among them; equal hashes are
                where = where[hashes[where] <= np.partition(hashes[where], most - 1)[most - 1]]
            return lowest(sampled_rows(table, where.tolist(), hashes, inputs, prefix), most)

        return cls(
            rows=table.num_rows,
            sums={name: int(pc.sum(_column(table, prefix, path)).as_py() or 0) for name, path in SUMS.items()},
            finish_reasons=_counted(table, f"{prefix}finish_reason"),
            models=_counted(table, f"{prefix}model"),
            strategies=_by_strategy(table.filter(pa.array(~failed)), prefix),
            commits=_commits(_column(table, prefix, "stats.commit_histogram")),
            histograms={
                m.name: Histogram.of(SCALES[m.scale], m.sign * _numbers(_column(table, prefix, m.path)))
                for m in MEASURES
            },
            samples=sample(~failed, SAMPLED_ROWS),
            failures=sample(failed, SAMPLED_FAILURES),
        )

    def merged_with(self, other: Aggregate) -> Aggregate:
        """Of the rows of both."""
        return Aggregate(
            rows=self.rows + other.rows,
            sums={name: self.sums.get(name, 0) + other.sums.get(name, 0) for name in SUMS},
            finish_reasons=_added(self.finish_reasons, other.finish_reasons),
            models=_added(self.models, other.models),
            strategies={
                name: _three(self.strategies.get(name, _NONE), other.strategies.get(name, _NONE))
                for name in sorted({*self.strategies, *other.strategies})
            },
            commits=_added(self.commits, other.commits),
            histograms={m.name: self.histograms[m.name].merged_with(other.histograms[m.name]) for m in MEASURES},
            samples=lowest((*self.samples, *other.samples), SAMPLED_ROWS),
            failures=lowest((*self.failures, *other.failures), SAMPLED_FAILURES),
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "version": VERSION,
            "rows": self.rows,
            "sums": dict(self.sums),
            "finish_reasons": dict(self.finish_reasons),
            "models": dict(self.models),
            "strategies": {name: list(own) for name, own in self.strategies.items()},
            "commits": {str(size): own for size, own in self.commits.items()},
            "histograms": {name: own.to_dict() for name, own in self.histograms.items()},
            "samples": [row.to_dict() for row in self.samples],
            "failures": [row.to_dict() for row in self.failures],
        }

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> Aggregate | None:
        """Inverse of :meth:`to_dict`; None for one that another version made: the rows have to be read."""
        if raw.get("version") != VERSION:
            return None
        return cls(
            rows=raw["rows"],
            sums=raw["sums"],
            finish_reasons=raw["finish_reasons"],
            models=raw["models"],
            strategies={name: tuple(own) for name, own in raw["strategies"].items()},
            commits={int(size): own for size, own in raw["commits"].items()},
            histograms={name: Histogram.from_dict(own) for name, own in raw["histograms"].items()},
            samples=tuple(SampledRow.from_dict(row) for row in raw["samples"]),
            failures=tuple(SampledRow.from_dict(row) for row in raw["failures"]),
        )


_NONE = (0, 0, 0)


def _three(own: tuple[int, int, int], more: tuple[int, int, int]) -> tuple[int, int, int]:
    return own[0] + more[0], own[1] + more[1], own[2] + more[2]


class Aggregator:
    """Aggregates tables one after the other, with little more than one of them in memory.

    Args:
        inputs, prefix: see :meth:`Aggregate.of`.
    """

    def __init__(self, inputs: int, prefix: str = "") -> None:
        self._inputs, self._prefix = inputs, prefix
        self._held: list[pa.Table] = []
        self._rows = 0
        self._sum = Aggregate()

    def add(self, table: pa.Table) -> None:
        """Count the rows of a table."""
        for first in range(0, table.num_rows, _AT_ONCE):
            piece = table.slice(first, _AT_ONCE)
            self._held.append(piece)
            self._rows += piece.num_rows
            if self._rows >= _AT_ONCE:
                self._flush()

    def result(self) -> Aggregate:
        """Of all rows so far."""
        self._flush()
        return self._sum

    def _flush(self) -> None:
        if self._held:
            table = pa.concat_tables(self._held).combine_chunks()  # many small chunks take four times as long
            self._sum = self._sum.merged_with(Aggregate.of(table, self._inputs, self._prefix))
        self._held, self._rows = [], 0


def _column(table: pa.Table, prefix: str, path: str) -> pa.ChunkedArray:
    """A column, or a field of it; empty where the table has none."""
    name, _, inside = path.partition(".")
    if prefix + name not in table.column_names:
        return pa.chunked_array([], pa.float64())
    column = table[prefix + name]
    if not inside:
        return column
    has = column.type.get_field_index(inside) >= 0
    return pc.struct_field(column, inside) if has else pa.chunked_array([], pa.float64())


def _numbers(column: pa.ChunkedArray) -> np.ndarray:
    """The values that are there, as float64; of lists, those in them."""
    if pa.types.is_list(column.type):
        column = pc.list_flatten(column)
    return np.asarray(column.drop_null().cast(pa.float64()))


def _counted(table: pa.Table, name: str) -> dict[str, int]:
    if name not in table.column_names:
        return {}
    counts = pc.value_counts(table[name].combine_chunks())
    found = {own["values"].as_py(): own["counts"].as_py() for own in counts}
    return {str(value): count for value, count in found.items() if value is not None}


def _by_strategy(table: pa.Table, prefix: str) -> dict[str, tuple[int, int, int]]:
    def total(own: pa.Table, name: str) -> int:
        return int(pc.sum(_column(own, prefix, SUMS[name])).as_py() or 0)

    found = {}
    for name in sorted(_counted(table, f"{prefix}strategy")):
        own = table.filter(pc.equal(table[f"{prefix}strategy"], name))
        found[name] = own.num_rows, total(own, "completion_tokens"), total(own, "decode_forwards")
    return found


def _commits(column: pa.ChunkedArray) -> dict[int, int]:
    """Decode forwards by how many tokens they committed: the sums of the entries of all lists, place by place."""
    total: Counter[int] = Counter()
    for chunk in column.chunks:
        lists = chunk.drop_null()
        counts = np.asarray(lists.flatten())
        lengths = np.asarray(lists.value_lengths())
        if not len(counts):
            continue
        first = np.repeat(np.cumsum(lengths) - lengths, lengths)
        places = np.arange(len(counts)) - first
        sums = np.bincount(places, weights=counts)  # exact: counts of int32 in float64
        total.update({place: int(own) for place, own in enumerate(sums.tolist()) if own})
    return dict(sorted(total.items()))


def _added(counts: Mapping[Any, int], more: Mapping[Any, int]) -> dict[Any, int]:
    return {name: counts.get(name, 0) + more.get(name, 0) for name in sorted({*counts, *more})}


def merged(aggregates: Iterable[Aggregate]) -> Aggregate:
    """Of the rows of all of them."""
    total = Aggregate()
    for aggregate in aggregates:
        total = total.merged_with(aggregate)
    return total
