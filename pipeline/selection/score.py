"""Scores that rank rows: fields of ``evidence`` by name, or an expression.

Higher is better, so entropies count negative.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.errors import ConfigError
from pipeline.selection.candidates import Candidates, Reason
from pipeline.selection.expression import Expression, values_of
from pipeline.selection.settings import OutlierConfig

SCORES: Mapping[str, Mapping[str, float]] = {
    "confidence": {"worst_logprob": 1.0, "mean_logprob": 10.0},
    "worst_logprob": {"worst_logprob": 1.0},
    "mean_logprob": {"mean_logprob": 1.0},
    "mean_entropy": {"mean_entropy": -1.0},
    "max_entropy": {"max_entropy": -1.0},
    "draft_agreement": {"draft_agreement": 1.0},
}
"""Name of a score -> fields of ``evidence`` that are added up, each with its weight. A row's mean log-probability is of
the order of a tenth of its worst, so the two count equally in ``confidence``."""


class Score:
    """A score over the columns of a table."""

    def __init__(self, text: str, schema: pa.Schema, prefix: str) -> None:
        """Find its columns.

        Raises:
            ConfigError: the expression gives no number.
            ResourceError: DuckDB is not installed, and it is an expression.
        """
        self._terms: list[tuple[tuple[str, ...], float]] = []
        self._expression: Expression | None = None
        if text not in SCORES:
            self._expression = Expression(text, schema, "score")
            if not self._expression.is_number:
                raise ConfigError(f"score={text!r}: does not give a number. Use one of {', '.join(SCORES)}, or an SQL "
                                  "expression that does.")  # fmt: skip
            return
        self._terms += (((f"{prefix}evidence", name), weight) for name, weight in SCORES[text].items())

    def values(self, table: pa.Table) -> pa.ChunkedArray:
        """float64, null where there is none."""
        if self._expression is not None:
            return self._expression.values(table).cast(pa.float64())
        terms = [pc.multiply(values_of(table, path), weight) for path, weight in self._terms]
        return functools.reduce(pc.add, terms)


_TO_DEVIATION = 1.4826
"""Median distance from the median -> standard deviation, for a normal distribution."""
_LEAST = 0.1
"""Least deviation of the logarithm: where nearly all lengths are equal, a tenth more is no outlier."""


def drop_outliers(candidates: Candidates, config: OutlierConfig) -> None:
    """Drop them from the remaining rows."""
    left = "reason IS NULL"
    if config.length is not None:
        # Both ends follow from the logarithm, which is monotonic: no logarithm is needed in the database.
        low, high = _range(candidates, f"{left} AND length IS NOT NULL", config.length)
        detail = f"length || ' tokens, others have {low:.0f} to {high:.0f}'"
        candidates.drop(Reason.OUTLIER, detail, "length < ? OR length > ?", (low, high))
    if config.script_share is not None:
        known = candidates.count(f"{left} AND script IS NOT NULL")
        rows = candidates.scratch.all(
            f"SELECT script, count(*) FROM rows WHERE {left} AND script IS NOT NULL GROUP BY 1"
        )
        for script, count in rows:
            if count < config.script_share * known:
                detail = f"'in {script} script, as {count} of {known} rows are'"
                candidates.drop(Reason.OUTLIER, detail, "script = ?", (script,))


def _range(candidates: Candidates, among: str, deviations: float) -> tuple[float, float]:
    """The lengths that are no outliers."""
    count = candidates.count(among)
    if not count:
        return 0.0, math.inf
    middle = _nth(candidates, among, "length", count // 2)
    # abs(log(a / m)) is monotonic in max(a / m, m / a).
    factor = _nth(
        candidates, among, f"max((length + 1.0) / {middle + 1.0}, {middle + 1.0} / (length + 1.0))", count // 2
    )
    spread = max(_LEAST, _TO_DEVIATION * math.log(factor)) * deviations
    return (middle + 1) * math.exp(-spread) - 1, (middle + 1) * math.exp(spread) - 1


def _nth(candidates: Candidates, among: str, value: str, number: int) -> float:
    row = candidates.scratch.one(f"SELECT {value} AS v FROM rows WHERE {among} ORDER BY v LIMIT 1 OFFSET {number}")
    assert row is not None
    return float(row[0])
