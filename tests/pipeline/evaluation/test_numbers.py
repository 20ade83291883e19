"""Numbers are found as people write them, and equal exactly when their values are."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.evaluation.numbers import as_number, final_number, same_number

WAYS = (
    "{n}",
    "{n:,}",
    "${n}",
    "$ {n:,}",
    "{n}.",
    "{n}.0",
    "{n:,}.00",
    " {n} ",
    "**{n}**",
    "{n}%",
    "\\${n}",
    "+{n}",
    "{n}/1",
)


@given(st.integers(0, 10**12), st.sampled_from(WAYS), st.sampled_from(WAYS))
@settings(max_examples=200, deadline=None)
def test_the_same_number_in_any_writing_is_the_same(n: int, one: str, other: str) -> None:
    assert same_number(one.format(n=n), other.format(n=n))
    assert not same_number(one.format(n=n), other.format(n=n + 1))


@given(st.integers(-(10**9), 10**9), st.integers(1, 10**6))
def test_fractions_and_signs_keep_their_value(upper: int, lower: int) -> None:
    assert as_number(f"{upper}/{lower}") == Fraction(upper, lower)
    assert as_number(f"\u2212{abs(upper)}") == -abs(upper)


@given(st.text(max_size=60), st.integers(-(10**9), 10**9))
@settings(deadline=None)
def test_what_stands_behind_the_marker_is_the_answer_whatever_is_in_front(text: str, n: int) -> None:
    assert same_number(final_number(f"{text}\n#### {n:,}", "####"), str(n))
    assert same_number(final_number(f"{text}\n#### ${n} per day, of 9", "####"), str(n))


@given(st.text())
@settings(deadline=None)
def test_no_text_breaks_it_and_what_it_finds_is_a_number(text: str) -> None:
    found = final_number(text, "####")
    as_number(text)
    assert found is None or as_number(found) is not None or "/0" in found


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The total is 3 * 14 = 42 dollars.", "42"),
        ("so she has 1,250 left", "1250"),
        ("from 10-3 = 7", "7"),
        ("He ate 3/4 of it", "3/4"),
        ("-5", "-5"),
        ("costs $3.50.", "3.5"),
        ("about .5 litres", "0.5"),
        ("no digits", None),
        ("x2 and y3", None),
        ("#### ", None),
        ("#### none, but 12 before", "12"),
        ("12 #### 15 #### 20", "20"),
        ("1e3", "1000"),
    ],
)
def test_the_last_number_of_a_text(text: str, expected: str | None) -> None:
    found = final_number(text, "####")
    assert found is None if expected is None else same_number(found, expected)


@pytest.mark.parametrize(
    "text", ["", "abc", "1,2", "1.2.3", "--1", "1/0", "0x10", "nan", "inf", "1" * 500, "4 5", "1e99999"]
)
def test_what_is_no_number_equals_nothing(text: str) -> None:
    assert not same_number(text, text)
