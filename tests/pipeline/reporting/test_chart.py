"""Bars show every value of a histogram, whatever its size."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.reporting.chart import Chart, histogram_chart
from pipeline.reporting.histogram import SCALES, Histogram


def drawn(found: Histogram) -> Chart:
    return histogram_chart("c", "Title", "About.", "x", found)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(sorted(SCALES)), st.lists(st.floats(0, 1e7), min_size=1, max_size=50))
def test_the_bars_of_a_histogram_count_each_value_once_and_stay_in_the_drawing(name: str, values: list[float]) -> None:
    chart = drawn(Histogram.of(name, np.array(values)))
    assert sum(bar.value for bar in chart.bars) == len(values)
    assert [int(bar.shown.split(" ")[0].replace(",", "")) for bar in chart.bars] == [bar.value for bar in chart.bars]
    assert len(chart.bars) <= 48
    for bar, x, y, wide, high in chart.drawn:
        assert chart.left <= x
        assert x + wide <= chart.right + 0.01
        assert chart.top - 0.01 <= y
        assert y + high <= chart.bottom + 0.01
        assert (high > 0) == (bar.value > 0), "a few values among many are seen"


def test_ranges_name_the_values_of_their_bins() -> None:
    lengths = drawn(Histogram.of("tokens", np.array([0.0, 3.0, 2.0**21])))
    labels = [bar.label for bar in lengths.bars if bar.value]
    assert labels[0].startswith("\N{EN DASH} to ")
    assert labels[-1].endswith("k to \N{EN DASH}")
    assert [bar.label for bar in drawn(Histogram.of("tokens", np.array([3.0]))).bars] == ["3 to 4"]
    assert [bar.label for bar in drawn(Histogram.of("rate", np.array([1.2]))).bars] == ["1 to 1.5"]


def test_no_values_give_no_bars() -> None:
    assert not drawn(Histogram.empty("nats")).bars
