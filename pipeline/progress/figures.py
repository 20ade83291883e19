"""Numbers of a snapshot as people read them; every view shows the same. No side effects."""

from __future__ import annotations

from typing import TextIO

from pipeline.codec import redact
from pipeline.progress.snapshot import ChainStage, ResourceSeconds, Snapshot, Stage

_UNKNOWN = "-"
_CAUSES = 3


def count(number: float) -> str:
    """``12,345``; below 100 with one decimal, unless it is a whole number."""
    return f"{number:,.1f}" if number < 100 and number != int(number) else f"{number:,.0f}"


def clock_time(seconds: float) -> str:
    """``0:07``, ``12:34``, ``3:25:45``, ``2 d 3:25:45``."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    clock = f"{hours}:{minutes:02d}:{rest:02d}" if hours or days else f"{minutes}:{rest:02d}"
    return f"{days} d {clock}" if days else clock


def short_time(seconds: float) -> str:
    """``0.4 s``; from a minute on like :func:`clock_time`."""
    return f"{seconds:.1f} s" if seconds < 59.95 else clock_time(seconds)


def figures_of(snapshot: Snapshot) -> dict[str, str]:
    """The figures of a run by their labels, always the same ones; ``-`` where one is not known yet.

    Of a chain, the number of rows is the sum over its stages.
    """
    done, total, used = snapshot.done, snapshot.total_rows, snapshot.used
    about = "about " if any(own.estimated for own in snapshot.chain) else ""
    recent, load = snapshot.recent, snapshot.load
    per_forward = snapshot.session.tokens_per_forward
    found = {
        "rows": f"{count(done.rows)} of {about}{count(total)}" if total else _UNKNOWN,
        "failed": count(done.failed_rows),
        "ends in": _UNKNOWN if snapshot.eta is None else clock_time(snapshot.eta),
        "tokens/s": count(recent.tokens_per_second) if recent.rows_per_second else _UNKNOWN,
        "rows/s": f"{recent.rows_per_second:,.4g}" if recent.rows_per_second else _UNKNOWN,
        "tokens/forward": f"{per_forward:.2f}" if snapshot.session.decode_forwards else _UNKNOWN,
        "actors": _actors(snapshot),
        "KV in use": f"{load.kv_share:.0%}" if load is not None and load.actors else _UNKNOWN,
    }
    if snapshot.cost is not None:
        return {**found, "cost so far": f"{snapshot.cost:.4g}"}
    return {**found, f"{used.unit}-seconds": count(round(used.priced, 1)) if used.priced else _UNKNOWN}


def stage_rows(own: ChainStage) -> str:
    """Done rows of a stage of a chain, and how many it will have."""
    if not own.units:
        return _UNKNOWN
    about = "" if not own.estimated else "about " if own.done.units else "at most "
    return f"{count(own.done.rows)} of {about}{count(own.total_rows)}"


def failure_lines(snapshot: Snapshot) -> list[str]:
    """The most frequent causes of failures, a line each."""
    return [redact(own.line) for own in snapshot.done.failed_by_cause[:_CAUSES]]


def _actors(snapshot: Snapshot) -> str:
    actors = snapshot.actors
    if not actors.most:
        return _UNKNOWN
    parts = [f"{actors.ready} of {actors.most} ready"]
    parts += [f"{actors.starting} starting"] if actors.starting else []
    parts += [f"{actors.leaving} leaving"] if actors.leaving else []
    return ", ".join(parts)


def describe_cost(used: ResourceSeconds, tokens: int, price_per_hour: float | None) -> str:
    """One line for people. ``tokens``: generated in these seconds and committed."""
    each = used.per_million(tokens)
    line = f"{used.priced:.1f} {used.unit}-seconds reserved by actors"
    if each is not None:
        line += f", {each:.1f} per million tokens"
    if price_per_hour is None:
        return line
    line += f"; at {price_per_hour:g} per {used.unit}-hour: {used.cost(price_per_hour):.4g}"
    return line if each is None else f"{line}, {used.cost(price_per_hour) / tokens * 1e6:.4g} per million tokens"


LINE_SECONDS = 10.0
"""Seconds between two lines, unless the caller says otherwise."""


class Lines:
    """Writes a line at once, at each change of the stage, every so many seconds, and at the end."""

    def __init__(self, file: TextIO, seconds: float = LINE_SECONDS) -> None:
        self._file = file
        self._seconds = seconds
        self._next = float("-inf")
        self._stage: Stage | None = None

    def update(self, snapshot: Snapshot) -> None:
        """See :class:`pipeline.progress.views.Observer`."""
        if snapshot.stage is not self._stage or snapshot.at >= self._next:
            self.close(snapshot)

    def close(self, snapshot: Snapshot) -> None:
        """See :class:`pipeline.progress.views.Observer`."""
        self._stage, self._next = snapshot.stage, snapshot.at + self._seconds
        # In one write: `print` makes two where Python's output is unbuffered, and another thread's line comes between.
        self._file.write(format_line(snapshot) + "\n")
        self._file.flush()


def format_line(snapshot: Snapshot) -> str:
    """One line of ``key=value``, without a line's end. Values have no blanks; times are in seconds."""
    load, actors = snapshot.load, snapshot.actors
    recent, session = snapshot.recent, snapshot.session
    values = {
        "stage": snapshot.stage.value,
        "elapsed_s": f"{snapshot.at:.1f}",
        "rows": str(snapshot.done.rows),
        "total_rows": str(snapshot.total_rows) if snapshot.total_rows else _UNKNOWN,
        "failed": str(snapshot.done.failed_rows),
        "tokens_per_s": f"{recent.tokens_per_second:.0f}" if recent.rows_per_second else _UNKNOWN,
        "rows_per_s": f"{recent.rows_per_second:.4g}" if recent.rows_per_second else _UNKNOWN,
        "tokens_per_forward": f"{session.tokens_per_forward:.2f}" if session.decode_forwards else _UNKNOWN,
        "kv_share": f"{load.kv_share:.2f}" if load is not None and load.actors else _UNKNOWN,
        "actors_ready": str(actors.ready),
        "actors_starting": str(actors.starting),
        "gpu_s": f"{snapshot.used.accelerators:.1f}",
        "cpu_s": f"{snapshot.used.cpus:.1f}",
        "cost": f"{snapshot.cost:.6g}" if snapshot.cost is not None else _UNKNOWN,
        "eta_s": f"{snapshot.eta:.0f}" if snapshot.eta is not None else _UNKNOWN,
    }
    for own in snapshot.chain:
        values[f"{own.name}.rows"] = str(own.done.rows)
        values[f"{own.name}.total_rows"] = str(own.total_rows) if own.units else _UNKNOWN
        values[f"{own.name}.failed"] = str(own.done.failed_rows)
    return " ".join(["progress", *(f"{key}={value}" for key, value in values.items())])
