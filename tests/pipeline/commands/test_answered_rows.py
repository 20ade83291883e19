"""Rows with answers: the tokens are those of a run, and a row that cannot be used has a reason."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pipeline
from pipeline.commands import run as run_module
from pipeline.commands.answered_rows import AnsweredRow, answered_rows
from pipeline.commit import lease
from pipeline.errors import ConfigError, PipelineError
from testing.pipeline.fakes import InlineExecutor
from wedlm_core.llm import LLM
from wedlm_core.model.sources import resolve
from wedlm_core.tokenizer import Tokenizer

TINY = Tokenizer.load(resolve("tiny"))
END = TINY.eos_token_ids[0]


def rows_of(place: object, answer_column: str | None = None, length: int = 200, **settings: Any) -> list[AnsweredRow]:
    found = answered_rows(str(place), model="tiny", length=length, answer_column=answer_column, settings=settings)
    return list(found)


def jsonl(path: Path, *rows: Any) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def chat(*messages: str) -> list[int]:
    roles = ("user", "assistant")
    return TINY.apply_chat_template([{"role": roles[i % 2], "content": text} for i, text in enumerate(messages)])


def answer(text: str) -> list[int]:
    return [*TINY.encode(text), END]


def test_prompts_and_answers_have_the_tokens_of_a_run(tmp_path: Path) -> None:
    place = jsonl(tmp_path / "in.jsonl", {"q": "Sort 3 2.", "a": "2 3"}, {"q": "Copy: sea.", "a": "sea"})
    first, second = rows_of(place, "a", prompt_column="q")
    assert (first.row, list(first.prompt), list(first.answer)) == ("in.jsonl:0", chat("Sort 3 2."), answer("2 3"))
    assert (second.fault, list(second.prompt)) == (None, chat("Copy: sea."))
    (plain, _) = rows_of(place, "a", prompt_column="q", chat=False)
    assert list(plain.prompt) == TINY.encode_prompt("Sort 3 2.")
    (written, _) = rows_of(place, "a", prompt_template="{{ q }} Now.")
    assert list(written.prompt) == chat("Sort 3 2. Now.")


def test_files_of_every_format_are_read(tmp_path: Path) -> None:
    table = pa.table({"prompt": ["Copy: sea."], "a": ["sea"]})
    pq.write_table(table, tmp_path / "in.parquet")
    (tmp_path / "in.csv").write_text("prompt,a\nCopy: sea.,sea\n")
    for name in ("in.parquet", "in.csv", "*.csv"):
        (row,) = rows_of(tmp_path / name, "a")
        assert (list(row.prompt), list(row.answer)) == (chat("Copy: sea."), answer("sea"))


def test_a_compressed_file_of_several_slices_is_read_in_order(tmp_path: Path) -> None:
    with gzip.open(tmp_path / "in.jsonl.gz", "wt") as file:
        file.writelines(json.dumps({"prompt": "Hi", "a": str(i)}) + "\n" for i in range(1100))
    found = rows_of(tmp_path / "in.jsonl.gz", "a", chat=False)
    assert [one.row for one in found[1022:1026]] == [f"in.jsonl.gz:{i}" for i in range(1022, 1026)]
    assert [list(one.answer) for one in found] == [answer(str(i)) for i in range(1100)]
    assert len(rows_of(tmp_path / "in.jsonl.gz", "a", limit=7)) == 7


def test_every_turn_of_the_assistant_is_an_example_after_the_messages_before_it(tmp_path: Path) -> None:
    talk = [{"role": role, "content": text} for role, text in
            (("user", "Hi."), ("assistant", "Hello."), ("user", "Sort 2 1."), ("assistant", "1 2"))]  # fmt: skip
    shared = [{"from": "human", "value": "Copy: sea."}, {"from": "gpt", "value": "sea"}]
    place = jsonl(tmp_path / "in.jsonl", {"messages": talk}, {"messages": shared})
    found = [(one.row, list(one.prompt), list(one.answer)) for one in rows_of(place)]
    assert found == [
        ("in.jsonl:0", chat("Hi."), answer("Hello.")),
        ("in.jsonl:0", chat("Hi.", "Hello.", "Sort 2 1."), answer("1 2")),
        ("in.jsonl:1", chat("Copy: sea."), answer("sea")),
    ]


def test_a_row_that_cannot_be_used_has_a_reason_and_the_others_stay(tmp_path: Path) -> None:
    rows = [{"prompt": "Copy: sea.", "a": "sea"}, {"prompt": None, "a": "x"}, {"prompt": "Hi", "a": None},
            {"prompt": "Hi", "a": ""}, {"prompt": "Hi " * 300, "a": "x"}, {"prompt": "Hi", "a": "ends<|im_end|>early"},
            {"prompt": "a<|mask|>b", "a": "x"}]  # fmt: skip
    found = rows_of(jsonl(tmp_path / "in.jsonl", *rows), "a")
    assert [one.fault is None for one in found] == [True, *[False] * 6]
    for one, word in zip(
        found[1:], ("null", "null", "empty", "at most", "special token", "special token"), strict=True
    ):
        assert word in str(one.fault)
        assert not one.prompt
    talks = [{"messages": [{"role": "user", "content": "Hi"}]}, {"messages": []}, {"messages": None},
             {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": ""}]}]  # fmt: skip
    faults = [one.fault for one in rows_of(jsonl(tmp_path / "talks.jsonl", *talks))]
    assert len(faults) == 4
    assert all(faults)
    texts = ['[{"role": "user", "content": "Hi"}, {"role": "assistant", "content": 5}]', "no JSON", '{"role": "user"}',
             '[{"role": "assistant", "content": "Hi"}]',
             '[{"role": 3, "content": "x"}, {"role": "assistant"}]']  # fmt: skip
    faults = [one.fault for one in rows_of(jsonl(tmp_path / "texts.jsonl", *({"messages": text} for text in texts)))]
    assert len(faults) == 5
    assert all(faults)


@pytest.mark.parametrize(
    ("rows", "column", "words"),
    [
        ([{"prompt": "a", "b": "c"}], "answer", r"^data.answer_column='answer': .* has no such column. It has"),
        ([{"prompt": "a", "b": "c"}], None, r"^data.messages_column='messages': .* has no such column"),
        ([{"q": "a", "b": "c"}], "b", "no column prompt, messages"),
        ([], "b", "no rows|no such column"),
    ],
)
def test_columns_that_are_not_there_and_empty_files_are_refused(
    tmp_path: Path, rows: list[Any], column: str | None, words: str
) -> None:
    with pytest.raises((ConfigError, PipelineError), match=words):
        rows_of(jsonl(tmp_path / "in.jsonl", *rows), column)


@pytest.mark.parametrize("name", ["model", "columns", "task"])
def test_settings_of_prompts_that_training_sets_itself_are_refused(tmp_path: Path, name: str) -> None:
    place = jsonl(tmp_path / "in.jsonl", {"prompt": "a", "b": "c"})
    with pytest.raises(ConfigError, match=rf"data.prompts=\['{name}'\]: training sets these itself"):
        next(answered_rows(str(place), model="tiny", length=99, answer_column="b", settings={name: "x"}))


@pytest.fixture
def _inline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Units run in this process, on the shipped model."""
    engine: Any = lambda: LLM("tiny", device="cpu").engine  # noqa: E731
    monkeypatch.setattr(run_module, "RayExecutor", lambda config, stop: InlineExecutor(engine=engine))
    monkeypatch.setattr(lease, "_SETTLE_SECONDS", 0.0)


