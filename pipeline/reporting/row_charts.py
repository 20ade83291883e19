"""Charts over the rows, from their aggregate: how they were decoded, how certain the model was, how long they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pipeline.codec import tokens_per_forward
from pipeline.reporting.bars import Bar, bars, histogram, mean_of
from pipeline.reporting.chart import Chart
from pipeline.reporting.drafts import Drafts, drafts_by_source
from pipeline.reporting.facts import Facts
from pipeline.reporting.html import Safe, el
from pipeline.reporting.numbers import count, figure, percent
from pipeline.reporting.parts import grid, section, table
from pipeline.reporting.run_charts import masks_against_load

__all__ = ["certainty", "decoding", "lengths"]

_MOST_COMMITS = 40
_LABELS = 8


def decoding(facts: Facts) -> Safe:
    """How the tokens came: per forward, per row, by commit, and what the windows did under load."""
    shown = facts.aggregate.histograms
    forwards = Chart(name="tpf", title="Tokens per forward", x="tokens per forward", y="rows",
                     about="Generated tokens over decode forwards. Autoregressive decoding has 1.")  # fmt: skip
    cacheability = Chart(name="pcache", title="Prefix cacheability", x="output tokens per computed row", y="rows",
                         about="p_cache. What is missing to 1 are drafts and masks that were not kept.")  # fmt: skip
    window = Chart(name="window", title="Window", x="rows per forward", y="rows",
                   about="Mean rows of a sequence in a forward: its head, drafts and masks.")  # fmt: skip
    agreement = Chart(name="agreement", title="Drafts that were right", x="of the drafts", y="rows",
                      about="Share of each row's verified drafts that the next-token head agreed with.")  # fmt: skip
    charts = [
        histogram(forwards, shown["tokens_per_forward"]),
        _commits(facts.aggregate.commits),
        histogram(cacheability, shown["prefix_cacheability"]),
        histogram(window, shown["window_mean"]),
        histogram(agreement, shown["draft_agreement"], shown=percent) if shown["draft_agreement"].count else None,
        masks_against_load(facts.sessions),
        _strategies(facts.aggregate.strategies) if len(facts.aggregate.strategies) > 1 else None,
        _drafts(drafts_by_source(facts.totals.drafts, facts.totals.completion_tokens)),
    ]
    about = "WeDLM fills masks ahead of the text, and commits several tokens in one forward."
    return section("decoding", "Decoding", about, grid(*charts))


def _commits(commits: Mapping[int, int]) -> Safe:
    chart = Chart(name="commits", title="Commit sizes", x="tokens that a forward committed", y="decode forwards",
                  about="How many tokens one decode forward added to its row.")  # fmt: skip
    total, last = sum(commits.values()), max(commits, default=0)
    step = max(1, -(-(last + 1) // _MOST_COMMITS))
    given = []
    for first in range(0, last + 1, step):
        own = sum(commits.get(size, 0) for size in range(first, first + step))
        label = str(first) if step == 1 else f"{first} to {first + step - 1}"
        share = percent(own / total if total else None)
        every = (last // step) // _LABELS + 1
        given.append(
            Bar(label=label, value=own, tip=f"{label} tokens: {count(own)} forwards ({share})",
                shown=f"{count(own)} ({share})", tick=str(first) if first // step % every == 0 else None)
        )  # fmt: skip
    mean = sum(size * own for size, own in commits.items()) / total if total else None
    place = None if mean is None else mean / step + 0.5
    return bars(chart, given, heading="decode forwards", mark=place, marked=mean_of(figure(mean), total), centred=True)


def _drafts(found: Sequence[Drafts]) -> Safe | None:
    if not found:
        return None
    about = el("span", "Accepted drafts became output. Other output tokens had no draft.", class_="about")
    rows = [
        (own.source, count(own.offered), count(own.accepted), percent(own.acceptance), percent(own.share))
        for own in found
    ]
    shown = table("drafts by source", ("Source", "Offered", "Accepted", "Of the offered", "Of the output"), rows)
    return el("figure", el("figcaption", el("strong", "Drafts by source"), about), shown, class_="chart", id="drafts")


def _strategies(strategies: Mapping[str, tuple[int, int, int]]) -> Safe:
    head = el("figcaption", el("strong", "By strategy"), el("span", "Rows may choose their own.", class_="about"))
    rows = [
        (
            name,
            count(own),
            count(tokens),
            count(forwards),
            figure(tokens_per_forward(tokens, forwards) if forwards else None),
        )
        for name, (own, tokens, forwards) in strategies.items()
    ]
    shown = table("by strategy", ("Strategy", "Generations", "Tokens", "Forwards", "Per forward"), rows)
    return el("figure", head, shown, class_="chart", id="strategies")


def certainty(facts: Facts) -> Safe:
    """What the model made of its own tokens."""
    shown = facts.aggregate.histograms
    charts = [
        histogram(
            Chart(name="entropy", title="Mean entropy of a row", x="nats", y="rows",
                  about="Of the distributions that its tokens were taken from. 0 is no doubt."),
            shown["mean_entropy"]),
        histogram(
            Chart(name="max-entropy", title="Highest entropy of a row", x="nats", y="rows",
                  about="Its most uncertain token."),
            shown["max_entropy"]),
        histogram(
            Chart(name="surprisal", title="Negative log-probability of a row", x="nats per token", y="rows",
                  about="Mean over its tokens, under the next-token head."),
            shown["surprisal"]) if shown["surprisal"].count else None,
        histogram(
            Chart(name="token-surprisal", title="Negative log-probability of a token", x="nats", y="tokens",
                  about="Of every token of the output, under the next-token head."),
            shown["token_surprisal"], of="tokens") if shown["token_surprisal"].count else None,
    ]  # fmt: skip
    about = "Rows at the right end of these are worth a second look: they are in the output's stats column."
    return section("certainty", "Certainty", about, grid(*charts))


def lengths(facts: Facts) -> Safe:
    """How long prompts and outputs were, and how long rows took."""
    shown = facts.aggregate.histograms
    charts = [
        histogram(Chart(name="prompts", title="Prompt length", x="tokens", y="rows", about="Of the prompts."),
                  shown["prompt_tokens"]),
        histogram(Chart(name="outputs", title="Output length", x="tokens", y="rows", about="Generated."),
                  shown["completion_tokens"]),
        histogram(Chart(name="run-seconds", title="Time in the engine", x="seconds", y="rows",
                        about="From a row's first forward to its last token."),
                  shown["run_seconds"]),
    ]  # fmt: skip
    return section("lengths", "Lengths and times", "", grid(*charts))
