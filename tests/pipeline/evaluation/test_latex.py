"""Boxed answers are taken whole, and compared by what they say."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.evaluation.latex import boxed, same_latex

BALANCED = st.recursive(
    st.text("abc123+-^_ ", max_size=6),
    lambda inner: st.lists(inner, max_size=3).map(lambda parts: "{" + "".join(parts) + "}"),
)


@given(BALANCED, st.text("abc {}\\", max_size=20))
@settings(deadline=None)
def test_the_last_box_is_taken_whole(content: str, before: str) -> None:
    assert boxed(f"\\boxed{{wrong}} {before} \\boxed{{{content}}} done.") == content.strip()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("so $\\boxed{\\frac{1}{2}}$.", "\\frac{1}{2}"),
        ("\\fbox{7}", "7"),
        ("\\boxed 5.", "5"),
        ("\\boxed{a} and \\boxed{b}", "b"),
        ("\\boxed{never closed", None),
        ("\\boxed{one} then \\boxed{open {", None),
        ("no box", None),
        ("", None),
    ],
)
def test_boxes(text: str, expected: str | None) -> None:
    assert boxed(text) == expected


SAME = [
    ("\\frac{1}{2}", "\\dfrac12"),
    ("\\frac12", "1/2"),
    ("0.5", "\\tfrac{1}{2}"),
    ("\\frac{1}{2}", ".5"),
    ("1,000", "1000"),
    ("\\$18.90", "18.9"),
    ("90^\\circ", "90"),
    ("50\\%", "50"),
    ("x=5", "5"),
    ("2\\sqrt3", "2\\sqrt{3}"),
    ("\\text{(B)}", "(B)"),
    ("(1, 2)", "(1,2)"),
    ("\\left(1,\\frac{4}{2}\\right)", "(1,2)"),
    ("[0,\\infty)", "\\left[0, \\infty\\right)"),
    ("\\{2, 1\\}", "\\{1,2\\}"),
    ("-\\frac{3}{4}", "\\frac{-3}{4}"),
    ("1\\frac{1}{2}", "1.5"),
    ("12\\text{ cm}", "12"),
    ("3 \\text{ hours}", "3"),
    ("x \\in [1,2]", "[1,2]"),
    ("\\text{even}", "even"),
    ("10\\pi", "10 \\pi"),
    ("5.", "5"),
    ("$7$", "7"),
    ("\\mathrm{yes}", "yes"),
    ("-\u22123", "-\u22123"),
    ("3\\!\\cdot\\!4", "3 \\times 4"),
]
DIFFERENT = [
    ("\\frac{1}{2}", "\\frac{2}{1}"),
    ("12", "21"),
    ("(1,2)", "(2,1)"),
    ("[1,2]", "(1,2)"),
    ("x+1", "x-1"),
    ("5", ""),
    ("", ""),
    ("-3", "3"),
    ("1/0", "1/0 1"),
    ("\\frac{1}{0}", "0"),
    ("2\\sqrt{3}", "3\\sqrt{2}"),
    ("10^2", "102"),
    ("a", "b"),
    ("(1,2)", "(1,2,3)"),
    ("\\{1,1\\}", "\\{1,2\\}"),
    ("\\text{yes}", "\\text{no}"),
    ("0.5", "0.51"),
    ("1,2", "12"),
]


@pytest.mark.parametrize(("one", "other"), SAME)
def test_the_same_answer_in_another_spelling(one: str, other: str) -> None:
    assert same_latex(one, other)
    assert same_latex(other, one)


@pytest.mark.parametrize(("one", "other"), DIFFERENT)
def test_another_answer_is_not_the_same(one: str, other: str) -> None:
    assert not same_latex(one, other)
    assert not same_latex(other, one)


@given(st.integers(-9999, 9999), st.integers(1, 999))
def test_a_fraction_and_its_multiples_are_the_same(upper: int, lower: int) -> None:
    one, other = f"\\frac{{{upper}}}{{{lower}}}", f"\\dfrac{{{3 * upper}}}{{{3 * lower}}}"
    assert same_latex(one, other)
    assert not same_latex(one, f"\\frac{{{upper + 1}}}{{{lower}}}")


@given(st.text(max_size=80), st.text(max_size=80))
@settings(deadline=None)
def test_no_text_breaks_it_and_it_is_symmetric(one: str, other: str) -> None:
    assert same_latex(one, other) == same_latex(other, one)
    boxed(one)


def test_a_text_of_any_length_takes_little_time() -> None:
    long = "\\frac{1}{" * 50_000
    assert not same_latex(long, long)
    assert boxed("\\boxed{" * 20_000) is None
