"""How far a run is: counts, rates and the time that is left. Knows no Ray."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from pipeline.types import CommitRecord, Totals

__all__ = ["Progress", "ProgressTracker", "format_progress"]


@dataclass(frozen=True, kw_only=True)
class Progress:
    """A moment of a run.

    Attributes:
        total_rows: input rows of the run, those of earlier sessions included.
        done: totals over everything committed.
        session: totals over what this session committed.
        seconds: that the engine longest at work has been ready in this session (the start of processes and
            the loading of models left out); 0 before the first unit.
    """

    total_rows: int
    done: Totals
    session: Totals
    seconds: float

    @classmethod
    def nothing(cls) -> Progress:
        """Of a session that has nothing to do."""
        return cls(total_rows=0, done=Totals(), session=Totals(), seconds=0.0)

    def followed_by(self, later: Progress) -> Progress:
        """Of this session when more work was found after this moment, and done until the moment ``later``."""
        return replace(later, session=self.session.together_with(later.session), seconds=self.seconds + later.seconds)

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
    """Adds up records and tells a listener."""

    def __init__(self, total_rows: int, done: Totals, listen: Callable[[Progress], None]) -> None:
        self._total = total_rows
        self._done = done
        self._session = Totals()
        self._seconds = 0.0
        self._listen = listen
        listen(self.now())

    def add(self, record: CommitRecord, before: CommitRecord | None = None) -> None:
        """One more unit; ``before``: its record of an earlier session, where failed rows of it were done again."""
        self._done = self._done.plus(record)
        self._session = self._session.plus(record if before is None else record.since(before))
        self._seconds = max(self._seconds, record.engine_seconds)
        self._listen(self.now())

    def now(self) -> Progress:
        """The current moment."""
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
