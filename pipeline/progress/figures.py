"""Numbers of a snapshot as people read them; every view shows the same. No side effects."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TextIO

from pipeline.codec import redact
from pipeline.progress.snapshot import ChainFilter, ChainStage, Eta, Progress, Snapshot, Stage

_UNKNOWN = "-"
_NO_TIME = 0.05
_CAUSES = 3
_UNITS = (("s", 1, 0), ("min", 60, 0), ("h", 3600, 1), ("days", 86_400, 1))
"""Of times to come: the name, its seconds, and the decimals."""


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One figure: name, value, and whether it asks for attention."""

    label: str
    value: str
    alarming: bool = False


@dataclass(frozen=True, kw_only=True)
class StageMark:
    """One stage: label, seconds (0 before it began), and whether it is over, going on or to come."""

    label: str
    seconds: float
    state: str
    """``past``, ``present`` or ``future``."""


@dataclass(frozen=True, kw_only=True)
class ChainRow:
    """A stage of a chain.

    Attributes:
        name: of the stage.
        state: ``past``, ``present`` or ``future``.
        share: that is done; None of a filter, which nobody counts.
        text: its rows.
        failed: how many of them failed; empty if none did.
    """

    name: str
    state: str
    share: float | None
    text: str
    failed: str = ""


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


def stage_marks(snapshot: Snapshot) -> list[StageMark]:
    """The stages in their order. One that the run went through unseen, or in no time, is left out."""
    now = list(Stage).index(snapshot.stage)
    marks = []
    for place, stage in enumerate(Stage):
        seconds = snapshot.stages.get(stage, 0.0)
        begun = seconds >= _NO_TIME
        to_come = place >= now and (stage is not Stage.FILTERING or bool(snapshot.filters))
        if stage is not Stage.DONE and (begun or to_come):
            state = "present" if place == now else "past" if begun else "future"
            marks.append(StageMark(label=stage.label, seconds=seconds, state=state))
    return marks


def chain_rows(snapshot: Snapshot) -> list[ChainRow]:
    """The stages of a chain in their order, its filters after them; none of a run that is no chain."""
    rows = [_stage_row(own) for own in snapshot.chain]
    due = next((own.name for own in snapshot.filters if own.rows is None), None)
    for own in snapshot.filters:
        present = own.name == due and snapshot.stage is Stage.FILTERING
        state = "past" if own.rows is not None else "present" if present else "future"
        rows.append(ChainRow(name=own.name, state=state, share=None, text=_filter_text(own)))
    return rows


def _stage_row(own: ChainStage) -> ChainRow:
    done = own.done
    ended = own.units > 0 and done.units == own.units
    state = "past" if ended else "present" if done.units else "future"
    about = "" if not own.estimated else "about " if done.units else "at most "
    text = f"{count(done.rows)} of {about}{count(own.total_rows)}" if own.units else _UNKNOWN
    failed = f"{count(done.failed_rows)} failed" if done.failed_rows else ""
    return ChainRow(name=own.name, state=state, share=own.share, text=text, failed=failed)


def _filter_text(own: ChainFilter) -> str:
    return "filter" if own.rows is None or own.kept is None else f"{count(own.kept)} of {count(own.rows)} kept"


def cells_of(snapshot: Snapshot) -> list[Cell]:
    """The figures of a run, always the same ones in the same order; ``-`` where one is not known yet.

    Of a chain, the number of rows is the sum over its stages.
    """
    done, total = snapshot.done, snapshot.total_rows
    about = "about " if any(own.estimated for own in snapshot.chain) else ""
    rows = f"{count(done.rows)} of {about}{count(total)}" if total else _UNKNOWN
    going = snapshot.recent.seconds > 0
    load = snapshot.load
    return [
        Cell(label="rows", value=rows),
        Cell(label="failed", value=count(done.failed_rows), alarming=done.failed_rows > 0),
        Cell(label="ends in", value=_ends_in(snapshot.eta)),
        Cell(label="tokens/s", value=count(snapshot.recent.tokens_per_second) if going else _UNKNOWN),
        Cell(label="rows/s", value=_rate(snapshot.recent.rows_per_second) if going else _UNKNOWN),
        Cell(
            label="tokens/forward",
            value=f"{snapshot.session.tokens_per_forward:.2f}" if snapshot.session.decode_forwards else _UNKNOWN,
        ),
        Cell(label="actors", value=_actors(snapshot)),
        Cell(label="KV in use", value=f"{load.kv_share:.0%}" if load is not None and load.actors else _UNKNOWN),
        _cost(snapshot),
    ]


def failure_lines(snapshot: Snapshot) -> list[str]:
    """The most frequent causes of failures, a line each."""
    return [redact(own.line) for own in snapshot.done.failed_by_cause[:_CAUSES]]


def format_progress(progress: Progress) -> str:
    """The committed part of a run in one line for people."""
    done, eta = progress.done, progress.eta_seconds
    share = done.rows / progress.total_rows if progress.total_rows else 1.0
    left = _UNKNOWN if eta is None else clock_time(eta)
    failed = f", {done.failed_rows} failed" if done.failed_rows else ""
    return (
        f"{done.rows}/{progress.total_rows} rows ({share:.0%}{failed}) | {progress.tokens_per_second:.0f} tokens/s | "
        f"{progress.session.tokens_per_forward:.2f} tokens/forward | ETA {left}"
    )


def _rate(number: float) -> str:
    return f"{number:.3g}" if 0 < number < 1 else count(number)


def _ends_in(eta: Eta | None) -> str:
    if eta is None:
        return _UNKNOWN
    unit, seconds, digits = next((one for one in _UNITS if eta.seconds < one[1] * 120), _UNITS[-1])
    best, low, high = (f"{value / seconds:.{digits}f}" for value in (eta.seconds, eta.low, eta.high))
    return f"{best} {unit} ({low} to {high})"


def _actors(snapshot: Snapshot) -> str:
    actors = snapshot.actors
    if not actors.most:
        return _UNKNOWN
    parts = [f"{actors.ready} ready"]
    parts += [f"{actors.starting} starting"] if actors.starting else []
    parts += [f"{actors.leaving} leaving"] if actors.leaving else []
    text = ", ".join(parts)
    return text if actors.most <= actors.wanted else f"{text}, max {actors.most}"


def _cost(snapshot: Snapshot) -> Cell:
    used = snapshot.used
    if snapshot.cost is not None:
        return Cell(label="cost so far", value=f"{snapshot.cost:.4g}")
    return Cell(label=f"{used.unit}-seconds", value=count(round(used.priced, 1)) if used.priced else _UNKNOWN)


LINE_SECONDS = 10.0
"""Seconds between two lines, unless the caller says otherwise."""


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
        """See :class:`pipeline.progress.views.Observer`."""
        if snapshot.stage is not self._stage or snapshot.at >= self._next:
            self._write(snapshot)

    def close(self, snapshot: Snapshot) -> None:
        """See :class:`pipeline.progress.views.Observer`."""
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
