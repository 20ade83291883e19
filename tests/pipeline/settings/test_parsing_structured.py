"""Structured outputs in settings: files are read once, keys are text, and the fingerprint knows the content."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pipeline.codec import RequestError, SamplingParams, StructuredOutputs, params_hash, params_of_row
from pipeline.config import RunConfig
from pipeline.errors import ConfigError
from pipeline.fingerprint import fingerprint_fields
from pipeline.settings.parsing import Parse

SCHEMA = {"type": "object", "properties": {"b": {"type": "integer"}, "a": {"type": "string"}}}


def config(structured: Any, **more: Any) -> RunConfig:
    return RunConfig.from_mapping(
        {"input": "in", "output": "out", "sampling": {"structured_outputs": structured}, **more}
    )  # fmt: skip


def kept(params: SamplingParams) -> StructuredOutputs:
    assert params.structure is not None
    return params.structure


def test_a_file_is_its_content(tmp_path: Path) -> None:
    path = tmp_path / "schema.json"
    path.write_text(json.dumps(SCHEMA), encoding="utf-8-sig")
    of_file = config({"json": {"file": str(path)}})
    assert fingerprint_fields(of_file) == fingerprint_fields(config({"json": SCHEMA}))
    path.unlink()
    assert kept(of_file.sampling).schema == SCHEMA
    (tmp_path / "g.lark").write_text('start: "a"', encoding="utf-8")
    assert kept(config({"grammar": {"file": str(tmp_path / "g.lark")}}).sampling).grammar == 'start: "a"'
    path.write_text(json.dumps(SCHEMA), encoding="utf-8")
    assert Parse(json={"file": str(path)}) == Parse(json=SCHEMA)


def test_mistakes_are_named(tmp_path: Path) -> None:
    absent = str(tmp_path / "none.json")
    for given, named in (
        ({"json": {"file": absent}}, r"sampling.structured_outputs.json.file='.*none.json': cannot be read"),
        ({"json": {"file": 3}}, "json.file=3: a path"),
        ({"json": {"properties": {True: {}}}}, "structured_outputs.json=True: keys are text.*Quote it"),
        ({"json": "{"}, "not JSON"),
        ({"jsn": {}}, "jsn"),
        ({"json": SCHEMA, "regex": "a"}, "exactly one of"),
        ({"json": SCHEMA, "after": ""}, "after"),
    ):
        with pytest.raises(ConfigError, match=named):
            config(given)
    with pytest.raises(ConfigError, match=r"stop=.*structured_outputs says where the output ends"):
        RunConfig.from_mapping(
            {"input": "in", "output": "out", "sampling": {"structured_outputs": {"json": SCHEMA}, "stop": ["x"]}}
        )


def test_runs_without_it_have_the_fingerprint_and_hashes_that_they_had() -> None:
    fields = fingerprint_fields(RunConfig(input="in", output="out"))
    assert not [name for name in fields if "structured" in name or name == "parse"]
    # As version 813e676 gives them.
    assert params_hash(SamplingParams()) == "24f997f017557c81"
    assert params_hash(SamplingParams(top_k=3, n=2)) == "2106dffc2295189b"
    assert Parse(pattern="a").as_dict() == {"pattern": "a", "choices": None, "type": "string"}


def test_the_order_of_keys_counts_as_it_is_the_order_of_the_output() -> None:
    turned = {**SCHEMA, "properties": dict(reversed(SCHEMA["properties"].items()))}  # type: ignore[attr-defined]
    one, other = config({"json": SCHEMA}), config({"json": turned})
    assert fingerprint_fields(one) != fingerprint_fields(other)
    assert params_hash(one.sampling) != params_hash(other.sampling)
    assert params_hash(one.sampling) == params_hash(config({"json": json.dumps(SCHEMA)}).sampling)


def test_a_run_of_one_schema_has_a_typed_column_by_itself() -> None:
    wanted = pa.struct([("b", pa.int64()), ("a", pa.string())])
    assert config({"json": SCHEMA}).parsed["parsed"].field("parsed").type == wanted
    assert config({"json_object": True}).parsed == {"parsed": Parse(json=True)}
    assert config({"regex": "a"}).parsed == {}
    own = config({"json": SCHEMA}, parse={"parsed": {"json": True}, "n": {"pattern": "1"}})
    assert list(own.parsed) == ["parsed", "n"]
    assert own.parsed["parsed"].json is True
    assert config({"json": SCHEMA}, sampling_columns={"structured_outputs": "s"}).parsed == {}
    assert config({"json": SCHEMA}, input_format="openai-batch").parsed == {}


def test_rows_replace_or_drop_what_the_run_asks_for() -> None:
    base = SamplingParams(structured_outputs={"json": SCHEMA})
    assert params_of_row(base, {"structured_outputs": None}) == base
    assert params_of_row(base, {"structured_outputs": {}}).structure is None
    assert kept(params_of_row(base, {"structured_outputs": {"regex": "a"}})).kind == "regex"
    with pytest.raises(RequestError, match="regex"):
        params_of_row(base, {"structured_outputs": {"regex": 3}})
