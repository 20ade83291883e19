"""Two outputs side by side: settings that differ, speed, and quality."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from pipeline.codec import redact
from pipeline.reporting.chart import NOTHING, figure, percent
from pipeline.reporting.facts import Facts
from pipeline.reporting.page import labels_of_rows, tiles_of

_SPEED = ("Tokens per forward", "Prefix cacheability", "Tokens per second", "Gain", "Cost", "CPU time", "GPU time")
_CHARACTERS = 48
"""Of a value in the table."""


class Line(NamedTuple):
    """A setting or a figure of both outputs, as text; a dash where an output has none."""

    name: str
    first: str
    second: str


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Two outputs side by side.

    ``settings`` are those that differ, ``speed`` has figures of the last runs and of all forwards, ``quality`` rows,
    failures, lengths, certainty, how rows ended, and shares of labels.
    """

    outputs: tuple[str, str]
    settings: tuple[Line, ...]
    speed: tuple[Line, ...]
    quality: tuple[Line, ...]

    def describe(self) -> str:
        """Write it as a table of text in three columns; long values are cut."""
        parts = {"Settings that differ": self.settings, "Speed": self.speed, "Quality": self.quality}
        table = [("", *self.outputs)]
        for title, lines in parts.items():
            table += [(title, "", ""), *((f"  {own.name}", _cut(own.first), _cut(own.second)) for own in lines)]
        wide = [max(map(len, column)) for column in zip(*table, strict=True)]
        return "\n".join("  ".join(map(str.ljust, line, wide)).rstrip() for line in table)


def _cut(text: str) -> str:
    return textwrap.shorten(text, _CHARACTERS, placeholder="\N{HORIZONTAL ELLIPSIS}")


def compared(first: Facts, second: Facts) -> Comparison:
    """Put the facts of two outputs side by side."""
    settings, other = _lines(first.settings, second.settings), tuple(_lines(_figures(first), _figures(second)))
    return Comparison(
        outputs=(first.output, second.output),
        settings=tuple(line for line in settings if line.first != line.second),
        speed=tuple(line for line in other if line.name in _SPEED),
        quality=tuple(line for line in other if line.name not in _SPEED),
    )


def _lines(first: Mapping[str, str], second: Mapping[str, str]) -> Iterator[Line]:
    for name in dict.fromkeys((*first, *second)):
        yield Line(redact(name), *(redact(own.get(name, NOTHING)) for own in (first, second)))


def _figures(facts: Facts) -> dict[str, str]:
    rows = facts.aggregate
    return {
        **{name: value for name, value, _ in tiles_of(facts)},
        "Mean entropy (nats)": figure(rows.histograms["mean_entropy"].mean),
        "Mean output length": figure(rows.histograms["completion_tokens"].mean),
        **{f"Ended: {name}": percent(own / rows.rows) for name, own in sorted(rows.finish_reasons.items())},
        **{f"{name}: {value}": percent(own / sum(count for _, count in labels))
           for name, labels in labels_of_rows(rows).items() for value, own in labels},
    }  # fmt: skip
