"""GSM8K (openai/gsm8k): grade-school word problems; the number behind ``####`` counts."""

from __future__ import annotations

from pipeline.evaluation.numbers import final_number, same_number
from pipeline.evaluation.task import Row, Task, Verdict

__all__ = ["TASKS"]


def _judge(row: Row, text: str) -> Verdict:
    found, expected = final_number(text, "####"), final_number(str(row["answer"]), "####")
    return Verdict.of(found, expected, same_number(found, expected))


TASKS = (
    Task(
        name="gsm8k",
        about="grade-school word problems with worked answers: question, answer (... #### 42)",
        columns=("question", "answer"),
        instruction="Work each problem out step by step. End with #### and the resulting number.\n\n",
        question="Question: {{ question }}\nAnswer:\n",
        solution="{{ answer }}",
        examples=(
            {
                "question": "A bakery sells 14 trays of rolls before noon and half as many after noon. A tray holds 12 "
                "rolls. How many rolls does it sell on that day?",
                "answer": "After noon it sells 14 / 2 = 7 trays.\nThat makes 14 + 7 = 21 trays.\nThey hold 21 * 12 = "
                "252 rolls.\n#### 252",
            },
            {
                "question": "Nora has 45 euros. She buys three notebooks for 4 euros each and a pen for 9 euros. How "
                "much money is left?",
                "answer": "The notebooks cost 3 * 4 = 12 euros.\nWith the pen she pays 12 + 9 = 21 euros.\nThere are "
                "45 - 21 = 24 euros left.\n#### 24",
            },
            {
                "question": "A tank holds 200 litres and is 35% full. A pump adds 13 litres a minute. After how many "
                "minutes is the tank full?",
                "answer": "There are 200 * 0.35 = 70 litres in the tank.\nThere is room for 200 - 70 = 130 litres.\n"
                "The pump needs 130 / 13 = 10 minutes.\n#### 10",
            },
        ),
        shots=3,
        max_tokens=768,
        temperature=0.1,
        stop=("Question:",),
        judge=_judge,
    ),
)
