"""The sections of the page, from the facts."""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.codec import redact
from pipeline.report.charts import Bar, Chart, Point, Series, bars, histogram, lines, ranked, scatter
from pipeline.report.facts import Facts, Session
from pipeline.report.html import Safe, el, join
from pipeline.report.numbers import clock, count, figure, percent, short
from pipeline.report.samples import SampledRow
from pipeline.report.timeline import Moment

__all__ = ["decoding", "header", "lengths", "outcome", "over_time", "rows_table", "tiles", "trust"]

_MOST_COMMITS = 40


def section(name: str, title: str, about: str, *children: str | None) -> Safe:
    """A section with a heading that can be linked to."""
    head = join(el("h2", title, id=f"{name}-h"), el("p", about, class_="lead") if about else None)
    return el("section", head, *children, id=name, aria_labelledby=f"{name}-h")


def header(facts: Facts) -> Safe:
    """What the report is about, and whether all is done."""
    kind = "good" if facts.complete and not facts.totals.failed_rows else "warn"
    return el(
        "header",
        el("div", el("p", "WeDLM Batch · report", class_="brand"),
           el("button", "Theme", id="theme", type="button", class_="plain", aria_label="switch between light and dark"),
           class_="bar-top"),
        el("h1", facts.output),
        el("p", el("span", facts.state, class_=f"badge {kind}"), f" {facts.model}", class_="sub"),
    )  # fmt: skip


def tiles(facts: Facts) -> Safe:
    """The numbers that people look for first."""
    totals, last = facts.totals, facts.sessions[-1] if facts.sessions else None
    ok = totals.rows - totals.failed_rows
    shown = [
        _tile("Rows ok", count(ok), f"of {count(facts.planned_rows or totals.rows)}"),
        _tile("Rows failed", count(totals.failed_rows), _share_of(totals.failed_rows, totals.rows),
              kind="bad" if totals.failed_rows else ""),
        _tile("Generated tokens", short(totals.completion_tokens), f"{count(totals.prompt_tokens)} of prompts"),
        _tile("Tokens per forward", figure(totals.tokens_per_forward), "1 is autoregressive"),
        _tile("Prefix cacheability", figure(totals.prefix_cacheability), "output tokens per computed row"),
    ]  # fmt: skip
    if last is not None and last.tokens and last.seconds:
        rate = generating_rate(last)
        shown.append(_tile("Tokens per second", short(rate), f"last run: {clock(last.seconds)} in all"))
    cost = _cost(facts.sessions)
    if cost is not None:
        shown.append(cost)
    return el("section", el("dl", *shown, class_="tiles"), aria_label="summary")


def _share_of(part: int, whole: int) -> str:
    return f"{percent(part / whole)} of the rows" if whole else "there are no rows"


def _tile(name: str, value: str, about: str, *, kind: str = "") -> Safe:
    return el("div", el("dt", name), el("dd", value), el("dd", about, class_="about"), class_=f"tile {kind}".strip())


def generating_rate(session: Session) -> float:
    """Tokens per second from the first commit's unit on, so far as the time line tells; else over all of the session."""
    ready = next((m.at for m in session.moments if m.ready), None)
    end = next((m.at for m in session.moments if m.tokens >= session.tokens), session.seconds)
    spent = session.seconds if ready is None or end <= ready else end - ready
    return session.tokens / spent if spent else 0.0


def _cost(sessions: Sequence[Session]) -> Safe | None:
    priced = [s for s in sessions if s.cost is not None]
    if priced:
        total = sum(s.cost or 0.0 for s in priced)
        tokens = sum(s.tokens for s in priced)
        each = f"{figure(total / tokens * 1e6)} per million tokens" if tokens else "nothing generated"
        return _tile("Cost", figure(total), each)
    used = sum(s.used.priced for s in sessions)
    if used:
        return _tile(f"{sessions[-1].used.unit} time", clock(used), "reserved by actors; no price was given")
    return None


