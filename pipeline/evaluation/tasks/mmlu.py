"""MMLU (cais/mmlu): four choices from 57 subjects; the letter counts."""

from __future__ import annotations

from pipeline.evaluation.letters import chosen_letter, letter_of
from pipeline.evaluation.task import Row, Task, Verdict

__all__ = ["TASKS"]


def _judge(row: Row, text: str) -> Verdict:
    letters = "ABCDEFGHIJ"[: len(row["choices"])]
    found, expected = chosen_letter(text, letters), letter_of(row["answer"], [None] * len(letters))
    return Verdict.of(found, expected, found is not None and found == expected)


TASKS = (
    Task(
        name="mmlu",
        about="four choices from many subjects: question, choices (a list), answer (a number from 0), subject",
        columns=("question", "choices", "answer", "subject"),
        instruction="Each question has one right choice. Answer with its letter.\n\n",
        question="{{ question }}\n{% for choice in choices %}{{ 'ABCDEFGHIJ'[loop.index0] }}. {{ choice }}\n{% endfor %}"
        "Answer:",
        solution=" {{ 'ABCDEFGHIJ'[answer] }}",
        examples=(
            {
                "question": "Which of these numbers is divisible by 9?",
                "choices": ["128", "207", "316", "401"],
                "answer": 1,
            },
            {
                "question": "Which organ of the human body makes insulin?",
                "choices": ["the liver", "the spleen", "the pancreas", "the thyroid"],
                "answer": 2,
            },
            {
                "question": "Where does a glacier melt first when the air becomes warmer?",
                "choices": ["at its lower end", "at its highest point", "in its middle", "below its bed only"],
                "answer": 0,
            },
            {
                "question": "A good becomes scarcer while the wish for it stays as it is. What happens to its price?",
                "choices": ["It falls.", "It stays.", "It becomes zero.", "It rises."],
                "answer": 3,
            },
            {
                "question": "What does a court do that hears an appeal?",
                "choices": [
                    "It collects taxes.",
                    "It reviews a decision of a lower court.",
                    "It writes the law.",
                    "It leads the police.",
                ],
                "answer": 1,
            },
        ),
        shots=5,
        max_tokens=4,
        judge=_judge,
        group=lambda row: str(row["subject"]),
    ),
)
