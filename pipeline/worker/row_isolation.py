"""Runs the rows of units so that a death can be laid at the right row's door; the tally itself lives elsewhere.

Knows no Ray, no Arrow and no engine.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol, TypeVar

from pipeline.worker.crash_bisection import Attempt, Rows, Verdict

__all__ = ["Gate", "RowWatch", "TallyLike"]

_T = TypeVar("_T")


class TallyLike(Protocol):
    """:class:`pipeline.worker.crash_bisection.Tally`, here or in another process."""

    def start(self, slot: str) -> Verdict:
        """See there."""
        ...

    def leave(self, slot: str) -> None:
        """See there."""
        ...

    def begin(self, unit_id: str, rows: int, process: str, *, alone: bool = False) -> Attempt:
        """See there."""
        ...

    def enter(self, unit_id: str, process: str, step: tuple[Rows, ...]) -> None:
        """See there."""
        ...

    def survive(self, unit_id: str, process: str) -> None:
        """See there."""
        ...

    def suspects(self, unit_id: str) -> bool:
        """See there."""
        ...

    def finish(self, unit_id: str) -> None:
        """See there."""
        ...

    def abandon(self, unit_id: str) -> None:
        """See there."""
        ...


class Gate:
    """Lets units run beside each other, or in limited company; those that wait for that go before newcomers."""

    def __init__(self) -> None:
        self._change = threading.Condition()
        self._inside: list[int | None] = []
        self._waiting = 0

    @contextmanager
    def enter(self, company: int | None) -> Iterator[None]:
        """Inside with any number of others (None), or with so many at most that are in limited company too."""
        with self._change:
            if company is None:
                self._change.wait_for(lambda: not self._waiting and all(other is None for other in self._inside))
            else:
                self._waiting += 1
                self._change.wait_for(lambda: self._has_room(company))
                self._waiting -= 1
            self._inside.append(company)
        try:
            yield
        finally:
            with self._change:
                self._inside.remove(company)
                self._change.notify_all()

    def _has_room(self, company: int) -> bool:
        limits = [other for other in self._inside if other is not None]
        return len(limits) == len(self._inside) and len(limits) < min([company, *limits])


class RowWatch:
    """Runs units in this process under a tally's eyes; called from several threads.

    Args:
        tally: what is known of earlier processes.
        process: a name that no other process has.
        alone: it runs one unit at a time.
    """

    def __init__(self, tally: TallyLike, process: str, *, alone: bool = False) -> None:
        self._tally = tally
        self._process = process
        self._alone = alone
        self._gate = Gate()

    def run(
        self, unit_id: str, rows: int, do: Callable[[Sequence[int]], list[_T]], quarantine: Callable[[int, int], _T]
    ) -> list[_T]:
        """The result of each row of a unit.

        Args:
            unit_id: of the unit.
            rows: how many it has.
            do: the results of these rows, in their order; it may take the process with it.
            quarantine: the result of a row that has to be left out, from its number and deaths.
        """
        try:
            with self._gate.enter(None):
                attempt = self._tally.begin(unit_id, rows, self._process, alone=self._alone)
                if attempt.company is None:
                    return do(range(rows))
            with self._gate.enter(attempt.company):
                results = {row: quarantine(row, deaths) for row, deaths in attempt.quarantined.items()}
                for step in attempt.steps:
                    wanted = [row for first, stop in step for row in range(first, stop)]
                    self._tally.enter(unit_id, self._process, step)
                    results.update(zip(wanted, do(wanted), strict=True))
                    self._tally.survive(unit_id, self._process)
            return [results[row] for row in range(rows)]
        except Exception:
            self._tally.abandon(unit_id)
            raise

    def finish(self, unit_id: str) -> None:
        """The unit's results are where a death cannot reach them."""
        self._tally.finish(unit_id)
