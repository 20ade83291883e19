"""What is committed of a run, or of one stage of a chain. Plain counting: whoever holds it locks it."""

from __future__ import annotations

from dataclasses import replace

from pipeline.progress.snapshot import ChainStage, Progress
from pipeline.types import CommitRecord, Totals

__all__ = ["Counts", "work_of"]


def work_of(totals: Totals | CommitRecord) -> int:
    """Token rows that were forwarded: the measure in which rows of different stages are compared."""
    return totals.prompt_tokens + totals.rows_forwarded


class Counts:
    """Counts the committed units of one output."""

    def __init__(self) -> None:
        self._past = self._own = Progress()  # of the runs before, and of this one; its seconds but for the last pass
        self._units, self._seconds = 0, 0.0
        self._planned, self._estimated = 0, False

    def begin(self) -> None:
        """A further run begins, which is shown together with those before."""
        self._past, self._units = self.whole, 0
        self._own, self._seconds = Progress(), 0.0

    def plan(self, total_rows: int, done: Totals, units: int, *, estimated: bool = False) -> None:
        """Generating begins, or begins again; see :meth:`pipeline.progress.monitor.Monitor.plan`."""
        own = self._own
        self._units = own.session.units + units
        self._planned, self._estimated = done.units + units, estimated
        self._own = replace(own, total_rows=total_rows, done=done, seconds=own.seconds + self._seconds)
        self._seconds = 0.0

    def add(self, record: CommitRecord, new: CommitRecord) -> None:
        """Count a unit; ``new``: without what an earlier attempt had done of it."""
        own = self._own
        self._own = replace(own, done=own.done.plus(record), session=own.session.plus(new))
        self._seconds = max(self._seconds, record.engine_seconds)

    @property
    def units(self) -> int:
        """Units that this session has or had to do."""
        return self._past.session.units + self._units

    @property
    def committed(self) -> Progress:
        """The present run, without those before."""
        own = replace(self._own, seconds=self._own.seconds + self._seconds)
        return replace(own, total_rows=self._expected_rows(own)) if self._estimated else own

    @property
    def whole(self) -> Progress:
        """The runs before and this one."""
        past, own = self._past, self.committed
        return Progress(
            total_rows=past.total_rows + own.total_rows, done=past.done.merged_with(own.done),
            session=past.session.merged_with(own.session), seconds=past.seconds + own.seconds,
        )  # fmt: skip

    def as_stage(self, name: str) -> ChainStage:
        """As a stage of a chain."""
        own = self.whole
        return ChainStage(
            name=name, total_rows=own.total_rows, done=own.done, session=own.session, seconds=own.seconds,
            units=self._planned, estimated=self._estimated and own.done.units < self._planned,
        )  # fmt: skip

    @property
    def work_left(self) -> float | None:
        """Work that is left; None if nobody knows what a row costs."""
        own = self.committed
        left, session = own.total_rows - own.done.rows, own.session
        if left <= 0:
            return 0.0
        return left * work_of(session) / session.rows if session.rows else None

    def _expected_rows(self, own: Progress) -> int:
        """Rows in all, if the units that are left have as many as those that are done; ``own`` has the most."""
        done = own.done
        if not done.units:
            return own.total_rows
        return min(own.total_rows, done.rows + round(done.rows / done.units * (self._planned - done.units)))
