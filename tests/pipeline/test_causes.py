"""Messages of failed rows are told apart by rule and remedy, not by the values of single rows."""

from __future__ import annotations

import pytest

from pipeline.causes import OTHER, added_causes, cause_of, causes_of, example_of
from pipeline.codec import explain

REMEDY = "Shorten the prompt, or set on_long_prompt."


def long_prompt(tokens: int) -> str:
    return explain("prompt + max_tokens", f"{tokens} + 6", "at most 64 tokens together, the model's length", REMEDY)


VALUES = ["", "it's: a. Trap", None, 17, -1.5, {"a": {"b": [1, "x: y. Z"]}}, [1, 2], "q" * 500, {"k": "v" * 300},
          {f"key {i}": {"n": "x: y. Z"} for i in range(9)}, 'a "quoted" value', "=: . A"]  # fmt: skip


@pytest.mark.parametrize("value", VALUES, ids=range(len(VALUES)))
def test_any_value_is_left_out_of_the_cause_and_kept_in_the_example(value: object) -> None:
    message = explain("body.top_p", value, "a number of 1 at most", "Lower it.")
    assert cause_of(message) == "body.top_p: a number of N at most. Lower it."
    (cause,) = causes_of({"c": 2}, {"c": example_of("a:7", message)})
    assert (cause.text, cause.remedy) == ("body.top_p: a number of 1 at most", "Lower it.")
    assert cause.example.startswith("row a:7: body.top_p=")


def test_one_line_has_count_rule_remedy_and_example() -> None:
    (cause,) = causes_of({"x": 12}, {"x": example_of("a.jsonl:3", long_prompt(402))})
    assert cause.line == (
        "12 rows: prompt + max_tokens: at most 64 tokens together, the model's length. Shorten the prompt, or set "
        "on_long_prompt. For example row a.jsonl:3: prompt + max_tokens='402 + 6'."
    )


def test_rows_that_break_one_rule_have_one_cause_and_others_have_others() -> None:
    messages = [long_prompt(n) for n in (70, 402)] + [
        "column 'prompt': not valid UTF-8 text (byte 17). Re-encode it.",
        "column 'prompt': not valid UTF-8 text (byte 3). Re-encode it.",
        "column 'tools': not valid UTF-8 text (byte 3). Re-encode it.",
    ]
    assert len({cause_of(message) for message in messages}) == 3


@pytest.mark.parametrize("message", ["", "boom", "\n", "a=b", "x" * 100_000, "(" * 50_000, "'" * 50_000, "=" * 50_000])
def test_every_message_has_a_cause(message: str) -> None:
    cause = cause_of(message)
    assert len(cause) < 1000
    assert causes_of({cause: 1}, {cause: example_of("r", message)})[0].rows == 1


def test_causes_of_earlier_records_are_shown_as_they_are() -> None:
    (cause,) = causes_of({"RequestError": 2}, {"RequestError": "row a:1: the prompt is empty"})
    assert cause.line == "2 rows: RequestError. For example row a:1: the prompt is empty."


def test_however_many_causes_there_are_few_are_told_apart_and_all_rows_counted() -> None:
    counts: dict[str, int] = {}
    for i in range(1000):
        counts = dict(added_causes(counts, {f"cause {i}": 2}, most=10))
    assert (len(counts), sum(counts.values()), counts[OTHER]) == (11, 2000, 1980)
    assert causes_of(counts, {})[-1].text.startswith("other causes")
