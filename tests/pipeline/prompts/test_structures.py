"""The form of outputs, from a cell or a body."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from pipeline.codec import RequestError, SamplingParams
from pipeline.config import RunConfig
from pipeline.errors import ConfigError
from pipeline.prompts import structures
from pipeline.prompts.model_files import resolved_model
from pipeline.prompts.structures import FREE, check_structure, grammar_faults, of_cell, with_special_tags

SCHEMA = {"type": "object", "properties": {"a": {"const": None}}, "required": ["a"]}
FORMAT = {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": SCHEMA}}


@pytest.mark.parametrize(
    ("cell", "fields"),
    [
        (json.dumps(SCHEMA), {"json": SCHEMA}),
        (SCHEMA, {"json": {"type": "object", "properties": {"a": {}}, "required": ["a"]}}),
        (json.dumps(FORMAT), {"json": SCHEMA}),
        ('{"type": "json_object"}', {"json_object": True}),
        ('{"type": "text"}', FREE),
        ('{"regex": "[0-9]+", "after": "x"}', {"regex": "[0-9]+", "after": "x"}),
        ({"regex": "a", "json": None, "choice": None}, {"regex": "a"}),
        ("{}", {"json": {}}),
        (b'{"choice": ["a"]}', {"choice": ["a"]}),
    ],
)
def test_a_cell_has_a_schema_or_a_response_format_or_fields(cell: Any, fields: Any) -> None:
    assert of_cell("c", cell) == fields


@pytest.mark.parametrize(
    ("cell", "words"),
    [
        ("{", r"c='\{': not JSON"),
        ("[" * 100_000, "c=.*not JSON"),
        (b"\xff", "not JSON"),
        ("[1]", r"c=\[1\]: a JSON schema is an object"),
        (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"), "column 'c': not valid UTF-8 text"),
        (3, "c=3: a JSON schema is an object"),
        ('{"type": "json_schema"}', "c.json_schema=None: has the schema under the name schema"),
        ('{"type": "json_schema", "json_schema": []}', "c.json_schema"),
    ],
)
def test_others_are_refused_with_value_rule_and_remedy(cell: Any, words: str) -> None:
    with pytest.raises(RequestError, match=words):
        of_cell("c", cell)


def config(structured: Any) -> RunConfig:
    return RunConfig(input="in", output="out", model="tiny", sampling=SamplingParams(structured_outputs=structured))


def test_what_cannot_be_compiled_is_found_without_an_engine() -> None:
    for fine in ({"json": {"type": "integer"}}, {"regex": "a|b"}, {"choice": ["yes", "no"]}, {"json_object": True}):
        check_structure(config(fine))
    for bad, words in (
        (
            {"json": {"type": "array", "contains": {}}},
            r"sampling.structured_outputs.json#/contains=.*would not be enforced",
        ),
        ({"json": {"type": "string", "minLength": 3, "maxLength": 2}}, "cannot be compiled"),
        ({"regex": "(?=a)b"}, "sampling.structured_outputs.regex"),
        ({"grammar": "start: missing"}, "sampling.structured_outputs.grammar"),
    ):
        with pytest.raises(ConfigError, match=words):
            check_structure(config(bad))
        assert set(grammar_faults([{"structured_outputs": bad}], config(None))) == {0}


def test_rows_read_no_files(tmp_path: Path) -> None:
    (tmp_path / "schema.json").write_text('{"type": "integer"}')
    for cell in ({"json": {"file": str(tmp_path / "schema.json")}}, {"file": str(tmp_path / "schema.json")}):
        fields = of_cell("c", json.dumps(cell))
        fault = grammar_faults([{"structured_outputs": fields}], config(None))[0]
        assert re.search(r"file=.*would not be enforced", fault.message)


def test_a_tag_that_texts_leave_out_needs_the_token_ids() -> None:
    special = [t["content"] for t in _added() if t["special"]]
    assert special, "the shipped model has special tokens"
    tagged = {"json": {"type": "integer"}, "after": special[-1]}
    run = RunConfig(
        input="in",
        output="out",
        model="tiny",
        include_token_ids=False,
        sampling=SamplingParams(structured_outputs=tagged),
    )
    with pytest.raises(ConfigError, match=r"include_token_ids=False: .*special token"):
        check_structure(run)


def _added() -> list[dict[str, Any]]:

    return json.loads(resolved_model(config({"regex": "a"})).tokenizer.to_json())["added_tokens"]


def test_a_field_that_is_misspelt_in_a_cell_is_not_taken_for_a_schema() -> None:
    for cell, meant in (({"choices": ["a", "b"]}, "choice"), ({"chioce": ["a"]}, "choice"), ({"regexp": "a"}, "regex")):
        with pytest.raises(RequestError, match=f"Did you mean '{meant}'"):
            of_cell("c", cell)
    assert of_cell("c", {"choices": 1, "type": "object"}) == {"json": {"choices": 1, "type": "object"}}
    assert of_cell("c", {}) == {"json": {}}


def test_tags_that_are_special_tokens_come_back_where_they_stood() -> None:
    config = RunConfig(input=[], output="none", model="tiny")
    tokenizer = resolved_model(config).tokenizer
    tags = ("<|im_start|>", "<|im_end|>")
    for text in ("<|im_start|>why<|im_end|>so<|im_end|>", "why<|im_end|>so", "<|im_start|>why", "so", "a<|im_end|>"):
        ids = tokenizer.encode(text)
        found = with_special_tags(config, tags, tokenizer.decode(ids), ids)
        assert found == ("<|im_start|>why<|im_end|>so" if text.count("<|im_end|>") == 2 else text)


def test_calls_whose_tag_text_leaves_out_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    config = RunConfig(input=[], output="none", model="tiny", tools=[{"name": "f"}])
    check_structure(config)
    monkeypatch.setattr(structures, "OPEN", "<|im_start|>")  # a special token of this model
    with pytest.raises(ConfigError, match=r"tool_choice='auto': .* is a special token"):
        check_structure(config)
