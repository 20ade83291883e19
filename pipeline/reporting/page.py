"""The page: one file with its styles, scripts and data, that asks no network for anything."""

from __future__ import annotations

import base64
import datetime
import functools
import hashlib
import importlib.resources
import re
from collections.abc import Sequence
from typing import Any

import jinja2
import numpy as np
from markupsafe import Markup

from pipeline.codec import redact
from pipeline.fingerprint import retry_advice
from pipeline.progress.figures import clock_time, short_time
from pipeline.reporting.aggregate import Aggregate
from pipeline.reporting.chart import Bar, Chart, count, figure, histogram_chart, percent, short
from pipeline.reporting.facts import Facts, Session, drafts_by_source
from pipeline.reporting.traces import ABOUT, player_data
from pipeline.settings.parsing import describe_unparsed
from pipeline.types import Totals

_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ufdd0-\ufdef\ufffe\uffff]")
_STRETCHES = 40
"""Bars of the throughput."""
_REPEATS = 3
"""Values are labels if each has at least so many rows on average."""


def render(facts: Facts) -> str:
    """Make the report as HTML. It fetches nothing, and its policy forbids the browser to: foreign text stays text."""
    style, script = _asset("report.css"), _asset("player.js") + _asset("rows.js")
    policy = f"default-src 'none'; style-src {_source(style)}; script-src {_source(script)}; base-uri 'none'"
    policy += "; form-action 'none'"
    return _template().render(
        facts=facts,
        policy=policy,
        style=Markup(style),
        script=Markup(script),
        tiles=tiles_of(facts),
        charts=_charts(facts) if facts.aggregate.generations else [],
        drafts=drafts_by_source(facts.totals.drafts, facts.totals.completion_tokens),
        labels=labels_of_rows(facts.aggregate),
        unparsed=describe_unparsed(facts.totals.unparsed, facts.totals.samples) if facts.totals.unparsed else "",
        advice=retry_advice(scheduled=facts.scheduled),
        about_decoding=" ".join(ABOUT.get(name, "") for name in dict.fromkeys(t.strategy for t in facts.traces)),
        traces=[player_data(trace) for trace in facts.traces],
    )  # fmt: skip


@functools.cache
def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        autoescape=True, finalize=_shown, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined,
        loader=jinja2.FunctionLoader(_asset),
    )  # fmt: skip
    environment.filters |= {"clock": short_time, "count": count, "figure": figure, "percent": percent, "redact": redact,
                            "utc": _utc}  # fmt: skip
    return environment.get_template("report.html")


def _shown(value: Any) -> Any:
    """Replace characters that may not stand in HTML; markup of the template itself stays."""
    if value is None:
        return ""
    if isinstance(value, str) and not isinstance(value, Markup):
        return _CONTROL.sub("\ufffd", value.encode("utf-8", "replace").decode())
    return value


def _utc(seconds: float) -> str:
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).strftime("%Y-%m-%d %H:%M")


@functools.cache
def _asset(name: str) -> str:
    return (importlib.resources.files(__package__) / "assets" / name).read_text(encoding="utf-8")


def _source(text: str) -> str:
    """The text as a source of a content security policy: a browser uses no text with another hash."""
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return f"'sha256-{digest}'"


def tiles_of(facts: Facts) -> list[tuple[str, str, str]]:
    """Name, value and remark of the numbers that people look for first."""
    totals, planned = facts.totals, facts.planned_rows
    if facts.dropped is not None:
        share = f"{percent(facts.dropped / planned)} of the rows" if planned else ""
        return [("Rows kept", _count(facts.aggregate.rows), f"of {count(planned)}"),
                ("Rows dropped", _count(facts.dropped), share)]  # fmt: skip
    failed = f"{percent(totals.failed_rows / totals.rows)} of the rows" if totals.rows else "there are no rows"
    tiles = [
        ("Rows ok", _count(totals.rows - totals.failed_rows), f"of {count(planned)}"),
        ("Rows failed", _count(totals.failed_rows), failed),
        (_tokens_of(totals), _count(totals.completion_tokens), f"{_count(totals.prompt_tokens)} in prompts"),
    ]
    if totals.decode_forwards:
        over = f"over {_count(totals.decode_forwards)} forwards; autoregressive decoding has 1"
        computed = f"output tokens over {_count(totals.rows_forwarded)} computed rows"
        tiles += [("Tokens per forward", figure(totals.tokens_per_forward), over),
                  ("Prefix cacheability", figure(totals.prefix_cacheability), computed)]  # fmt: skip
    last = next((s for s in reversed(facts.sessions) if s.tokens and s.generating_seconds), None)
    if last is not None:
        about = f"last run: {short_time(last.generating_seconds)} of {short_time(last.seconds)} generating"
        tiles.append(("Tokens per second", _count(round(last.tokens / last.generating_seconds)), about))
        if last.gain is not None:
            tiles.append(("Gain", f"{last.gain:.2f}", "times autoregressive decoding at this load, last run"))
    return [*tiles, *_cost(facts.sessions)]