@pytest.mark.usefixtures("_inline")
def test_of_the_conversations_of_a_run_the_last_answer_is_read(tmp_path: Path) -> None:
    place = jsonl(tmp_path / "in.jsonl", {"asked": ["Count from 3 to 7.", "Count from 3 to 7."]}, {"asked": [""]})
    pipeline.run(
        input=str(place), output=str(tmp_path / "out"), model="tiny", turns_column="asked", progress="none",
        sampling={"max_tokens": 8},
    )  # fmt: skip
    second, failed = rows_of(tmp_path / "out")  # the first answer was cut, and the output does not tell
    said = pipeline.read(tmp_path / "out", format="arrow")["messages"][0].as_py()
    assert list(second.prompt) == chat(*(message["content"] for message in said[:3]))
    assert (second.row, second.fault, failed.fault) == ("in.jsonl:0", None, "the run failed it")


@pytest.mark.usefixtures("_inline")
def test_the_output_of_a_run_is_read_as_it_is(tmp_path: Path) -> None:
    asked = ["3 to 9", None, "5 to 30", "1 to 4"]
    place = jsonl(tmp_path / "in.jsonl", *({"text_of": text, "note": "n"} for text in asked))
    pipeline.run(
        input=str(place), output=str(tmp_path / "out"), model="tiny", prompt_template="Count from {{ text_of }}.",
        chat=True, column_prefix="gen_", sampling={"max_tokens": 30}, progress="none",
    )  # fmt: skip
    found = rows_of(tmp_path / "out")
    assert [one.fault for one in found] == [None, "the run failed it", "the run cut its text at max_tokens", None]
    assert list(found[0].prompt) == chat("Count from 3 to 9.")
    assert list(found[0].answer) == answer("3, 4, 5, 6, 7, 8, 9")
    assert found[3].row == "in.jsonl:3"
    pipeline.filter(tmp_path / "out", to=str(tmp_path / "best"), keep="gen_finish_reason = 'stop'")
    assert rows_of(tmp_path / "best") == [found[0], found[3]], "a filter's output has the prompts of its source"
