"""The first and the last sections: what the report is about, the main numbers, and the runs behind it."""

from __future__ import annotations

import datetime
from collections.abc import Sequence

from pipeline.codec import redact
from pipeline.reporting.facts import Facts, Session
from pipeline.reporting.html import Safe, el
from pipeline.reporting.numbers import NOTHING, clock, count, figure, percent, short
from pipeline.reporting.parts import section, table

__all__ = ["header", "runs", "tiles"]

_COUNTED = 100_000
"""Up to here a tile shows a count in full."""


def header(facts: Facts) -> Safe:
    """What the report is about, and whether all is done."""
    kind = "good" if facts.complete and not facts.totals.failed_rows else "warn"
    button = el("button", "Theme", id="theme", type="button", aria_label="switch between light and dark")
    return el(
        "header",
        el("div", el("p", "WeDLM Batch report", class_="brand"), button, class_="bar-top"),
        el("h1", facts.output),
        el("p", el("span", facts.state, class_=f"badge {kind}"), f" {facts.model}", class_="sub"),
    )


def tiles(facts: Facts) -> Safe:
    """The numbers that people look for first."""
    if facts.dropped is not None:
        kept = _tile("Rows kept", _count(facts.aggregate.rows), f"of {count(facts.planned_rows)}")
        about = f"{percent(facts.dropped / facts.planned_rows)} of the rows" if facts.planned_rows else ""
        dropped = _tile("Rows dropped", _count(facts.dropped), about)
        return el("section", el("dl", kept, dropped, class_="tiles"), aria_label="summary")
    totals = facts.totals
    ok = totals.rows - totals.failed_rows
    failed = f"{percent(totals.failed_rows / totals.rows)} of the rows" if totals.rows else "there are no rows"
    shown = [
        _tile("Rows ok", _count(ok), f"of {count(facts.planned_rows)}"),
        _tile("Rows failed", _count(totals.failed_rows), failed, kind="bad" if totals.failed_rows else ""),
        _tile("Generated tokens", _count(totals.completion_tokens), f"{_count(totals.prompt_tokens)} in prompts"),
    ]
    if totals.decode_forwards:
        shown += [
            _tile(
                "Tokens per forward",
                figure(totals.tokens_per_forward),
                f"over {_count(totals.decode_forwards)} forwards; autoregressive decoding has 1",
            ),
            _tile(
                "Prefix cacheability",
                figure(totals.prefix_cacheability),
                f"output tokens over {_count(totals.rows_forwarded)} computed rows",
            ),
        ]
    last = next((s for s in reversed(facts.sessions) if s.tokens and s.generating_seconds), None)
    if last is not None:
        about = f"last run: {clock(last.generating_seconds)} of {clock(last.seconds)} generating"
        shown.append(_tile("Tokens per second", _count(round(last.tokens / last.generating_seconds)), about))
    cost = _cost(facts.sessions)
    return el("section", el("dl", *shown, cost, class_="tiles"), aria_label="summary")


def _count(value: int) -> str:
    return count(value) if value < _COUNTED else short(value)


def _tile(name: str, value: str, about: str, *, kind: str = "") -> Safe:
    return el("div", el("dt", name), el("dd", value), el("dd", about, class_="about"), class_=f"tile {kind}".strip())


def _cost(sessions: Sequence[Session]) -> Safe | None:
    """Of all runs that are known: money where a price was given, else time."""
    priced = [s for s in sessions if s.cost is not None and s.used.priced]
    if priced:
        total, tokens = sum(s.cost or 0.0 for s in priced), sum(s.tokens for s in priced)
        return _tile("Cost", figure(total), f"{figure(total / tokens * 1e6)} per million tokens" if tokens else "")
    used, tokens = sum(s.used.priced for s in sessions), sum(s.tokens for s in sessions)
    if not used:
        return None
    each = f"{clock(used / tokens * 1e6)} per million tokens" if tokens else "reserved by actors"
    return _tile(f"{sessions[-1].used.unit} time", clock(used), each)


def runs(facts: Facts) -> Safe:
    """The runs that wrote the output, and its settings."""
    children: list[str | None] = []
    if facts.sessions:
        heads = ("Run", "Began (UTC)", "Took", "Rows", "Failed", "Tokens", "Reserved", "Cost", "Ended")
        children.append(table("runs", heads, [_run(s) for s in facts.sessions], wide=True))
    settings = [(name, redact(value)) for name, value in facts.settings.items()]
    if settings:
        opened = el("summary", "Settings that change the output")
        children.append(el("details", opened, table("settings", (), settings), class_="after"))
    return section("runs", "Runs and settings", "", *children)


def _run(session: Session) -> tuple[str, ...]:
    began = datetime.datetime.fromtimestamp(session.began, datetime.UTC).strftime("%Y-%m-%d %H:%M:%S")
    used = f"{figure(session.used.priced)} {session.used.unit}-s" if session.used.priced else NOTHING
    return (str(session.epoch), began, clock(session.seconds), count(session.rows), count(session.failed),
            count(session.tokens), used, figure(session.cost), redact(session.outcome))  # fmt: skip
