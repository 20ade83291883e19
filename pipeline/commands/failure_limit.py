"""Ends a run in which too many rows failed."""

from __future__ import annotations

from pipeline.causes import described
from pipeline.errors import TooManyFailuresError
from pipeline.types import Totals

__all__ = ["FailureLimit"]

_LEAST_ROWS = 100
"""With fewer rows the share is not tested."""


class FailureLimit:
    """Ends a run if more than ``fraction`` of the rows failed; with 1 it never does."""

    def __init__(self, fraction: float) -> None:
        self._fraction = fraction

    def check(self, done: Totals) -> None:
        """Raise TooManyFailuresError if, of 100 rows or more, more than the fraction failed."""
        if self._fraction < 1 and done.rows >= _LEAST_ROWS and done.failed_rows > self._fraction * done.rows:
            raise TooManyFailuresError(
                f"{done.failed_rows} of the {done.rows} rows done so far failed, more than max_failed_fraction="
                f"{self._fraction:g} allows: {described(done.failed_by_cause)}. What is committed stays. "
                "Correct the rows in their input file and run again with retry_failed; or finish the run with a larger "
                "max_failed_fraction."
            )
