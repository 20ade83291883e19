"""Drops rows whose length or script is unlike that of the others; exact, by sorting in the database."""

from __future__ import annotations

import math

from pipeline.selection.candidates import Candidates, Reason
from pipeline.selection.settings import OutlierConfig

__all__ = ["drop_outliers"]

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
