"""The letter of a choice, however it is said; an article is none."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.evaluation.letters import chosen_letter, letter_of

WAYS = (
    "{x}",
    " {x}",
    "{x}.",
    "({x})",
    "{x})",
    "**{x}**",
    "{x}. because of this",
    "The answer is {x}.",
    "the answer is ({x})",
    "Answer: {x}",
    "So the correct answer is **{x}**.",
    "#### {x}",
    "It works like that.\n#### {x}\n",
    "$\\boxed{{{x}}}$",
    "\\boxed{{\\text{{{x}}}}}",
    "I think (B) is tempting, but the answer is {x}",
    "the correct option is {x}",
    "Let me think.\n\n{x}\n",
    "A dog runs.\nAnswer: {x}",
    "[{x}]",
    "The answer is option {x}.",
    "answer is: {x}",
)


@given(st.sampled_from("ABCD"), st.sampled_from(WAYS))
def test_a_letter_is_found_in_any_wrapping(letter: str, way: str) -> None:
    assert chosen_letter(way.format(x=letter)) == letter


@pytest.mark.parametrize(
    "text",
    [
        "",
        "A dog runs through the park.",
        "I do not know.",
        "E",
        "Because",
        "BANANA",
        "none of them",
        "the answer is unclear",
        "1",
        "Abc",
        "A2",
        "#### ",
        "As the answer is a question of taste, none",
    ],
)
def test_what_chooses_nothing_has_no_letter(text: str) -> None:
    assert chosen_letter(text) is None


@pytest.mark.parametrize(
    ("text", "letter"),
    [
        ("The answer is B. No: the answer is C.", "C"),
        ("#### A\n#### D", "D"),
        ("the answer is c", "C"),
        ("B\n\nQuestion: what is next?\nA. one\nAnswer: ", "B"),
    ],
)
def test_the_last_statement_counts(text: str, letter: str) -> None:
    assert chosen_letter(text) == letter


@given(st.text())
def test_no_text_breaks_it(text: str) -> None:
    assert chosen_letter(text) in (None, *"ABCD")


@pytest.mark.parametrize(
    ("answer", "labels", "letter"),
    [
        (2, [None] * 4, "C"),
        ("2", [None] * 4, "C"),
        ("B", list("ABCD"), "B"),
        ("3", ["1", "2", "3", "4"], "C"),
        ("b", [None] * 4, "B"),
        ("E", list("ABCDE"), "E"),
        (4, [None] * 4, None),
        ("E", list("ABCD"), None),
        (-1, [None], None),
        ("", list("AB"), None),
        (None, list("AB"), None),
        (True, list("AB"), None),
        ("what", list("AB"), None),
    ],
)
def test_the_letter_of_a_data_sets_answer(answer: object, labels: list[object], letter: str | None) -> None:
    assert letter_of(answer, labels) == letter
