"""Every task: found by itself, shots as many as it says, and verdicts on right, wrong and missing answers."""

from __future__ import annotations

from typing import Any

import pytest

from pipeline.errors import ConfigError
from pipeline.evaluation.plugins import all_tasks, task_named
from pipeline.evaluation.sandbox import barriers, run_program
from pipeline.settings.template import PromptTemplate

ROWS: dict[str, dict[str, Any]] = {
    "gsm8k": {"question": "Ann has 3 {% raw %} and 4. How many?", "answer": "3 + 4 = 7\n#### 7"},
    "math": {
        "problem": "Halve $3$.",
        "solution": "It is $\\boxed{\\frac{3}{2}}$.",
        "level": "Level 1",
        "type": "Algebra",
    },
    "mmlu": {"question": "Which?", "choices": ["p", "q", "r", "s"], "answer": 2, "subject": "logic"},
    "arc_challenge": {
        "question": "Which?",
        "choices": {"text": ["p", "q", "r"], "label": ["1", "2", "3"]},
        "answerKey": "3",
    },
    "arc_easy": {
        "question": "Which?",
        "choices": {"text": ["p", "q", "r"], "label": ["A", "B", "C"]},
        "answerKey": "C",
    },
    "hellaswag": {"ctx": "He", "endings": ["p", "q", "r", "s"], "label": "2"},
    "gpqa": {
        "Question": "Why??",
        "Correct Answer": "right",
        "Incorrect Answer 1": "w1",
        "Incorrect Answer 2": "w2",
        "Incorrect Answer 3": "w3",
    },
    "humaneval": {"prompt": "def one():\n", "test": "def check(f):\n    assert f() == 1\n", "entry_point": "one"},
    "exact": {"prompt": "Say it.", "answer": "this  one\nand that"},
    "numeric": {"prompt": "How many?", "answer": "1,200"},
    "choice": {"question": "Which?", "choices": ["p", "q", "r"], "answer": 2},
}
ANSWERS: dict[str, tuple[str, str, str]] = {
    "gsm8k": ("So 3 + 4 = 7.\n#### 7", "#### 8", "no idea"),
    "math": ("thus \\boxed{1.5}", "\\boxed{2}", "it is 1.5"),
    "mmlu": (" C", " B", " perhaps"),
    "arc_challenge": (" C", " A", " D"),
    "arc_easy": (" C", " A", ""),
    "hellaswag": (" C", " D", " He"),
    "gpqa": ("So it is.\n#### B", "#### C", "hard to say"),
    "exact": ("this  one\nand that\n", "this one", " "),
    "numeric": ("It is 1200.", "It is 12.", "many"),
    "choice": ("C. r", "B", "?"),
}
SHOTS = {
    "gsm8k": 3,
    "math": 4,
    "mmlu": 5,
    "arc_challenge": 0,
    "arc_easy": 0,
    "hellaswag": 10,
    "gpqa": 5,
    "humaneval": 4,
}
"""Of the evaluation suite that was released with arXiv 2512.22737."""


def test_every_module_of_the_folder_is_found_and_has_a_row_here() -> None:
    assert set(all_tasks()) == set(ROWS)


@pytest.mark.parametrize("name", list(ROWS))
def test_a_prompt_has_the_shots_then_the_question_and_no_answer(name: str) -> None:
    task = task_named(name)
    assert task.shots == SHOTS.get(name, 0) == len(task.examples)
    row = {column: ROWS[name][column] for column in task.columns}
    prompt = PromptTemplate(task.prompt_template()).render(row)
    question = PromptTemplate(task.question).render(row)
    assert prompt.endswith(question)
    head = prompt.removesuffix(question)
    assert head.startswith(task.instruction)
    places = [head.find(PromptTemplate(task.question).render(example)) for example in task.examples]
    assert places == sorted(places)
    assert -1 not in places
    assert PromptTemplate(task.prompt_template(0)).render(row) == task.instruction + question


@pytest.mark.parametrize("name", [name for name in ROWS if name != "humaneval"])
def test_verdicts_on_right_wrong_and_missing_answers(name: str) -> None:
    task = task_named(name)
    outcomes = [task.judge(ROWS[name], text).outcome for text in ANSWERS[name]]
    assert outcomes == ["correct", "wrong", "no answer"]


@pytest.mark.parametrize("name", list(SHOTS))
def test_the_examples_answer_themselves_correctly(name: str) -> None:
    """An example's solution, taken for an answer to it, is judged correct: else it would teach the wrong form."""
    task = task_named(name)
    for example in task.examples:
        text = PromptTemplate(task.solution).render(example)
        if task.runs_code:
            program = task.judge(
                {
                    **example,
                    "test": "def check(f):\n    assert callable(f)\n",
                    "entry_point": example["prompt"].split("def ")[1].split("(")[0],
                },
                text,
            ).program
            assert program is not None
            compile(program, name, "exec")
        else:
            assert task.judge(example, text).outcome == "correct"


def test_code_is_judged_by_running_it() -> None:
    task = task_named("humaneval")
    for text, status in (
        ("    return 1\n", "passed"),
        ("    return 2\n", "failed"),
        ("```python\ndef one():\n    return 1\n```", "passed"),
    ):
        program = task.judge(ROWS["humaneval"], text).program
        assert program is not None
        assert barriers()
        assert run_program(program).status == status


def test_gpqas_right_answer_is_where_its_letter_says() -> None:
    task = task_named("gpqa")
    for length in range(4):
        row = {**ROWS["gpqa"], "Question": "?" * (4 + length)}
        lines = PromptTemplate(task.prompt_template(0)).render(row).splitlines()
        choices = [line for line in lines if line[1:3] == ") "]
        assert sorted(line[3:] for line in choices) == ["right", "w1", "w2", "w3"]
        assert choices[length] == f"{'ABCD'[length]}) right"
        assert task.judge(row, f"#### {'ABCD'[length]}").outcome == "correct"


def test_a_name_that_is_none_names_the_nearest_and_too_many_shots_are_refused() -> None:
    with pytest.raises(ConfigError, match="Did you mean 'gsm8k'"):
        task_named("gsm8")
    with pytest.raises(ConfigError, match="has 3 examples"):
        task_named("gsm8k").prompt_template(4)
    given = [{"question": "one?", "answer": "#### 1"}] * 6
    assert PromptTemplate(task_named("gsm8k").prompt_template(5, given)).render(ROWS["gsm8k"]).count("one?") == 5
    with pytest.raises(ConfigError, match=r"examples\[0\] of task 'gsm8k'"):
        task_named("gsm8k").prompt_template(1, [{"q": "?"}])
