"""Charts over time, from the time lines of runs."""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.reporting.chart import Chart
from pipeline.reporting.facts import Facts, Session
from pipeline.reporting.html import Safe
from pipeline.reporting.lines import Point, Series, lines, scatter
from pipeline.reporting.numbers import clock, count, figure, percent, short
from pipeline.reporting.parts import section
from pipeline.reporting.timeline import Moment

__all__ = ["masks_against_load", "over_time"]

_STRETCHES = 60
"""Rates are over this part of a run, at least: of shorter ones they are noise."""
_LEAST_SECONDS = 1.0
_ENGINE_SECONDS = 4.0
"""Engines say every second or two what they have counted."""
_MOST_POINTS = 150
_SESSIONS = 8


def over_time(facts: Facts) -> Safe | None:
    """Throughput, actors and load of the last run that generated."""
    session = next((s for s in reversed(facts.sessions) if s.tokens and len(s.moments) > 2), None)
    if session is None:
        return None
    about = f"The last run that generated: {count(session.rows)} rows in {clock(session.seconds)}."
    return section("time", "Over time", about, _throughput(session), _actors(session.moments), _load(session.moments))


def _throughput(session: Session) -> Safe:
    pairs, calm = _pairs(session.moments), _pairs(session.moments, _ENGINE_SECONDS)
    committed = [Point(x=b.at, y=_rate(a, b, "tokens")) for a, b in pairs]
    series = [Series(name="committed", points=committed, kind="c1", area=True, shown=short)]
    about = (
        "Tokens of units that were committed; a unit is committed when its last row is done, so this comes in steps."
    )
    if session.moments[-1].engine_tokens:
        generated = [Point(x=b.at, y=_rate(a, b, "engine_tokens")) for a, b in calm]
        series.insert(0, Series(name="generated", points=generated, kind="c2", shown=short))
        about = "Tokens that engines generated, and those of units that were committed, which come in steps."
    chart = Chart(name="throughput", title="Throughput", about=about, x="time", y="tokens per second")
    return lines(chart, series, x_shown=clock)


def _actors(moments: Sequence[Moment]) -> Safe:
    chart = Chart(name="actors", title="Actors", x="time", y="actors",
                  about="Actors that took units, and how many there were to be.")  # fmt: skip
    wanted = [Point(x=m.at, y=m.wanted) for m in moments]
    ready = [Point(x=m.at, y=m.ready) for m in moments]
    series = [
        Series(name="wanted", points=wanted, kind="c3", steps=True, shown=short),
        Series(name="ready", points=ready, kind="c1", steps=True, area=True, shown=short),
    ]
    return lines(chart, series, x_shown=clock, whole=True)


def _load(moments: Sequence[Moment]) -> Safe | None:
    if not any(m.running for m in moments):
        return None
    chart = Chart(name="fill", title="Load of the engines", x="time", y="share in use",
                  about="Slots that held a sequence, and pages of the KV cache that one held.")  # fmt: skip
    slots = [Point(x=m.at, y=m.running / m.slots) for m in moments if m.slots]
    pages = [Point(x=m.at, y=m.kv_used / m.kv_pages) for m in moments if m.kv_pages]
    series = [
        Series(name="slots", points=slots, kind="c1", area=True, shown=percent),
        Series(name="KV pages", points=pages, kind="c2", shown=percent),
    ]
    return lines(chart, series, x_shown=clock, most=1.0)


def masks_against_load(sessions: Sequence[Session]) -> Safe | None:
    """Masks of a sequence against how many sequences ran, moment by moment; None where nothing was seen."""
    chart = Chart(name="masks", title="Masks against load", x="sequences running", y="masks of a sequence's window",
                  about="Few sequences leave rows to spare, so windows are wide; under load they shrink.")  # fmt: skip
    points, rows = [], []
    for session in sessions[-_SESSIONS:]:
        for before, after in _pairs(session.moments, _ENGINE_SECONDS):
            forwards, actors = after.engine_forwards - before.engine_forwards, max(1, after.ready)
            running = (before.running + after.running) / 2 / actors
            if forwards <= 0 or not running:
                continue
            masks = max(0.0, (after.masks - before.masks) / forwards)
            points.append(Point(x=running, y=masks, tip=f"{figure(running)} sequences: {figure(masks)} masks each"))
            rows.append((clock(after.at), figure(running), figure(masks)))
    if not points:
        return None
    points, step = points[:: max(1, len(points) // _MOST_POINTS)], max(1, len(rows) // 24)
    return scatter(chart, points, heads=("time", "sequences of an engine", "masks each"), rows=rows[::step])


def _pairs(moments: Sequence[Moment], least: float = _LEAST_SECONDS) -> list[tuple[Moment, Moment]]:
    """Each moment with one before it, far enough for a rate that is not noise."""
    if len(moments) < 2:
        return []
    apart = max(least, (moments[-1].at - moments[0].at) / _STRETCHES)
    pairs, start = [], 0
    for i in range(1, len(moments)):
        while start + 1 < i and moments[i].at - moments[start + 1].at >= apart:
            start += 1
        pairs.append((moments[start], moments[i]))
    return pairs


def _rate(before: Moment, after: Moment, name: str) -> float:
    seconds = after.at - before.at
    grown: float = getattr(after, name) - getattr(before, name)
    return max(0.0, grown / seconds) if seconds > 0 else 0.0
