"""HumanEval (openai/openai_humaneval): functions to be completed; the data set's tests have to pass (``--execute-code``)."""

from __future__ import annotations

from pipeline.evaluation.programs import program_of
from pipeline.evaluation.task import Row, Task, Verdict

__all__ = ["TASKS"]


def _judge(row: Row, text: str) -> Verdict:
    name = str(row["entry_point"])
    program = program_of(str(row["prompt"]), text, name)
    return Verdict(outcome="program", answer=text, program=f"{program}\n{row['test']}\ncheck({name})\n")


def _example(prompt: str, solution: str) -> Row:
    return {"prompt": prompt, "canonical_solution": solution}


TASKS = (
    Task(
        name="humaneval",
        about="Python functions: prompt, test, entry_point; runs what the model wrote in a sandbox",
        columns=("prompt", "test", "entry_point"),
        question="{{ prompt }}",
        solution="{{ canonical_solution }}",
        examples=(
            _example(
                'def count_vowels(text: str) -> int:\n    """ Return how many vowels the text has.\n'
                '    >>> count_vowels("banana")\n    3\n    """\n',
                '    return sum(letter in "aeiouAEIOU" for letter in text)',
            ),
            _example(
                'from typing import List\n\n\ndef running_total(values: List[int]) -> List[int]:\n    """ Return the '
                'sum of the values up to each place.\n    >>> running_total([1, 2, 3])\n    [1, 3, 6]\n    """\n',
                "    totals, total = [], 0\n    for value in values:\n        total += value\n"
                "        totals.append(total)\n    return totals",
            ),
            _example(
                'def is_leap_year(year: int) -> bool:\n    """ Return whether a year of the Gregorian calendar has 366 '
                'days.\n    >>> is_leap_year(1900)\n    False\n    """\n',
                "    return year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)",
            ),
            _example(
                "from typing import Dict, List\n\n\ndef group_by_length(words: List[str]) -> Dict[int, List[str]]:\n"
                '    """ Group words by their length, in order.\n    >>> group_by_length(["a", "bc", "d"])\n'
                '    {1: ["a", "d"], 2: ["bc"]}\n    """\n',
                "    groups: Dict[int, List[str]] = {}\n    for word in words:\n"
                "        groups.setdefault(len(word), []).append(word)\n    return groups",
            ),
        ),
        shots=4,
        separator="\n\n\n",
        max_tokens=256,
        stop=("\ndef ", "\nclass ", "\nif __name__", "\nprint("),
        judge=_judge,
        runs_code=True,
    ),
)
