"""Sums over published rows, a table of bounded size at a time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.codec import FinishReason
from pipeline.commit.published_parts import PublishedPart
from pipeline.sinks.hub_card import RowStatistics

__all__ = ["statistics_of"]


def statistics_of(parts: Iterable[PublishedPart], prefix: str = "") -> RowStatistics:
    """The sums over published files.

    Args:
        parts: the files.
        prefix: prefix of the result columns.

    Raises:
        DamagedError: a file is missing or not as it was published.
    """
    total = RowStatistics()
    reasons: Counter[str] = Counter()
    strategies: Counter[str] = Counter()
    models: Counter[str] = Counter()
    for part in parts:
        for table in part.tables():
            if not table.num_rows:
                continue
            total = _added(total, table, prefix)
            reasons.update(_counts(table[f"{prefix}finish_reason"]))
            strategies.update(_counts(table[f"{prefix}strategy"]))
            models.update(_counts(table[f"{prefix}model"]))
    failed = reasons[FinishReason.ERROR.value]
    return replace(total, failed=failed, finish_reasons=dict(reasons), strategies=dict(strategies), models=dict(models))


def _added(total: RowStatistics, table: pa.Table, prefix: str) -> RowStatistics:
    completions = table[f"{prefix}completion_tokens"]
    return replace(
        total,
        rows=total.rows + table.num_rows,
        inputs=total.inputs + _sum(pc.equal(table[f"{prefix}sample_index"], 0)),
        completion_tokens=total.completion_tokens + _sum(completions),
        prompt_tokens=total.prompt_tokens + _sum(table[f"{prefix}prompt_tokens"]),
        forwards=total.forwards + _sum(pc.struct_field(table[f"{prefix}stats"], "decode_forwards")),
        longest=max(total.longest, pc.max(completions).as_py() or 0),
    )


def _sum(column: pa.ChunkedArray) -> int:
    return pc.sum(column).as_py() or 0


def _counts(column: pa.ChunkedArray) -> dict[str, int]:
    pairs = (pair.as_py() for pair in pc.value_counts(column))
    return {pair["values"]: pair["counts"] for pair in pairs if pair["values"] is not None}
