"""Row isolation: runs the rows of units as the crash bisection asks, and reports the running rows to it.

The bisection itself (:mod:`pipeline.worker.crash_bisection`) lives in another process. Knows no Ray, no Arrow and no
engine.
"""

from __future__ import annotations

import pickle
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from pipeline.errors import EngineDiedError
from pipeline.worker.crash_bisection import CrashBisection
from pipeline.worker.crash_trial import Attempt, Rows

_T = TypeVar("_T")
_ANY = sys.maxsize
"""A limit for the gate: any number of units with a limit."""


class ChildDiedError(Exception):
    """The child process that ran some rows has died."""


class NoChildrenError(Exception):
    """There are no child processes, although there should be."""


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
        """Run the block with any number of unlimited units (None), or with at most ``limit`` units, all limited."""
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

    ``process``: unique name of this process; ``alone``: whether it runs one unit at a time.
    """

    def __init__(self, bisection: CrashBisection, process: str, *, alone: bool = False) -> None:
        self._bisection = bisection
        self._process = process
        self._alone = alone
        self._gate = Gate()

    def run(
        self,
        unit_id: str,
        rows: int,
        do: Callable[[Sequence[int]], list[_T]],
        quarantine: Callable[[int, int], _T],
        in_child: Callable[[Sequence[int]], list[_T]] | None = None,
    ) -> list[_T]:
        """Run a unit; returns the result of each row.

        Args:
            unit_id: the unit.
            rows: its number of rows.
            do: runs the rows of these numbers and returns their results in order; may kill the process.
            quarantine: the result of a quarantined row, from its number and its deaths.
            in_child: ``do`` in a child process; may raise :class:`ChildDiedError` or :class:`NoChildrenError`.
                None: this process has no children.

        Raises:
            EngineDiedError: more child processes died in a row than may, without any row being done.
        """
        try:
            try:
                return self._run(unit_id, rows, do, quarantine, in_child)
            except NoChildrenError:
                return self._run(unit_id, rows, do, quarantine, None)
        except Exception:
            self._bisection.abandon_unit(unit_id)
            raise

    def _run(
        self,
        unit_id: str,
        rows: int,
        do: Callable[[Sequence[int]], list[_T]],
        quarantine: Callable[[int, int], _T],
        in_child: Callable[[Sequence[int]], list[_T]] | None,
    ) -> list[_T]:
        with self._gate.enter(None):
            forks = in_child is not None
            attempt = self._bisection.begin_unit(unit_id, rows, self._process, alone=self._alone, forks=forks)
            if attempt.concurrent_units is None:
                return do(range(rows))
        results: dict[int, _T] = {}
        for piece, kept in attempt.done.items():
            results.update(zip(range(*piece), pickle.loads(kept), strict=True))
        # While children run, no unit runs in this process itself: it might kill their parent.
        with self._gate.enter(_ANY if attempt.in_children else attempt.concurrent_units):
            if attempt.in_children and in_child is not None:
                attempt = self._run_in_children(unit_id, rows, attempt, in_child, results)
            else:
                self._run_here(unit_id, attempt, do, results)
        results.update((row, quarantine(row, deaths)) for row, deaths in attempt.quarantined.items())
        return [results[row] for row in range(rows)]

    def _run_here(
        self, unit_id: str, attempt: Attempt, do: Callable[[Sequence[int]], list[_T]], results: dict[int, _T]
    ) -> None:
        for step in attempt.steps:
            self._bisection.begin_step(unit_id, self._process, step)
            self._take(step, do(range(*step)), results)
            if attempt.concurrent_units == 1:
                self._keep(unit_id, step, results)

    def _run_in_children(
        self,
        unit_id: str,
        rows: int,
        attempt: Attempt,
        in_child: Callable[[Sequence[int]], list[_T]],
        results: dict[int, _T],
    ) -> Attempt:
        """Run each step in a child process; the attempt that came last, which knows all quarantined rows."""
        steps = list(attempt.steps)
        while steps:
            step = steps.pop(0)
            try:
                self._take(step, in_child(range(*step)), results)
            except ChildDiedError:
                attempt = self._bisection.lose_step(unit_id, rows, step)
                if not attempt.verdict.go_on:
                    raise EngineDiedError(
                        f"{attempt.verdict.deaths} child processes in a row died before any row was done."
                    ) from None
                steps = list(attempt.steps)
            else:
                self._keep(unit_id, step, results)
        return attempt

    def _take(self, step: Rows, found: list[_T], results: dict[int, _T]) -> None:
        results.update(zip(range(*step), found, strict=True))

    def _keep(self, unit_id: str, step: Rows, results: dict[int, _T]) -> None:
        """Keep the results of a step, whatever happens to this process."""
        kept = pickle.dumps([results[row] for row in range(*step)])
        self._bisection.finish_step(unit_id, self._process, step, kept)

    def finish(self, unit_id: str) -> None:
        """The unit is staged: a death no longer affects it."""
        self._bisection.finish_unit(unit_id)
