"""The page: one file with its styles, scripts and data, that asks no network for anything."""

from __future__ import annotations

import base64
import datetime
import functools
import hashlib
import importlib.resources

from pipeline.reporting import outcomes, row_charts, summary
from pipeline.reporting.facts import Facts
from pipeline.reporting.html import Safe, el, join
from pipeline.reporting.parts import section
from pipeline.reporting.player import player
from pipeline.reporting.run_charts import over_time

__all__ = ["render"]

_SCRIPTS = ("report.js", "player_state.js", "player.js")


def render(facts: Facts) -> str:
    """The report as HTML. Nothing in it is fetched, and its policy forbids the browser to: foreign text stays text."""
    style, scripts = _asset("report.css"), [_asset(name) for name in _SCRIPTS]
    policy = "; ".join((
        "default-src 'none'", f"style-src {_source(style)}", f"script-src {' '.join(map(_source, scripts))}",
        "base-uri 'none'", "form-action 'none'",
    ))  # fmt: skip
    body = join(
        el("a", "Skip to the content", href="#main", class_="skip"),
        summary.header(facts),
        el("main", *_sections(facts), id="main"),
        _footer(facts),
        el("div", id="tip", role="status", aria_live="polite", hidden=True),
        *(el("script", Safe(text)) for text in scripts),
    )
    head = el(
        "head",
        el("meta", charset="utf-8"),
        el("meta", http_equiv="Content-Security-Policy", content=policy),
        el("meta", name="viewport", content="width=device-width, initial-scale=1"),
        el("meta", name="color-scheme", content="light dark"),
        el("meta", name="referrer", content="no-referrer"),
        el("title", f"Report of {facts.output}"),
        el("style", Safe(style)),
    )
    return f"<!doctype html>\n{el('html', head, el('body', body), lang='en')}\n"


def _sections(facts: Facts) -> list[Safe | None]:
    notes = el("aside", el("ul", *(el("li", note) for note in facts.notes)), class_="notes") if facts.notes else None
    first, last = [summary.tiles(facts), notes], [summary.runs(facts)]
    if not facts.aggregate.rows:
        nothing = el("p", "No row is committed, so there is nothing to draw.", class_="nothing")
        return [*first, section("empty", "No rows", "", nothing), *last]
    has = facts.aggregate.generations > 0
    return [
        *first,
        player(facts.traces, facts.trace_note),
        over_time(facts),
        row_charts.decoding(facts) if has else None,
        row_charts.certainty(facts) if has else None,
        outcomes.outcome(facts),
        row_charts.lengths(facts) if has else None,
        outcomes.sampled(facts),
        *last,
    ]


def _footer(facts: Facts) -> Safe:
    made = datetime.datetime.fromtimestamp(facts.made, datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
    return el("footer", el("p", f"Made {made} by wedlm-batch {facts.version}. This file is all there is: it asks no "
                                "server for anything."))  # fmt: skip


@functools.cache
def _asset(name: str) -> str:
    return (importlib.resources.files(__package__) / "assets" / name).read_text(encoding="utf-8")


def _source(text: str) -> str:
    """The text as a source of a content security policy: what has another hash is not used."""
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return f"'sha256-{digest}'"