def over_time(facts: Facts) -> Safe | None:
    """Throughput, actors and load of the last run that generated."""
    session = next((s for s in reversed(facts.sessions) if s.tokens and len(s.moments) > 2), None)
    if session is None:
        return None
    moments = session.moments
    rates = [Point(x=m.at, y=_rate(a, m, "tokens")) for a, m in _pairs(moments)]
    engine = [Point(x=m.at, y=_rate(a, m, "engine_tokens")) for a, m in _pairs(moments)]
    series = [Series(name="committed tokens/s", points=rates, kind="c1", area=True, shown=short)]
    if any(p.y for p in engine):
        series = [Series(name="generated tokens/s", points=engine, kind="c2", shown=short), *series]
    throughput = lines(
        Chart(name="throughput", title="Throughput", x="time", y="tokens per second",
              about="Tokens that engines generated, and that were committed, each second. A unit's tokens are committed "
                    "when its last row is done, so the second line comes in steps."),
        series, x_shown=clock,
    )  # fmt: skip
    actors = lines(
        Chart(name="actors", title="Actors", x="time", y="actors",
              about="Actors that took units, and those that were asked for."),
        [Series(name="wanted", points=[Point(x=m.at, y=m.wanted) for m in moments], kind="c3", steps=True, shown=short),
         Series(name="ready", points=[Point(x=m.at, y=m.ready) for m in moments], kind="c1", steps=True, area=True,
                shown=short)],
        x_shown=clock,
    )  # fmt: skip
    parts = [throughput, actors]
    if any(m.slots for m in moments):
        parts.append(lines(
            Chart(name="fill", title="Load", x="time", y="share in use",
                  about="Engine slots that held a sequence, and KV pages in use."),
            [Series(name="slots", points=[Point(x=m.at, y=m.running / m.slots) for m in moments if m.slots], kind="c1",
                    shown=percent),
             Series(name="KV pages", points=[Point(x=m.at, y=m.kv_used / m.kv_pages) for m in moments if m.kv_pages],
                    kind="c2", shown=percent)],
            x_shown=clock,
        ))  # fmt: skip
    about = f"The last run that generated rows: {count(session.rows)} rows in {clock(session.seconds)}."
    return section("time", "Over time", about, *parts)


def _pairs(moments: Sequence[Moment]) -> list[tuple[Moment, Moment]]:
    """Each moment with one before it, far enough for a rate that is not noise."""
    apart = max(1.0, (moments[-1].at - moments[0].at) / 60)
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


def decoding(facts: Facts) -> Safe:
    """How the tokens came: per forward, per row, by commit, and what the windows did under load."""
    found = facts.aggregate
    shown = found.histograms
    parts = [
        histogram(Chart(name="tpf", title="Tokens per forward", x="tokens per forward", y="rows",
                        about="Each row's generated tokens over its decode forwards. Autoregressive decoding has 1."),
                  shown["tokens_per_forward"]),
        _commits(found.commits),
        histogram(Chart(name="pcache", title="Prefix cacheability", x="tokens per row", y="rows",
                        about="p_cache: generated tokens over token rows forwarded after the prompt. What is missing to "
                              "1 was computed for drafts and masks that were not kept."),
                  shown["prefix_cacheability"]),
        histogram(Chart(name="window", title="Window", x="rows per forward", y="rows",
                        about="Mean token rows of a row's sequence in a decode forward: its head, drafts and masks."),
                  shown["window_mean"]),
    ]  # fmt: skip
    if shown["draft_agreement"].count:
        parts.append(
            histogram(Chart(name="agreement", title="Drafts that were right", x="share", y="rows",
                            about="Share of a row's verified drafts that the next-token head agreed with."),
                      shown["draft_agreement"], shown=percent)
        )  # fmt: skip
    parts.append(_masks(facts.sessions))
    if len(found.strategies) > 1:
        parts.append(_strategies(facts))
    about = "WeDLM fills masks ahead of the text and commits several tokens in one forward."
    return section("decoding", "Decoding", about, el("div", *parts, class_="grid"))


