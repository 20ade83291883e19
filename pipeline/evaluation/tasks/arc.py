"""ARC (allenai/ai2_arc, ARC-Challenge and ARC-Easy): science questions with three to five choices; the letter counts."""

from __future__ import annotations

from dataclasses import replace

from pipeline.evaluation.letters import LETTERS, chosen_letter, letter_of
from pipeline.evaluation.task import Row, Task, Verdict

__all__ = ["TASKS"]


def _judge(row: Row, text: str) -> Verdict:
    labels = list(row["choices"]["label"])
    found, expected = chosen_letter(text, LETTERS[: len(labels)]), letter_of(row["answerKey"], labels)
    return Verdict.of(found, expected, found is not None and found == expected)


_CHALLENGE = Task(
    name="arc_challenge",
    about="science questions: question, choices (text and label lists), answerKey",
    columns=("question", "choices", "answerKey"),
    question="Question: {{ question }}\n{% for choice in choices['text'] %}{{ 'ABCDEFGHIJ'[loop.index0] }}. {{ choice }}\n"
    "{% endfor %}Answer:",
    solution=" {{ 'ABCDEFGHIJ'[choices['label'].index(answerKey)] }}",
    shots=0,
    max_tokens=4,
    judge=_judge,
)

TASKS = (_CHALLENGE, replace(_CHALLENGE, name="arc_easy"))
