"""Conversations as users have them: OpenAI's content parts and ShareGPT's turns; what is no text fails its row."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pipeline import layout
from pipeline.codec import RequestError
from pipeline.config import RunConfig
from pipeline.plan.job import resolve_job
from pipeline.plan.units import plan_units, read_units
from pipeline.prompts.conversation import conversation, with_system
from pipeline.prompts.model_files import load_tokenizer
from pipeline.prompts.tokenize import FAILURE, PROMPT_IDS, prepare_table
from pipeline.sources import open_source
from pipeline.storage.local import LocalStorage


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
     ([{"from": "gpt", "value": "x"}], "before the reply"), ([], "at least one message")],
    ids=["an unknown speaker", "only a reply", "nothing"],
)  # fmt: skip
def test_a_conversation_without_a_question_is_an_error(value: Any, words: str) -> None:
    with pytest.raises(RequestError, match=words):
        conversation("conversations", value)


def prepared(rows: list[dict[str, Any]], folder: Path, model: Path, name: str = "in.jsonl") -> Any:
    (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    config = RunConfig(input=str(folder / name), output=str(folder / "out"), model=str(model))
    storage = LocalStorage(folder / "out", layout.SCRATCH)
    job = resolve_job(config, open_source(config.input, storage), storage)
    (unit,) = plan_units(job.source, 1000, "f")
    table = prepare_table(next(read_units(job.source, [unit])), unit, job)
    decode = load_tokenizer(config).decode
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