def _commits(commits: dict[int, int] | object) -> Safe:
    counts = dict(commits) if isinstance(commits, dict) else {}
    chart = Chart(name="commits", title="Commit sizes", x="tokens committed by a forward", y="decode forwards",
                  about="How many tokens one decode forward added to its row.")  # fmt: skip
    total, last = sum(counts.values()), max(counts, default=0)
    step = max(1, -(-(last + 1) // _MOST_COMMITS))
    given = []
    for first in range(0, last + 1, step):
        own = sum(counts.get(size, 0) for size in range(first, first + step))
        label = str(first) if step == 1 else f"{first} to {first + step - 1}"
        share = percent(own / total) if total else "–"
        tick = str(first) if first // step % max(1, (last // step) // 8 + 1) == 0 else None
        given.append(Bar(label=label, value=own, tick=tick, tip=f"{label} tokens: {count(own)} forwards ({share})"))
    mean = sum(size * own for size, own in counts.items()) / total if total else None
    place = None if mean is None else mean / step + 0.5
    return bars(chart, given, total="decode forwards", mark=place, marked=f"mean {figure(mean)}")


def _masks(sessions: Sequence[Session]) -> Safe:
    """Masks for each sequence against how many sequences ran, moment by moment."""
    chart = Chart(name="masks", title="Masks against load", x="sequences running", y="masks for each sequence",
                  about="With few sequences rows of a forward are nearly free, so windows are wide; under load they "
                        "shrink.")  # fmt: skip
    points, rows = [], []
    for session in sessions[-8:]:
        pairs = _pairs(session.moments) if len(session.moments) > 1 else []
        for before, after in pairs:
            forwards = after.engine_forwards - before.engine_forwards
            if forwards <= 0:
                continue
            masks = max(0.0, (after.masks - before.masks) / forwards)
            running = (before.running + after.running) / 2
            tip = f"{figure(running)} sequences: {figure(masks)} masks each"
            points.append(Point(x=running, y=masks, tip=tip, size=0.2))
            rows.append((clock(after.at), figure(running), figure(masks)))
    points, step = points[:: max(1, len(points) // 150)], max(1, len(rows) // 24)
    return scatter(chart, points, heads=("time", "sequences", "masks each"), rows=rows[::step])


def _strategies(facts: Facts) -> Safe:
    head = el("tr", *(el("th", name, scope="col") for name in ("strategy", "generations", "tokens", "per forward")))
    rows = [
        el("tr", el("th", name, scope="row"), el("td", count(own)), el("td", count(tokens)),
           el("td", figure(tokens / forwards if forwards else None)))
        for name, (own, tokens, forwards) in facts.aggregate.strategies.items()
    ]  # fmt: skip
    caption = el("figcaption", el("strong", "By strategy"), el("span", "Rows may choose their own.", class_="about"))
    return el("figure", caption, el("div", el("table", el("thead", head), el("tbody", *rows)), class_="scroll"),
              class_="chart")  # fmt: skip


def trust(facts: Facts) -> Safe:
    """What the model made of its own tokens."""
    shown = facts.aggregate.histograms
    parts = [
        histogram(Chart(name="entropy", title="Mean entropy of a row", x="nats", y="rows",
                        about="Mean entropy of the distributions that a row's tokens were taken from: 0 is no doubt."),
                  shown["mean_entropy"]),
        histogram(Chart(name="max-entropy", title="Highest entropy of a row", x="nats", y="rows",
                        about="The most uncertain token of each row."),
                  shown["max_entropy"]),
    ]  # fmt: skip
    if shown["surprisal"].count:
        parts.append(histogram(
            Chart(name="surprisal", title="Mean negative log-probability", x="nats per token", y="rows",
                  about="Under the next-token head, of the tokens of a row. High rows are worth a second look."),
            shown["surprisal"]))  # fmt: skip
    if shown["token_surprisal"].count:
        parts.append(histogram(
            Chart(name="token-surprisal", title="Negative log-probability of a token", x="nats", y="tokens",
                  about="Over every token of the output."),
            shown["token_surprisal"], of="tokens"))  # fmt: skip
    about = "Sort the output by these columns to find the rows that the model was least sure of."
    return section("trust", "Certainty", about, el("div", *parts, class_="grid"))


def lengths(facts: Facts) -> Safe:
    """How long prompts and outputs were, and how long rows took."""
    shown = facts.aggregate.histograms
    parts = [
        histogram(Chart(name="prompts", title="Prompt length", x="tokens", y="rows", about="Tokens of each prompt."),
                  shown["prompt_tokens"]),
        histogram(Chart(name="outputs", title="Output length", x="tokens", y="rows", about="Tokens of each generation."),
                  shown["completion_tokens"]),
        histogram(Chart(name="run-seconds", title="Time in the engine", x="seconds", y="rows",
                        about="From a row's first forward to its last token; the wait before it is not in it."),
                  shown["run_seconds"]),
    ]  # fmt: skip
    return section("lengths", "Lengths and times", "", el("div", *parts, class_="grid"))


def outcome(facts: Facts) -> Safe:
    """How rows ended, and why some failed."""
    found, totals = facts.aggregate, facts.totals
    reasons = [
        Bar(label=_REASONS.get(name, name), value=own, tip=f"{count(own)} ({percent(own / found.rows)})")
        for name, own in sorted(found.finish_reasons.items(), key=lambda item: -item[1])
    ]
    ends = ranked(Chart(name="finish", title="Finish reasons", about="How each output row ended."), reasons)
    parts = [ends]
    if totals.failures:
        worst = sorted(totals.failures.items(), key=lambda item: -item[1])
        classes = [Bar(label=name, value=own, tip=f"{count(own)} ({percent(own / totals.failed_rows)})")
                   for name, own in worst]  # fmt: skip
        parts.append(ranked(Chart(name="failures", title="Failures by class",
                                  about="Failed input rows by the class of their error."), classes))  # fmt: skip
    children: list[str | None] = [el("div", *parts, class_="grid")]
    if totals.failures:
        rows = [
            el("tr", el("th", el("code", name), scope="row"), el("td", count(totals.failures[name]), class_="number"),
               el("td", redact(totals.examples.get(name, "–")), class_="message"))
            for name, _ in sorted(totals.failures.items(), key=lambda item: -item[1])
        ]  # fmt: skip
        head = el("tr", *(el("th", name, scope="col") for name in ("Class", "Rows", "One of the messages")))
        table = el("table", el("thead", head), el("tbody", *rows))
        children.append(el("div", table, class_="scroll wide-table", tabindex=0))
        children.append(el("p", "All of them: ", el("code", 'pipeline.read(output, table="dead_letters")'),
                           ". Again, after a correction: ", el("code", "--retry-failed"), ".", class_="hint"))  # fmt: skip
    return section("outcome", "How rows ended", "", *children)


_REASONS = {"stop": "stop: ended by itself", "length": "length: cut at max_tokens", "error": "error: failed"}


def rows_table(facts: Facts) -> Safe | None:
    """Sampled rows with their text."""
    found = facts.aggregate
    if not found.samples and not found.failures:
        return None
    shown = [_row(row, facts) for row in found.samples] + [_row(row, facts) for row in found.failures]
    about = (
        f"{len(found.samples)} rows that succeeded and {len(found.failures)} that failed, chosen by a hash of their ids: "
        "the same ones however many actors there were."
    )
    return section("rows", "Rows", about, el("div", *shown, class_="rows"))


def _row(row: SampledRow, facts: Facts) -> Safe:
    failed = row.error is not None
    name = row.row_id if not row.sample_index else f"{row.row_id} · sample {row.sample_index}"
    facts_of = [row.finish_reason]
    if not failed:
        facts_of += [f"{row.completion_tokens} tokens", f"{figure(row.stats.get('tokens_per_forward'))} per forward"]
        if row.stats.get("mean_entropy") is not None:
            facts_of.append(f"entropy {figure(row.stats['mean_entropy'])}")
    inputs = dict(row.inputs)
    first = facts.prompt_column if facts.prompt_column in inputs else next(iter(inputs), None)
    prompt = None if first is None else inputs.pop(first)
    answer = redact(row.error or "") if failed else redact(row.text or "")
    body = [
        el("div", el("h4", first or "prompt"), el("pre", redact(prompt), dir="auto")) if prompt is not None else None,
        el("div", el("h4", "error" if failed else "text"), el("pre", answer or "(empty)", dir="auto"),
           el("p", "The output has more of it.", class_="hint") if row.cut else None),
    ]  # fmt: skip
    more = [el("tr", el("th", redact(key), scope="row"), el("td", redact(value))) for key, value in inputs.items()]
    if not failed:
        more += [el("tr", el("th", key, scope="row"), el("td", figure(value))) for key, value in row.stats.items()]
    details = el("details", el("summary", "Columns and statistics"),
                 el("div", el("table", el("tbody", *more)), class_="scroll", tabindex=0)) if more else None  # fmt: skip
    head = el("h3", el("span", redact(name), class_="row-id"), el("span", " · ".join(facts_of), class_="row-facts"))
    return el("article", head, el("div", *body, class_="pair"), details, class_="row failed" if failed else "row")


def runs(facts: Facts) -> Safe:
    """The runs that wrote the output, and its settings."""
    children: list[str | None] = []
    if facts.sessions:
        names = ("Run", "Began (UTC)", "Took", "Rows", "Tokens", "Reserved", "Cost", "Ended")
        head = el("tr", *(el("th", name, scope="col") for name in names))
        rows = [el("tr", *(el("td", cell) for cell in _run_cells(s))) for s in facts.sessions]
        table = el("table", el("thead", head), el("tbody", *rows))
        children.append(el("div", table, class_="scroll wide-table", tabindex=0))
    pairs = [el("tr", el("th", name, scope="row"), el("td", el("code", redact(value))))
             for name, value in facts.settings.items()]  # fmt: skip
    table = el("table", el("tbody", *pairs))
    children.append(el("details", el("summary", "Settings that change the output"), el("div", table, class_="scroll")))
    return section("runs", "Runs and settings", "", *children)


def _run_cells(session: Session) -> tuple[str, ...]:
    import datetime

    began = datetime.datetime.fromtimestamp(session.began, datetime.UTC).strftime("%Y-%m-%d %H:%M:%S")
    used = f"{session.used.priced:.0f} {session.used.unit}-s" if session.used.priced else "–"
    return (str(session.epoch), began, clock(session.seconds), count(session.rows), count(session.tokens), used,
            figure(session.cost), redact(session.outcome))  # fmt: skip
