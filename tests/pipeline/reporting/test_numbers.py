"""Numbers as text."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.reporting.numbers import NOTHING, clock, count, figure, nice_ticks, percent, short


@given(st.floats(1e-9, 1e15), st.booleans())
def test_ticks_reach_the_largest_value_and_are_few(most: float, whole: bool) -> None:
    ticks = nice_ticks(most, whole=whole)
    assert ticks[0] == 0
    assert ticks[-1] >= most * (1 - 1e-6)
    assert ticks[-1] <= max(most * 2, 1.0 if whole else 0)
    assert 2 <= len(ticks) <= 7
    assert not whole or all(tick == int(tick) for tick in ticks)


@pytest.mark.parametrize(("value", "expected"), [(None, NOTHING), (math.nan, NOTHING), (0, "0"), (0.04678, "0.0468"),
                                                 (4.083, "4.08"), (1234.5, "1,234"), (99.96, "100.0")])  # fmt: skip
def test_figures_have_three_digits(value: float | None, expected: str) -> None:
    assert figure(value) == expected


def test_shares_are_never_rounded_to_nothing_or_all() -> None:
    assert [percent(v) for v in (0, 1e-6, 0.5, 0.99999, 1)] == ["0%", "< 0.1%", "50%", "> 99.9%", "100%"]


def test_counts_and_times() -> None:
    assert [count(1234567), short(1234567), short(950), short(0.25)] == ["1,234,567", "1.23M", "950", "0.25"]
    assert [clock(s) for s in (1.23, 45.2, 185, 7800)] == ["1.2 s", "45 s", "3:05 min", "2:10:00 h"]
