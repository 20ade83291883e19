"""Runs whose outputs call tools, by the real engine: forced calls by a grammar, free ones made by a form."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import pipeline
from pipeline import layout
from pipeline.commands.export import export
from pipeline.commands.run import run_on
from pipeline.commands.summary import RunSummary
from pipeline.commands.verify import verify
from pipeline.config import RunConfig
from pipeline.errors import ConfigError
from pipeline.storage.open import open_storage
from testing.pipeline.fakes import RealExecutor
from testing.pipeline.openai_batch import CHAT, chat_line, parsed_results, write_batch

ARGUMENTS = {
    "type": "object",
    "properties": {"city": {"enum": ["Oslo", "Lima"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
WEATHER = {"name": "get_weather", "description": "The weather.", "parameters": ARGUMENTS}
CLOCK = {"name": "now"}
CALL = '<tool_call>{"name": "now", "arguments": {}}</tool_call>'
OTHER = CALL.replace("now", "then")


def settings(output: Path, rows: list[dict[str, Any]], **more: Any) -> RunConfig:
    sampling = {"max_tokens": 128, **more.pop("sampling", {})}
    return RunConfig.from_mapping({
        "input": rows, "output": str(output), "model": "tiny", "unit_rows": 3, "report": False, "chat": True,
        "sampling": sampling, **more,
    })  # fmt: skip


def run(config: RunConfig) -> RunSummary:
    storage = open_storage(config.output, layout.SCRATCH, config.output_options)
    return run_on(RealExecutor(), config, storage, lambda progress: None)


def rows_of(output: Path, table: Any = "rows") -> list[dict[str, Any]]:
    return pipeline.read(str(output), table=table).to_arrow().to_pylist()


def test_free_calls_are_read_and_others_counted(tmp_path: Path) -> None:
    texts = [f"Wait. {CALL}{CALL}", OTHER, "<tool_call>{", "none", CALL]
    rows = [{"prompt": CALL, "wanted": json.dumps({"choice": [text]}), "tools": [CLOCK]} for text in texts]
    rows[4]["tools"] = []
    config = settings(tmp_path / "out", rows, tools_column="tools", tool_choice="auto",
                      sampling_columns={"structured_outputs": "wanted"})  # fmt: skip
    summary = run(config)
    found = rows_of(tmp_path / "out")
    assert [row["text"] for row in found] == texts
    names = [None if row["tool_calls"] is None else [call["name"] for call in row["tool_calls"]] for row in found]
    assert names == [["now", "now"], [], [], [], None]
    assert summary.total.unparsed == {"tool_calls:call": 1, "tool_calls:tool": 1}
    assert "of 5 generations 1 with a call that is no JSON" in summary.describe()
    assert verify(str(tmp_path / "out")).ok
    run(settings(tmp_path / "again", rows, tools_column="tools", tool_choice="auto", actors=1, unit_rows=1,
                 sampling_columns={"structured_outputs": "wanted"}))  # fmt: skip
    assert [row["tool_calls"] for row in rows_of(tmp_path / "again")] == [row["tool_calls"] for row in found]


@pytest.mark.parametrize("choice", ["required", {"name": "get_weather"}])
def test_forced_calls_obey_the_schema_of_the_function(tmp_path: Path, choice: Any) -> None:
    rows = [{"prompt": text} for text in ("Weather in Oslo?", "Hello", CALL)]
    run(settings(tmp_path / "out", rows, tools=[WEATHER], tool_choice=choice, sampling={"temperature": 1.5}))
    for row in rows_of(tmp_path / "out"):
        calls = row["tool_calls"]
        assert row["finish_reason"] == "length" or calls
        assert choice == "required" or len(calls) == 1
        for call in calls:
            arguments = json.loads(call["arguments"])
            assert set(arguments) == {"city", "days"}
            assert arguments["city"] in ("Oslo", "Lima")
            assert 1 <= arguments["days"] <= 9


def test_a_row_with_bad_tools_fails_alone(tmp_path: Path) -> None:
    bad = [{"name": "f", "parameters": {"type": "object", "properties": {"a": {"if": {}, "then": {}}}}}]
    rows = [{"prompt": "a", "t": json.dumps(tools)} for tools in ([CLOCK], [{"name": ""}], bad, [], [WEATHER, CLOCK])]
    run(settings(tmp_path / "out", rows, tools_column="t", tool_choice={"name": "now"}))
    assert [row["finish_reason"] for row in rows_of(tmp_path / "out")] == ["stop", *["error"] * 3, "stop"]
    first, second, third = (row["error"] for row in rows_of(tmp_path / "out", "dead_letters"))
    assert "tools.name=''" in first
    assert "the tools are ['f']" in second
    assert "the tools are []" in third


def test_a_schema_that_is_not_enforced_is_a_failure(tmp_path: Path) -> None:
    bad = [{"name": "f", "parameters": {"type": "object", "properties": {"a": {"contains": {}}}}}]
    rows = [{"prompt": "a", "t": json.dumps(tools)} for tools in (bad, [CLOCK])]
    run(settings(tmp_path / "out", rows, tools_column="t", tool_choice="required"))
    assert rows_of(tmp_path / "out")[0]["finish_reason"] == "error"
    assert "would not be enforced" in rows_of(tmp_path / "out", "dead_letters")[0]["error"]


def test_settings_that_cannot_be_obeyed_are_refused(tmp_path: Path) -> None:
    rows = [{"prompt": "a"}]
    with pytest.raises(ConfigError, match="there are no tools"):
        run(settings(tmp_path / "a", rows, tool_choice="auto"))
    with pytest.raises(ConfigError, match="do not go through the chat template"):
        run(settings(tmp_path / "b", rows, tools=[CLOCK], chat=False))


def test_a_batch_gives_and_gets_the_forms_of_openai(tmp_path: Path) -> None:
    tools = [{"type": "function", "function": tool} for tool in (WEATHER, CLOCK)]
    named = {"type": "function", "function": {"name": "get_weather"}}
    free = {"structured_outputs": {"choice": [f"So. {CALL}"]}}
    lines = [
        chat_line("named", tools=tools, tool_choice=named, max_tokens=128),
        chat_line("free", tools=tools, parallel_tool_calls=False, **free),
        chat_line("none", tools=tools, tool_choice="none", **free),
        chat_line("plain", **free),
        chat_line("other", tools=tools, tool_choice={"type": "function", "function": {"name": "x"}}),
        chat_line("both", tools=tools, tool_choice="required", response_format={"type": "json_object"}),
        chat_line("odd", tools=tools, tool_choice={"type": "allowed_tools", "allowed_tools": {}}),
    ]
    write_batch(tmp_path / "in.jsonl", lines)
    batch = {"input": str(tmp_path / "in.jsonl"), "model": "tiny", "report": False}
    run(RunConfig(output=str(tmp_path / "out"), tool_choice="auto", **batch))
    export(str(tmp_path / "out"), tmp_path / "a.jsonl")
    found = parsed_results(tmp_path / "a.jsonl", dict.fromkeys((line["custom_id"] for line in lines), CHAT))
    choices = {name: answer.choices[0] for name, answer in found.items()}
    assert {name: choice.finish_reason for name, choice in choices.items()} == {
        "named": "tool_calls", "free": "tool_calls", "none": "stop", "plain": "stop"
    }  # fmt: skip
    (call,) = choices["named"].message.tool_calls
    assert (call.function.name, choices["named"].message.content) == ("get_weather", None)
    assert set(json.loads(call.function.arguments)) == {"city", "days"}
    assert choices["free"].message.content == "So."
    assert choices["plain"].message.content == choices["none"].message.content == f"So. {CALL}"
    failed = (tmp_path / "a_errors.jsonl").read_text(encoding="utf-8").splitlines()
    errors = [json.loads(line)["response"]["body"]["error"] for line in failed]
    assert [error["param"] for error in errors] == ["tool_choice", "structured_outputs", "tool_choice"]
    run(RunConfig(output=str(tmp_path / "without"), **batch))
    messages = [row["error"] for row in rows_of(tmp_path / "without", "dead_letters")]
    assert 'set tool_choice="auto" for the run' in messages[0]
