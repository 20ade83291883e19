"""Numbers as text."""

from __future__ import annotations

import math

import pytest

from pipeline.reporting.chart import NOTHING, count, figure, percent, short


@pytest.mark.parametrize(("value", "expected"), [(None, NOTHING), (math.nan, NOTHING), (0, "0"), (0.04678, "0.0468"),
                                                 (4.083, "4.08"), (1234.5, "1,234"), (99.96, "100.0")])  # fmt: skip
def test_figures_have_three_digits(value: float | None, expected: str) -> None:
    assert figure(value) == expected


def test_shares_are_never_rounded_to_nothing_or_all() -> None:
    assert [percent(v) for v in (0, 1e-6, 0.5, 0.99999, 1)] == ["0%", "< 0.1%", "50%", "> 99.9%", "100%"]


def test_counts() -> None:
    assert [count(1234567), short(1234567), short(950), short(0.25)] == ["1,234,567", "1.23M", "950", "0.25"]
