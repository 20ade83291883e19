"""Ends a run in which too many rows failed, and describes failures. Knows counts only."""

from __future__ import annotations

from collections.abc import Mapping

from pipeline.errors import TooManyFailuresError
from pipeline.types import Totals

__all__ = ["FailureLimit", "describe_failures"]

_LEAST_ROWS = 100
"""With fewer rows the share is not tested."""


def describe_failures(failures: Mapping[str, int]) -> str:
    """``"RequestError 12, CapacityError 3"``: the most frequent first."""
    ordered = sorted(failures.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{name} {count}" for name, count in ordered)


class FailureLimit:
    """Ends a run if more than ``fraction`` of the rows failed; with 1 it never does."""

    def __init__(self, fraction: float) -> None:
        self._fraction = fraction

    def check(self, done: Totals) -> None:
        """Raise TooManyFailuresError if, of 100 rows or more, more than the fraction failed."""
        if self._fraction < 1 and done.rows >= _LEAST_ROWS and done.failed_rows > self._fraction * done.rows:
            raise TooManyFailuresError(
                f"{done.failed_rows} of the {done.rows} rows done so far failed, more than max_failed_fraction="
                f"{self._fraction:g} allows: {describe_failures(done.failures)}. What is committed stays. Fix the "
                "cause and run again: with retry_failed, which does the failed rows once more, or with a larger "
                "max_failed_fraction."
            )