def _tokens_of(totals: Totals) -> str:
    return "Scored tokens" if totals.are_scored else "Generated tokens"


def _count(value: int) -> str:
    return count(value) if value < 100_000 else short(value)


def _cost(sessions: Sequence[Session]) -> list[tuple[str, str, str]]:
    """Of all runs that are known: money where a price was given, else time."""
    priced = [s for s in sessions if s.cost is not None and s.used.priced]
    if priced:
        total, tokens = sum(s.cost or 0.0 for s in priced), sum(s.tokens for s in priced)
        return [("Cost", figure(total), f"{figure(total / tokens * 1e6)} per million tokens" if tokens else "")]
    used, tokens = sum(s.used.priced for s in sessions), sum(s.tokens for s in sessions)
    if not used:
        return []
    each = f"{short_time(used / tokens * 1e6)} per million tokens" if tokens else "reserved by actors"
    return [(f"{sessions[-1].used.unit} time", short_time(used), each)]


def _charts(facts: Facts) -> list[Chart]:
    shown = facts.aggregate.histograms
    session = next((s for s in reversed(facts.sessions) if s.tokens and len(s.moments) > 2), None)
    throughput = [_throughput(session)] if session is not None else []
    outputs = histogram_chart("outputs", "Tokens of outputs", "Tokens of each row's text, generated or scored.",
                              "tokens", shown["completion_tokens"])  # fmt: skip
    if facts.totals.are_scored:
        return [*throughput, outputs]
    return [
        *throughput,
        histogram_chart("tpf", "Tokens per forward", "Generated tokens over decode forwards. Autoregressive decoding "
                        "has 1.", "tokens per forward", shown["tokens_per_forward"]),
        histogram_chart("entropy", "Uncertainty of a row", "Mean entropy of the distributions that its tokens were "
                        "taken from, on a logarithmic axis. Rows at the right end are worth a second look.",
                        "nats", shown["mean_entropy"]),
        outputs,
    ]  # fmt: skip


def _throughput(session: Session) -> Chart:
    """Tokens per second over the last run that generated, in stretches of equal length."""
    at, tokens = np.array(session.moments).T
    edges = np.linspace(at[0], at[-1], min(_STRETCHES, len(at)) + 1)
    counts = np.interp(edges, at, np.maximum.accumulate(tokens))
    rates = np.diff(counts) / np.maximum(np.diff(edges), 1e-9)
    shown = short_time if at[-1] < 60 else clock_time  # one format for the whole axis
    bars = [
        Bar(label=f"{shown(low)} to {shown(high)}", value=float(rate), shown=short(float(rate)),
            tick=shown(low) if i % max(1, len(rates) // 5) == 0 else "")
        for i, (low, high, rate) in enumerate(zip(edges, edges[1:], rates, strict=False))
    ]  # fmt: skip
    about = "Tokens that the last run generated or scored."
    return Chart(name="throughput", title="Throughput", about=about, x="time", y="tokens per second", bars=bars)


def labels_of_rows(aggregate: Aggregate) -> dict[str, list[tuple[str, int]]]:
    """Column -> its values and their rows, the most frequent first; only columns whose values repeat."""
    return {
        redact(name): sorted(((redact(value), rows) for value, rows in own.items()), key=lambda pair: -pair[1])
        for name, own in aggregate.labels.items()
        if own and sum(own.values()) >= _REPEATS * len(own)
    }
