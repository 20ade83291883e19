"""Progress of a run: counts, rates and remaining time. Knows no Ray."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from pipeline.types import CommitRecord, Totals

__all__ = ["Progress", "ProgressTracker", "format_progress"]


@dataclass(frozen=True, kw_only=True)
class Progress:
    """The progress of a run at one moment.

    Attributes:
        total_rows: input rows of the run, those of earlier sessions included.
        done: totals over all committed units.
        session: totals over the units that this session committed.
        seconds: time for which the first engine has been ready in this session (without the start of processes and
            model loading); 0 before the first unit.
    """

    total_rows: int
    done: Totals
    session: Totals
    seconds: float

    @classmethod
    def nothing(cls) -> Progress:
        """The progress of a session without work."""
        return cls(total_rows=0, done=Totals(), session=Totals(), seconds=0.0)

    def followed_by(self, later: Progress) -> Progress:
        """The progress at ``later``, for a session that found more work after this moment."""
        return replace(later, session=self.session.merged_with(later.session), seconds=self.seconds + later.seconds)

    @property
    def tokens_per_second(self) -> float:
        """Generated tokens of this session per second."""
        return self.session.completion_tokens / self.seconds if self.seconds > 0 else 0.0

    @property
    def rows_per_second(self) -> float:
        """Input rows of this session per second."""
        return self.session.rows / self.seconds if self.seconds > 0 else 0.0

    @property
    def eta_seconds(self) -> float | None:
        """Seconds to the end at this session's rate; None before the first unit."""
        return (self.total_rows - self.done.rows) / self.rows_per_second if self.rows_per_second else None


class ProgressTracker:
    """Adds up ledger records and reports to a listener."""

    def __init__(self, total_rows: int, done: Totals, listen: Callable[[Progress], None]) -> None:
        self._total = total_rows
        self._done = done
        self._session = Totals()
        self._seconds = 0.0
        self._listen = listen
        listen(self.now())

    def add(self, record: CommitRecord, before: CommitRecord | None = None) -> None:
        """Count a unit; ``before``: the record that it replaces, if its failed rows were generated again."""
        self._done = self._done.plus(record)
        self._session = self._session.plus(record if before is None else record.since(before))
        self._seconds = max(self._seconds, record.engine_seconds)
        self._listen(self.now())

    def now(self) -> Progress:
        """The current progress."""
        return Progress(total_rows=self._total, done=self._done, session=self._session, seconds=self._seconds)


def format_progress(progress: Progress) -> str:
    """One line for people."""
    done, eta = progress.done, progress.eta_seconds
    share = done.rows / progress.total_rows if progress.total_rows else 1.0
    left = "-" if eta is None else _clock_time(eta)
    failed = f", {done.failed_rows} failed" if done.failed_rows else ""
    return (
        f"{done.rows}/{progress.total_rows} rows ({share:.0%}{failed}) | {progress.tokens_per_second:.0f} tokens/s | "
        f"{progress.session.tokens_per_forward:.2f} tokens/forward | ETA {left}"
    )


def _clock_time(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
