"""How rows ended, and some of them with their text."""

from __future__ import annotations

from pipeline.codec import redact
from pipeline.fingerprint import retry_advice
from pipeline.parsing import describe_unparsed
from pipeline.reporting.bars import Bar, ranked
from pipeline.reporting.chart import Chart
from pipeline.reporting.facts import Facts
from pipeline.reporting.html import Safe, el
from pipeline.reporting.numbers import NOTHING, count, figure, percent
from pipeline.reporting.parts import grid, section, table
from pipeline.reporting.samples import SampledRow

__all__ = ["outcome", "sampled"]

_REASONS = {"stop": "stop: ended by itself", "length": "length: cut at max_tokens", "error": "error: failed"}


def outcome(facts: Facts) -> Safe:
    """How rows ended, and why some failed."""
    found, totals = facts.aggregate, facts.totals
    reasons = [
        Bar(label=_REASONS.get(name, name), value=own, tip=f"{count(own)} ({percent(own / found.rows)})")
        for name, own in sorted(found.finish_reasons.items(), key=lambda item: -item[1])
    ]
    charts = [ranked(Chart(name="finish", title="Finish reasons", about="How each output row ended."), reasons)]
    unread = el("p", f"Not parsed: {describe_unparsed(totals.unparsed, totals.samples)}.", class_="hint")
    notes = [unread] if totals.unparsed else []
    if not totals.failures:
        return section("outcome", "How rows ended", "", grid(*charts), *notes)
    causes = totals.failed_by_cause
    bars = [
        Bar(label=redact(own.text), value=own.rows, tip=f"{count(own.rows)} ({percent(own.rows / totals.failed_rows)})")
        for own in causes
    ]
    about = "Failed input rows, by the rule that they break."
    charts.append(ranked(Chart(name="failures", title="Failures by cause", about=about), bars))
    rows = [(count(own.rows), *(redact(text or NOTHING) for text in (own.text, own.remedy, own.example)))
            for own in causes]  # fmt: skip
    examples = table("failures by cause", ("Rows", "Cause", "Remedy", "Example"), rows, wide=True)
    where = el("code", 'pipeline.read(output, table="dead_letters")')
    hint = el("p", "All of them: ", where, f". {retry_advice(scheduled=facts.scheduled)}", class_="hint")
    return section("outcome", "How rows ended", "", grid(*charts), *notes, examples, hint)


def sampled(facts: Facts) -> Safe | None:
    """Sampled rows with their text."""
    found = facts.aggregate
    if not found.samples and not found.failures:
        return None
    about = "Chosen by a hash of their ids, so they are the same ones however many actors there were."
    shown = [_row(row, facts) for row in found.samples]
    failed = [_row(row, facts) for row in found.failures]
    heads = (
        [el("h3", f"{len(shown)} of {count(found.generations)} rows that succeeded", class_="group")] if shown else []
    )
    bad = [el("h3", f"{len(failed)} of {count(found.failed)} rows that failed", class_="group")] if failed else []
    return section("rows", "Rows", about, el("div", *heads, *shown, *bad, *failed, class_="rows"))


def _row(row: SampledRow, facts: Facts) -> Safe:
    inputs = dict(row.inputs)
    first = facts.prompt_column if facts.prompt_column in inputs else next(iter(inputs), None)
    prompt = None if first is None else inputs.pop(first)
    head = el("h4", el("span", redact(_name(row)), class_="row-id"), el("span", _described(row), class_="row-facts"))
    failed = row.error is not None
    answer = redact((row.error if failed else row.text) or "")
    pair = [
        _text(redact(first or ""), redact(prompt)) if prompt is not None else None,
        _text("error" if failed else "text", answer or "(empty)", cut=row.cut),
    ]
    more = [(redact(name), redact(value)) for name, value in inputs.items()]
    more += [] if failed else [(name, figure(value)) for name, value in row.stats.items()]
    label = "input columns" if failed else "input columns and statistics"
    details = el("details", el("summary", label.capitalize()), table(label, (), more)) if more else None
    return el("article", head, el("div", *pair, class_="pair"), details, class_="row failed" if failed else "row")


def _name(row: SampledRow) -> str:
    return f"{row.row_id}, sample {row.sample_index}" if row.sample_index else row.row_id


def _described(row: SampledRow) -> str:
    if row.error is not None:
        return "failed"
    parts = [row.finish_reason, f"{count(row.completion_tokens or 0)} tokens"]
    if row.stats.get("decode_forwards"):
        parts.append(f"{figure(row.stats.get('tokens_per_forward'))} per forward")
    if row.stats.get("mean_entropy") is not None:
        parts.append(f"entropy {figure(row.stats['mean_entropy'])}")
    return " \N{MIDDLE DOT} ".join(parts)


def _text(name: str, text: str, *, cut: bool = False) -> Safe:
    more = el("p", "The output has more of it.", class_="hint") if cut else None
    return el("div", el("h5", name), el("pre", text, dir="auto", tabindex=0), more)
