"""Conversations as users have them: OpenAI's content parts and ShareGPT's turns; other content fails its row."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from pipeline import layout
from pipeline.codec import RequestError
from pipeline.config import RunConfig
from pipeline.plan.job import resolve_job
from pipeline.plan.units import plan_units, read_units
from pipeline.prompts.conversation import conversation, with_system
from pipeline.prompts.model_files import resolved_model
from pipeline.prompts.tokenize import FAILURE, PROMPT_IDS, prepare_table
from pipeline.sources import open_source
from pipeline.storage.local import LocalStorage
from wedlm_core.tokenizer import Tokenizer


def text(*parts: str) -> list[dict[str, Any]]:
    return [{"type": "text", "text": part} for part in parts]


def user(content: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": content}]


@pytest.mark.parametrize(
    ("content", "joined"),
    [
        ("Say a.", "Say a."),
        (text("Say a."), "Say a."),
        (text("Read this.", "Say a."), "Read this.\nSay a."),
        ([{"type": "text", "text": "a", "image_url": None}, "b", {"text": "c"}], "a\nb\nc"),
        ([{"type": "input_text", "text": "a"}], "a"),
        ([], ""),
    ],
    ids=str,
)
def test_parts_of_text_are_joined(content: Any, joined: str) -> None:
    assert conversation("messages", user(content)) == user(joined)
    assert conversation("messages", json.dumps(user(content))) == user(joined), "as JSON text"


@pytest.mark.parametrize(
    ("part", "named"),
    [({"type": "image_url", "image_url": {"url": "x"}}, "image_url"), ({"type": "input_audio"}, "input_audio"),
     ({"type": "text"}, "text"), (7, "int")],
    ids=str,
)  # fmt: skip
def test_any_other_part_is_an_error_that_names_it(part: Any, named: str) -> None:
    with pytest.raises(RequestError, match=rf"messages\.content.*part of type '{named}'.*the model reads text only"):
        conversation("messages", user([*text("What is this?"), part]))


def test_the_turns_of_sharegpt_are_messages_and_the_recorded_reply_is_what_is_generated() -> None:
    turns = [("system", "Be short."), ("human", "Hi."), ("gpt", "Hello."), ("Human", "Say a."), ("gpt", "a")]
    given = [{"from": speaker, "value": value} for speaker, value in turns]
    roles = ["system", "user", "assistant", "user", "assistant"]
    expected = [{"role": role, "content": value} for role, (_, value) in zip(roles, turns, strict=True)]
    assert conversation("conversations", given) == expected[:-1]
    assert conversation("conversations", given[:-1]) == expected[:-1]
    assert with_system(conversation("conversations", given[1:4]), "S")[0] == {"role": "system", "content": "S"}
    tools = [{"from": "user", "value": "w?"}, {"from": "observation", "value": "42"}]
    assert [message["role"] for message in conversation("conversations", tools)] == ["user", "tool"]
    # OpenAI's messages are continued as they are.
    openai = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    assert conversation("messages", openai) == openai


@pytest.mark.parametrize(
    ("value", "words"),
    [([{"from": "narrator", "value": "x"}], r"conversations\.from.*narrator.*human"),
     ([{"from": "gpt", "value": "x"}], "before the reply"), ([], "at least one message"),
     ([{"from": "human", "value": None}], r"^conversations\.content=None: a message has a text, or tool calls"),
     ([{"role": "user"}], r"^conversations\.content=None"), ([{"role": "user", "content": None}], r"^conversations\.c"),
     ([{"role": "user", "content": None, "tool_calls": []}], r"^conversations\.content=None"),
     ([{"role": "user", "content": [None]}], r"^conversations\.content.*NoneType"), ([None], "^conversations=")],
    ids=["an unknown speaker", "only a reply", "nothing", "a null value", "no content", "null", "no calls",
         "a null part", "a null message"],
)  # fmt: skip
def test_a_conversation_without_a_question_is_an_error(value: Any, words: str) -> None:
    with pytest.raises(RequestError, match=words):
        conversation("conversations", value)


CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": {"a": None, "b": 1}}}
CALLED = [*user("Say a."), {"role": "assistant", "content": None, "tool_calls": [CALL]},
          {"role": "tool", "tool_call_id": "c", "content": "5"}]  # fmt: skip
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"properties": {"a": {"default": None}}}}}
SEEN = "{{ tools | tojson }}{% for m in messages %}{{ m.role }}:{{ m.content }}"
SEEN += "{{ m.tool_calls | tojson if m.tool_calls }};{% endfor %}"


@pytest.mark.parametrize("form", ["objects", "JSON text"])
def test_explicit_nulls_in_tools_and_calls_reach_the_template_as_by_llm_chat(
    qwen3_folder: Path, tmp_path: Path, form: str
) -> None:
    """``content: null`` with calls is OpenAI's form; a default of null is a default."""
    model = tmp_path / "model"
    shutil.copytree(qwen3_folder, model)
    (model / "chat_template.jinja").write_text(SEEN)
    row: dict[str, Any] = {"messages": CALLED, "tools": [TOOL]}
    row = row if form == "objects" else {name: json.dumps(value) for name, value in row.items()}
    _, (got,) = prepared([row], tmp_path, model, tools_column="tools")
    expected = Tokenizer.load(model).apply_chat_template(CALLED, tokenize=False, tools=[TOOL])
    assert '"default": null' in expected
    assert '"a": null' in expected
    assert "assistant:[" in expected, "the content of the call is empty"
    assert got == expected


