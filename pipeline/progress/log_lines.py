"""Progress as lines of text, for logs: ``progress stage=generating rows=96 total_rows=228 ...``.

Every line of a run has the same keys in the same order, so that ``grep`` and ``cut`` find them; ``-`` stands for what
is not known. Those of a chain end with keys of each stage: ``judge.rows=40 judge.total_rows=96 judge.failed=0``. There
are neither escape codes nor carriage returns.
"""

from __future__ import annotations

from typing import TextIO

from pipeline.progress.snapshot import Snapshot, Stage

__all__ = ["LINE_SECONDS", "Lines", "format_line"]

LINE_SECONDS = 10.0
"""Seconds between two lines, unless the caller says otherwise."""
_UNKNOWN = "-"


class Lines:
    """Writes a line at once, at each change of the stage, every so many seconds, and at the end if there is news.

    Args:
        file: where to; a line is flushed when it is written.
        seconds: between two lines of the same stage.
    """

    def __init__(self, file: TextIO, seconds: float = LINE_SECONDS) -> None:
        self._file = file
        self._seconds = seconds
        self._next = float("-inf")
        self._stage: Stage | None = None
        self._rows = 0

    def update(self, snapshot: Snapshot) -> None:
        """See :class:`pipeline.progress.observers.Observer`."""
        if snapshot.stage is not self._stage or snapshot.at >= self._next:
            self._write(snapshot)

    def close(self, snapshot: Snapshot) -> None:
        """See :class:`pipeline.progress.observers.Observer`."""
        if snapshot.stage is not self._stage or snapshot.done.rows != self._rows:
            self._write(snapshot)

    def _write(self, snapshot: Snapshot) -> None:
        self._stage, self._next = snapshot.stage, snapshot.at + self._seconds
        self._rows = snapshot.done.rows
        # In one write: `print` makes two where Python's output is unbuffered, and another thread's line comes between.
        self._file.write(format_line(snapshot) + "\n")
        self._file.flush()


def format_line(snapshot: Snapshot) -> str:
    """One line of ``key=value``, without a line's end. Values have no blanks; times are in seconds."""
    eta, load, actors = snapshot.eta, snapshot.load, snapshot.actors
    going, session = snapshot.recent.seconds > 0, snapshot.session
    values = {
        "stage": snapshot.stage.value,
        "elapsed_s": f"{snapshot.at:.1f}",
        "rows": str(snapshot.done.rows),
        "total_rows": str(snapshot.total_rows) if snapshot.total_rows else _UNKNOWN,
        "failed": str(snapshot.done.failed_rows),
        "tokens_per_s": f"{snapshot.recent.tokens_per_second:.0f}" if going else _UNKNOWN,
        "rows_per_s": f"{snapshot.recent.rows_per_second:.4g}" if going else _UNKNOWN,
        "tokens_per_forward": f"{session.tokens_per_forward:.2f}" if session.decode_forwards else _UNKNOWN,
        "kv_share": f"{load.kv_share:.2f}" if load is not None and load.actors else _UNKNOWN,
        "actors_ready": str(actors.ready),
        "actors_starting": str(actors.starting),
        "actors_wanted": str(actors.wanted),
        "gpu_s": f"{snapshot.used.accelerators:.1f}",
        "cpu_s": f"{snapshot.used.cpus:.1f}",
        "cost": f"{snapshot.cost:.6g}" if snapshot.cost is not None else _UNKNOWN,
        "eta_s": f"{eta.seconds:.0f}" if eta is not None else _UNKNOWN,
        "eta_low_s": f"{eta.low:.0f}" if eta is not None else _UNKNOWN,
        "eta_high_s": f"{eta.high:.0f}" if eta is not None else _UNKNOWN,
    }
    for own in snapshot.chain:
        values[f"{own.name}.rows"] = str(own.done.rows)
        values[f"{own.name}.total_rows"] = str(own.total_rows) if own.units else _UNKNOWN
        values[f"{own.name}.failed"] = str(own.done.failed_rows)
    for filtered in snapshot.filters:
        values[f"{filtered.name}.rows"] = _UNKNOWN if filtered.rows is None else str(filtered.rows)
        values[f"{filtered.name}.kept"] = _UNKNOWN if filtered.kept is None else str(filtered.kept)
    return " ".join(["progress", *(f"{key}={value}" for key, value in values.items())])
