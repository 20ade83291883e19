"""Numbers are equal when their values are; a letter is found however it is said; texts are compared whole."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.commands.scorers import SCORERS, choice, exact, numeric

NUMBERS = (
    "{n}", "{n:,}", "${n}", "$ {n:,}", "{n}.", "{n}.0", "{n:,}.00", " {n} ", "**{n}**", "{n}%", "\\${n}", "+{n}",
    "{n}/1", "3 of 4 times 5 is {n}", "12 and 13\n#### {n} per day, of 9",
)  # fmt: skip
LETTERS = (
    "{x}", " {x}", "{x}.", "({x})", "{x})", "**{x}**", "{x}. because of this", "The answer is {x}.",
    "the answer is ({x})", "Answer: {x}", "So the correct answer is **{x}**.", "It works like that.\n#### {x}\n",
    "$\\boxed{{{x}}}$", "I think (B) is tempting, but the answer is {x}", "Let me think.\n\n{x}\n",
    "A dog runs.\nAnswer: {x}", "[{x}]", "The answer is option {x}.", "answer is: {x}",
)  # fmt: skip


@given(st.integers(0, 10**12), st.sampled_from(NUMBERS), st.sampled_from(NUMBERS))
@settings(max_examples=100, deadline=None)
def test_the_same_number_in_any_writing_is_correct_and_another_one_is_wrong(n: int, one: str, other: str) -> None:
    assert numeric(one.format(n=n), other.format(n=n)).outcome == "correct"
    assert numeric(one.format(n=n), other.format(n=n + 1)).outcome == "wrong"


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("The total is 3 * 14 = 42 dollars.", "42"),
        ("from 10-3 = 7", "7"),
        ("He ate 6/8 of it", "3/4"),
        ("\u22125", "-5"),
        ("about .5 litres", "1/2"),
        ("1e3", "1000"),
        ("12 #### 15 #### 20", "20"),
        ("#### none, but 12 before", "12"),
        ("x2 and y3", None),
        ("#### ", None),
        ("1/0", None),
        ("1" * 500, None),
    ],
)
def test_the_number_of_a_text(text: str, answer: str | None) -> None:
    assert numeric(text, "1").answer == answer


@given(st.sampled_from("ABCD"), st.sampled_from(LETTERS))
def test_a_letter_is_found_in_any_wrapping(letter: str, way: str) -> None:
    assert choice(way.format(x=letter), f"({letter.lower()})").outcome == "correct"
    assert choice(way.format(x=letter), "E").outcome == "wrong"


@pytest.mark.parametrize(
    ("text", "letter"),
    [
        ("The answer is B. No: the answer is C.", "C"),
        ("the answer is c", "C"),
        ("B\n\nQuestion: which is next?\nA. one\nAnswer: ", "A"),
        ("A dog runs through the park.", None),
        ("BANANA", None),
        ("the answer is unclear", None),
        ("A2", None),
        ("As the answer is a question of taste, none", None),
    ],
)
def test_the_last_statement_counts_and_an_article_is_no_letter(text: str, letter: str | None) -> None:
    assert choice(text, "A").answer == letter


def test_exact_compares_all_but_white_space_at_ends_of_lines() -> None:
    assert exact(" one  \ntwo\n", "one\ntwo").outcome == "correct"
    assert exact("one two", "one  two").outcome == "wrong"


@pytest.mark.parametrize(("scorer", "expected"), [("exact", " \n"), ("numeric", "none"), ("choice", "AB")])
def test_an_expected_answer_that_is_none_of_the_scorers_judges_nothing(scorer: str, expected: str) -> None:
    assert SCORERS[scorer]("A, 1", expected).outcome == "unjudged"


@pytest.mark.parametrize("scorer", SCORERS)
@given(text=st.text())
@settings(max_examples=50, deadline=None)
def test_no_text_breaks_a_scorer(scorer: str, text: str) -> None:
    assert SCORERS[scorer](text, "7" if scorer == "numeric" else "A").outcome in ("correct", "wrong", "no answer")
    assert SCORERS[scorer]("", text).outcome in ("unjudged", "no answer")