def test_fields_that_other_rows_have_are_not_nulls_of_a_row(qwen3_folder: Path, tmp_path: Path) -> None:
    model = tmp_path / "model"
    shutil.copytree(qwen3_folder, model)
    (model / "chat_template.jinja").write_text("{{ tools | tojson }}")
    tools = [
        [{"name": "f", "parameters": {"a": {"type": "string"}}}],
        [{"name": "g", "parameters": {"b": {"type": "x"}}}],
    ]
    _, got = prepared([{"messages": user("a"), "tools": one} for one in tools], tmp_path, model, tools_column="tools")
    assert [json.loads(text) for text in got] == tools


def prepared(rows: list[dict[str, Any]], folder: Path, model: Path, name: str = "in.jsonl", **settings: Any) -> Any:
    (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    config = RunConfig(input=str(folder / name), output=str(folder / "out"), model=str(model), **settings)
    storage = LocalStorage(folder / "out", layout.SCRATCH)
    job = resolve_job(config, open_source(config.input, storage), storage)
    (unit,) = plan_units(job.source, 1000, "f")
    table = prepare_table(next(read_units(job.source, [unit])), unit, job)
    decode = resolved_model(config).tokenizer.decode
    ids, failures = table[PROMPT_IDS].to_pylist(), table[FAILURE].to_pylist()
    return job, [decode(own) if own is not None else failure for own, failure in zip(ids, failures, strict=True)]


def test_rows_that_mix_text_and_parts_are_read_from_a_file(qwen3_folder: Path, tmp_path: Path) -> None:
    mixed = [
        [{"role": "system", "content": "Be short."}, {"role": "user", "content": text("Count from 1 to 3.")}],
        user("Count from 1 to 3."),
        user(text("Count from", "1 to 3.")),
        user([*text("What is this?"), {"type": "image_url", "image_url": {"url": "x"}}]),
    ]
    job, got = prepared([{"messages": one, "k": i} for i, one in enumerate(mixed)], tmp_path, qwen3_folder)
    plain = [[{"role": "system", "content": "Be short."}, {"role": "user", "content": "Count from 1 to 3."}],
             user("Count from 1 to 3."), user("Count from\n1 to 3.")]  # fmt: skip
    _, expected = prepared([{"messages": one} for one in plain], tmp_path, qwen3_folder, "plain.jsonl")
    assert got[:3] == expected
    assert "part of type 'image_url'" in got[3]
    assert job.source.schema.field("messages").type == "string", "the column passes through as JSON"


def test_files_of_different_shapes_are_read_together(qwen3_folder: Path, tmp_path: Path) -> None:
    for name, content in (("a", "Say a."), ("b", text("Say a."))):
        (tmp_path / f"{name}.jsonl").write_text(json.dumps({"messages": user(content)}) + "\n")
    storage = LocalStorage(tmp_path / "out", layout.SCRATCH)
    source = open_source(f"{tmp_path}/*.jsonl", storage)
    tables = list(read_units(source, list(plan_units(source, 10, "f"))))
    found = [conversation("messages", table["messages"][0].as_py()) for table in tables]
    assert found == [user("Say a.")] * 2


def test_sharegpt_is_found_by_its_column_where_no_other_prompt_is(qwen3_folder: Path, tmp_path: Path) -> None:
    turns = [{"from": "human", "value": "Say a."}, {"from": "gpt", "value": "a"}]
    job, got = prepared([{"id": "x", "conversations": turns}], tmp_path, qwen3_folder)
    assert (job.prompt_kind, job.prompt_column) == ("messages", "conversations")
    _, expected = prepared([{"messages": user("Say a.")}], tmp_path, qwen3_folder, "plain.jsonl")
    assert got == expected
    both, _ = prepared([{"prompt": "a", "conversations": turns}], tmp_path, qwen3_folder, "both.jsonl")
    assert both.prompt_column == "prompt"
