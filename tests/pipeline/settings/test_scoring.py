"""The task of scoring: values that are refused by name, and the values of a record."""

from __future__ import annotations

from typing import Any

import pytest

from pipeline.codec import RequestError, SamplingParams
from pipeline.config import RunConfig
from pipeline.errors import ConfigError
from pipeline.fingerprint import config_of, fingerprint_fields
from pipeline.settings.scoring import MOST_CHOICES, Score, checked_choices, task_of


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "exactly one"),
        ({"choices": ["a"], "choices_column": "c"}, "exactly one"),
        ({"choices": "yes"}, "a list of 1 to"),
        ({"choices": [True, False]}, 'quote it: "yes"'),
        ({"choices": ["a", ""]}, r"choices\[1\]=''"),
        ({"choices": ["a", "b", "a"]}, "each choice occurs once"),
        ({"choices": ["\ud800"]}, "valid Unicode"),
        ({"choices": {"a": 1}}, "a list of 1 to"),
        ({"choices": 5}, "a list of 1 to"),
        ({"choices_column": ""}, "name of a column"),
        ({"continuation_column": 3}, "name of a column"),
        ({"choices": ["a"], "with_end": "yes"}, "true or false"),
        ({"choise": ["a"]}, "choise"),
        (["a"], "a mapping"),
        ({"choices": [str(i) for i in range(MOST_CHOICES + 1)]}, f"{MOST_CHOICES + 1} of them"),
    ],
)
def test_a_bad_task_is_refused_by_name(given: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        RunConfig(input="i", output="o", task=given)


@pytest.mark.parametrize("given", [None, "yes", ["a", None], [], {"a": 1}, ["a", b"b"]])
def test_a_cell_without_choices_is_refused(given: Any) -> None:
    with pytest.raises(RequestError, match="column"):
        checked_choices("column", given)


def test_settings_of_generation_are_refused_with_a_task() -> None:
    task = Score(choices=["a"])
    assert RunConfig(input="i", output="o", task=task, sampling=SamplingParams(logprobs=True)).task == task
    given: list[dict[str, Any]] = [{"max_tokens": 3}, {"temperature": 1.0}, {"n": 2}, {"logprobs": 5}]
    for field in given:
        with pytest.raises(ConfigError, match=rf"sampling\.{next(iter(field))}"):
            RunConfig(input="i", output="o", task=task, sampling=SamplingParams(**field))
    others: list[dict[str, Any]] = [{"sampling_columns": {"seed": "s"}}, {"label_probabilities": True}]
    for other in others:
        with pytest.raises(ConfigError, match=next(iter(other))):
            RunConfig(input="i", output="o", task=task, **other)


@pytest.mark.parametrize("task", [Score(choices=["b", "a"], with_end=True), Score(continuation_column="c"), None])
def test_a_task_is_part_of_the_record_and_read_back(task: Score | None) -> None:
    config = RunConfig(input="i", output="o", model="tiny", task=task)
    record = fingerprint_fields(config)
    assert task_of(record.get("task")) == task
    assert config_of(record, input="i", output="o", model="tiny").task == task
