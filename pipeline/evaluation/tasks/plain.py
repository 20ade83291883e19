"""Data sets of one's own: a prompt and an answer, which has to be equal as text, as a number, or by its letter."""

from __future__ import annotations

from pipeline.evaluation.letters import LETTERS, chosen_letter, letter_of
from pipeline.evaluation.numbers import final_number, same_number
from pipeline.evaluation.task import Row, Task, Verdict

__all__ = ["TASKS"]


def _exact(row: Row, text: str) -> Verdict:
    found, expected = _plain(text), _plain(str(row["answer"]))
    return Verdict.of(found or None, expected, found == expected)


def _plain(text: str) -> str:
    """Spaces at both ends and at the ends of lines say nothing."""
    return "\n".join(line.rstrip() for line in text.strip().splitlines())


def _numeric(row: Row, text: str) -> Verdict:
    found, expected = final_number(text, "####"), final_number(str(row["answer"]), "####")
    return Verdict.of(found, expected, same_number(found, expected))


def _choice(row: Row, text: str) -> Verdict:
    letters = LETTERS[: len(row["choices"])]
    found, expected = chosen_letter(text, letters), letter_of(row["answer"], [None] * len(letters))
    return Verdict.of(found, expected, found is not None and found == expected)


TASKS = (
    Task(
        name="exact",
        about="answers that are equal as text: prompt, answer",
        columns=("prompt", "answer"),
        question="{{ prompt }}",
        solution="{{ answer }}",
        judge=_exact,
    ),
    Task(
        name="numeric",
        about="answers whose last number (or that behind ####) is equal: prompt, answer",
        columns=("prompt", "answer"),
        question="{{ prompt }}",
        solution="{{ answer }}",
        judge=_numeric,
    ),
    Task(
        name="choice",
        about="questions with choices: question, choices (a list), answer (a number from 0, or a letter)",
        columns=("question", "choices", "answer"),
        question="{{ question }}\n{% for choice in choices %}{{ 'ABCDEFGHIJ'[loop.index0] }}. {{ choice }}\n{% endfor %}"
        "Answer:",
        solution=" {{ answer if answer is string else 'ABCDEFGHIJ'[answer] }}",
        max_tokens=8,
        judge=_choice,
    ),
)
