"""Bars show every value of a histogram, whatever its size."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.reporting.bars import Bar, histogram, ranked
from pipeline.reporting.chart import Chart
from pipeline.reporting.histogram import SCALES, Histogram

CHART = Chart(name="c", title="Title", about="About.", x="x", y="y")


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(sorted(SCALES)), st.lists(st.floats(0, 1e7), min_size=1, max_size=50))
def test_the_table_of_a_histogram_counts_each_value_once(name: str, values: list[float]) -> None:
    scale = SCALES[name]
    given_ = np.array([round(v) for v in values] if scale.whole else values, dtype=float)
    drawn = histogram(CHART, Histogram.of(scale, given_))
    own = [int(text.replace(",", "")) for text in re.findall(r"<td>([\d,]+) \(", drawn)]
    assert sum(own) == len(values)
    assert drawn.count('<rect class="bar"') == drawn.count("data-tip=") <= 50
    numbers = [float(n) for n in re.findall(r' (?:x|y|width|height)="([-\d.]+)"', drawn)]
    assert all(-1 <= number <= 400 for number in numbers), "nothing leaves the drawing"


def test_no_values_give_a_chart_that_says_so() -> None:
    assert "Nothing to show" in histogram(CHART, Histogram.empty(SCALES["nats"]))
    assert "Nothing to show" in ranked(CHART, [Bar(label="a", value=0, tip="")])


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_one_value_is_drawn_with_title_description_and_table(value: float) -> None:
    drawn = histogram(CHART, Histogram.of(SCALES["share"], np.array([value])))
    assert '<title id="c-plot-t">Title</title><desc id="c-plot-d">About.</desc>' in drawn
    assert 'role="img"' in drawn
    assert '<th scope="col">rows</th>' in drawn
