"""Reasoning apart from the answer: which text is which, whatever stands in either."""

from __future__ import annotations

import itertools
from typing import Any

import pyarrow as pa
import pytest

from pipeline.config import RunConfig
from pipeline.errors import ConfigError
from pipeline.fingerprint import config_of, fingerprint_fields
from pipeline.schema import data_columns, output_schema, result_fields
from pipeline.settings.parsing import Parse
from pipeline.settings.reasoning import tags_of

THINK = tags_of("think")
assert THINK is not None
PARTS = ("<think>", "</think>", "a", " \n", "<tool_call>", "<think", "\ud7ff", "")


@pytest.mark.parametrize(
    ("text", "opened", "reasoning", "answer"),
    [
        ("<think>\nr\n</think>\n\nA", False, "r", "A"),
        ("r</think>A", True, "r", "A"),  # the template writes the opening tag
        ("r</think>A", False, "r", "A"),
        ("<think>r", False, "r", ""),  # cut
        ("r", True, "r", ""),
        ("r", False, None, "r"),
        (" A ", False, None, " A "),
        ("", False, None, ""),
        ("<think></think>A", False, "", "A"),
        ("<think>a<think>b</think>c</think>d", False, "a<think>b", "c</think>d"),  # the first closing tag counts
        ("say <think> loud", False, None, "say <think> loud"),
    ],
)
def test_the_first_closing_tag_ends_the_reasoning(text: str, opened: bool, reasoning: str | None, answer: str) -> None:
    assert THINK is not None
    assert THINK.split(text, opened=opened) == (reasoning, answer)


def test_nothing_but_tags_and_the_whitespace_next_to_them_is_lost() -> None:
    assert THINK is not None
    for parts, opened in itertools.product(itertools.product(PARTS, repeat=4), (False, True)):
        text = "".join(parts)
        reasoning, answer = THINK.split(text, opened=opened)
        if reasoning is None:
            assert answer == text
            continue
        begun = text.lstrip().startswith("<think>") and not text.lstrip().startswith("</think>")
        whole = "<think>" * begun + reasoning + "</think>" * ("</think>" in text) + answer
        assert "".join(whole.split()) == "".join(text.split())
        assert "</think>" not in reasoning


def config(**more: Any) -> RunConfig:
    return RunConfig.from_mapping({"input": "in", "output": "out", **more})


def test_outputs_without_it_keep_their_record_and_others_are_read_back() -> None:
    assert "reasoning_parser" not in fingerprint_fields(config())
    for given in ("think", ["[r]", "[/r]"]):
        record = fingerprint_fields(config(reasoning_parser=given))
        assert record["reasoning_parser"] == given
        assert config_of(record, input="in", output="out", model="tiny").reasoning == tags_of(given)


def test_a_form_after_the_closing_tag_is_read_from_the_answer() -> None:
    structured = {"structured_outputs": {"json": {"type": "object", "properties": {}}, "after": "</think>"}}
    parse = {"other": Parse(json=True, after="[x]")}
    apart = config(sampling=structured, parse=parse, reasoning_parser="think").parsed
    assert (apart["parsed"].after, apart["other"].after) == (None, "[x]")
    assert config(sampling=structured).parsed["parsed"].after == "</think>"


@pytest.mark.parametrize("given", ["thinking", "", ["<think>"], ["a", "a"], ["a", " "], ["a", 3], 7, {"a": "b"}, b"ab"])
def test_other_parsers_are_refused(given: Any) -> None:
    with pytest.raises(ConfigError, match="reasoning_parser"):
        config(reasoning_parser=given)
    with pytest.raises(ConfigError, match="reasoning_parser makes a column"):
        config(reasoning_parser="think", parse={"reasoning": {"pattern": "a"}})


def test_only_reasoning_that_was_taken_apart_is_data() -> None:
    parsed = [Parse(pattern="a").field("reasoning")]
    by_hand = output_schema(pa.schema([]), result_fields(token_ids=False, logprobs=False, parsed=parsed))
    apart = output_schema(pa.schema([]), result_fields(token_ids=False, logprobs=False, reasoning=True))
    assert "reasoning" not in data_columns(by_hand, 0)
    assert "reasoning" in data_columns(apart, 0)
