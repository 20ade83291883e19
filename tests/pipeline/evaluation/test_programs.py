"""Programs are put together so that what was asked for runs, and nothing behind it."""

from __future__ import annotations

import pytest

from pipeline.evaluation.programs import program_of

PROMPT = 'import math\n\n\ndef half(x):\n    return x / 2\n\n\ndef area(r):\n    """ Area of a circle. """\n'
BODY = "    return math.pi * r * r\n"
WHOLE = f"def area(r):\n{BODY}"


@pytest.mark.parametrize(
    "completion",
    [
        BODY,
        BODY + "\n\ndef other():\n    raise SystemExit\n",
        BODY + "\nprint(area(2) / 0)\n",
        BODY + "\n# Test\nassert False\n",
        BODY + "\nif __name__ == '__main__':\n    1 / 0\n",
        BODY + "```\nThat is it.",
        f"Here it is:\n```python\n{WHOLE}```\nIt uses pi.",
        f"```\n{WHOLE}\n```",
        f"```python\n{BODY}```",
        "```python\nreturn math.pi * r * r\n```",
        WHOLE,
        f"Sure:\n\n```python\nimport math\n\n{WHOLE}",
    ],
)
def test_every_form_of_a_right_answer_runs(completion: str) -> None:
    names: dict[str, object] = {"__name__": "program"}
    exec(program_of(PROMPT, completion, "area"), names)
    assert names["area"](2) == pytest.approx(12.566, abs=1e-3)  # type: ignore[operator]


@pytest.mark.parametrize("completion", ["", "I cannot.", "    return None\n", "```python\n```"])
def test_a_wrong_answer_stays_wrong(completion: str) -> None:
    names: dict[str, object] = {"__name__": "program"}
    try:
        exec(program_of(PROMPT, completion, "area"), names)
    except (SyntaxError, IndentationError):
        return
    assert names["area"](2) is None  # type: ignore[operator]
