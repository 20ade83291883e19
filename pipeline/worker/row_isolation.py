"""Row isolation: runs the rows of units as the crash bisection asks, and reports to it what runs.

The bisection itself (:mod:`pipeline.worker.crash_bisection`) lives in another process. Knows no Ray, no Arrow and no
engine.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol, TypeVar

from pipeline.worker.crash_bisection import Attempt, Rows, Verdict

__all__ = ["BisectionLike", "Gate", "RowIsolation"]

_T = TypeVar("_T")


class BisectionLike(Protocol):
    """A :class:`pipeline.worker.crash_bisection.CrashBisection`, in this process or another."""

    def start_process(self, worker: str, process: str = "", machine: str = "") -> Verdict:
        """See there."""
        ...

    def end_process(self, worker: str) -> None:
        """See there."""
        ...

    def begin_unit(self, unit_id: str, rows: int, process: str, *, alone: bool = False) -> Attempt:
        """See there."""
        ...

    def begin_step(self, unit_id: str, process: str, step: tuple[Rows, ...]) -> None:
        """See there."""
        ...

    def finish_step(self, unit_id: str, process: str) -> None:
        """See there."""
        ...

    def is_suspect(self, unit_id: str) -> bool:
        """See there."""
        ...

    def finish_unit(self, unit_id: str) -> None:
        """See there."""
        ...

    def abandon_unit(self, unit_id: str) -> None:
        """See there."""
        ...


class Gate:
    """Admits units to the process: without a limit, or with at most so many concurrent units.

    Units that wait to run under a limit are admitted before new units without one.
    """

    def __init__(self) -> None:
        self._change = threading.Condition()
        self._inside: list[int | None] = []
        self._waiting = 0

    @contextmanager
    def enter(self, limit: int | None) -> Iterator[None]:
        """Run the block beside any number of unlimited units (None), or with at most ``limit`` units, all limited."""
        with self._change:
            if limit is None:
                self._change.wait_for(lambda: not self._waiting and all(other is None for other in self._inside))
            else:
                self._waiting += 1
                self._change.wait_for(lambda: self._has_room(limit))
                self._waiting -= 1
            self._inside.append(limit)
        try:
            yield
        finally:
            with self._change:
                self._inside.remove(limit)
                self._change.notify_all()

    def _has_room(self, limit: int) -> bool:
        limits = [other for other in self._inside if other is not None]
        return len(limits) == len(self._inside) and len(limits) < min([limit, *limits])


class RowIsolation:
    """Runs units in this process and reports each step to a crash bisection. Thread-safe.

    Args:
        bisection: knows what happened in earlier processes.
        process: unique name of this process.
        alone: whether this process runs one unit at a time.
    """

    def __init__(self, bisection: BisectionLike, process: str, *, alone: bool = False) -> None:
        self._bisection = bisection
        self._process = process
        self._alone = alone
        self._gate = Gate()

    def run(
        self, unit_id: str, rows: int, do: Callable[[Sequence[int]], list[_T]], quarantine: Callable[[int, int], _T]
    ) -> list[_T]:
        """Run a unit; returns the result of each row.

        Args:
            unit_id: the unit.
            rows: its number of rows.
            do: runs the rows of these numbers and returns their results in order; may kill the process.
            quarantine: the result of a quarantined row, from its number and its deaths.
        """
        try:
            with self._gate.enter(None):
                attempt = self._bisection.begin_unit(unit_id, rows, self._process, alone=self._alone)
                if attempt.concurrent_units is None:
                    return do(range(rows))
            with self._gate.enter(attempt.concurrent_units):
                results = {row: quarantine(row, deaths) for row, deaths in attempt.quarantined.items()}
                for step in attempt.steps:
                    wanted = [row for first, stop in step for row in range(first, stop)]
                    self._bisection.begin_step(unit_id, self._process, step)
                    results.update(zip(wanted, do(wanted), strict=True))
                    self._bisection.finish_step(unit_id, self._process)
            return [results[row] for row in range(rows)]
        except Exception:
            self._bisection.abandon_unit(unit_id)
            raise

    def finish(self, unit_id: str) -> None:
        """The unit is staged: a death no longer affects it."""
        self._bisection.finish_unit(unit_id)
