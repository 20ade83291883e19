"""Calls of tools in texts: what a call is, whatever stands around it or in it."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from pipeline.config import RunConfig
from pipeline.errors import ConfigError
from pipeline.fingerprint import config_of, fingerprint_fields
from pipeline.settings.tool_calls import calls_column, calls_faults, content_of, read_calls

TOOL = {"name": "f", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}}


def written(name: Any, arguments: str, close: str = "\n</tool_call>") -> str:
    return f'<tool_call>\n{{"name": {json.dumps(name)}, "arguments": {arguments}}}{close}'


@pytest.mark.parametrize(
    "arguments",
    [
        "{}",
        '{"a": 1.50, "b": 12345678901234567890123, "c": 1e400}',
        '{"a": "</tool_call><tool_call>"}',
        r'{"a": "\ud800", "\u00e9": "\\\""}',
        '{"a": {"b": [[{"c": null}]]}}',
        json.dumps({"a": "x" * 1_000_000}),
    ],
)
def test_arguments_are_kept_as_they_were_written(arguments: str) -> None:
    text = f"Well. {written('f', arguments)} and {written('g', '{ }', '</tool_call>')}"
    calls, faults = read_calls(text, ["f", "g"])
    assert [(call.name, call.arguments) for call in calls] == [("f", arguments), ("g", "{ }")]
    assert not faults
    assert content_of(text, [{"name": "f"}, {"name": "g"}]) == "Well.  and"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("<tool_call>no JSON</tool_call>", "call"),
        ("<tool_call></tool_call>", "call"),
        ('<tool_call>{"name": "f"}</tool_call>', "call"),
        (written("f", "3"), "call"),
        (written("f", '"{}"'), "call"),
        (written(3, "{}"), "call"),
        (written("f", '{"a": 1, "a": 2}'), "call"),  # readers would not agree on the value
        (written("f", "{}").replace('"arguments"', '"name": "f", "arguments"'), "call"),
        (written("f", '{"a": NaN}'), "call"),
        (written("f", '{"a": ' + "[" * 100_000), "call"),
        (written("f", '{"a": ' + "9" * 10_000 + "}"), "call"),
        (written("f", "{}", " more</tool_call>"), "call"),
        (written("h", "{}"), "tool"),
        (written("F", "{}"), "tool"),
    ],
)
def test_what_is_no_call_is_counted_and_stays_in_the_text(text: str, reason: str) -> None:
    whole = f"{text} {written('f', '{}')}"
    calls, faults = read_calls(whole, ["f"])
    assert len(calls) == 1
    assert dict(faults) == {reason: 1}
    assert content_of(whole, [{"name": "f"}]) == text
    assert calls_faults([whole, None, whole], [[{"name": "f"}], None, None], ["stop"] * 3) == {reason: 1}


def test_a_call_that_was_cut_is_told_apart_and_a_stop_string_may_end_one() -> None:
    text = written("f", '{"a": 1}', "")
    for end in range(len("<tool_call>"), len(text)):
        calls, faults = read_calls(text[:end], ["f"], cut=True)
        assert (calls, dict(faults)) == ([], {"length": 1})
    assert len(read_calls(text, ["f"])[0]) == 1


def test_many_calls_take_time_in_proportion_and_have_ids_of_their_own() -> None:
    text = written("f", "{}") * 10_000 + '<tool_call>{"a' * 10_000
    began = time.monotonic()
    column = calls_column([text, text], [["f"], ["f"]], [("a", 0), ("a", 1)]).to_pylist()
    assert time.monotonic() - began < 30
    ids = [call["id"] for row in column for call in row]
    assert len(set(ids)) == len(ids) == 20_000
    assert calls_column([text], [["f"]], [("a", 1)]).to_pylist() == column[1:]
    assert calls_column([text, None], [None, ["f"]], [("a", 0), ("b", 0)]).to_pylist() == [None, None]


def config(**more: Any) -> RunConfig:
    return RunConfig.from_mapping({"input": "in", "output": "out", **more})


def test_outputs_without_tools_keep_their_record_and_others_are_read_back() -> None:
    assert not {"tools", "tool_choice"} & set(fingerprint_fields(config(tools_column="t")))
    assert config(tools=[TOOL]).tool_choice == "auto"
    named = {"type": "function", "function": {"name": "f"}}
    one = config(tools=[{"type": "function", "function": TOOL}], tool_choice=named)
    again = config_of(fingerprint_fields(one), input="in", output="out", model="tiny")
    assert (again.tools, again.tool_choice) == (one.tools, {"name": "f"})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"tools": {"name": "f"}}, "a list of tools"),
        ({"tools": ["f"]}, "name=None"),
        ({"tools": [{"name": "a b"}]}, "tools.name='a b'"),
        ({"tools": [TOOL, TOOL]}, "a name of its own"),
        ({"tools": [{"name": "f", "parameters": {"type": "array"}}]}, "tools.f.parameters"),
        ({"tools": [{"name": "f", "parameters": "x"}]}, "tools.f.parameters"),
        ({"tools": [TOOL], "tool_choice": "always"}, "tool_choice='always'"),
        ({"tools": [TOOL], "tool_choice": {"name": "g"}}, r"tool_choice='g': one of \['f'\]"),
        ({"tools": [TOOL], "tool_choice": ["f"]}, "tool_choice="),
        ({"tools": [TOOL], "parse": {"tool_calls": {"pattern": "a"}}}, "tool_choice makes a column"),
    ],
)
def test_mistakes_are_named(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        config(**given)
