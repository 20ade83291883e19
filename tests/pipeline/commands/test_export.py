"""Results of an OpenAI batch: lines that the official client's types accept, one to a request, the same every time."""

from __future__ import annotations

import json
import os
import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import wedlm_core
from pipeline import layout
from pipeline.codec import FinishReason, Generation, Request, SamplingParams
from pipeline.commands import export as exporting
from pipeline.commands.export import export
from pipeline.commands.read import read
from pipeline.commands.run import run_on
from pipeline.commands.verify import verify
from pipeline.config import RunConfig
from pipeline.errors import ConfigError, DamagedError, FingerprintError, OutputError, SourceError
from pipeline.storage.open import open_storage
from testing.pipeline.fakes import FakeEngine, InlineExecutor, RealExecutor
from testing.pipeline.openai_batch import CHAT, chat_line, completion_line, parsed_results, write_batch
from testing.pipeline.s3 import S3Server

PROMPT = "Count from 3 to 9."
LINES: list[Any] = [
    chat_line("chat", max_completion_tokens=32),
    chat_line("samples", n=3, temperature=1.0, seed=5, max_tokens=24, logprobs=True, top_logprobs=2, user="somebody"),
    completion_line("text", max_tokens=24, logprobs=3),
    completion_line("short", max_tokens=2, logprobs=0),
    completion_line("ids", wedlm_core.LLM("tiny").get_tokenizer().encode_prompt(PROMPT), max_tokens=24),
    chat_line("roles", messages=[{"role": "developer", "content": "Be brief."}, {"role": "user", "content": PROMPT}]),
    chat_line("format", tool_choice="required"),
    chat_line("model", model="gpt-4o"),
    chat_line("hot", temperature=-1),
    completion_line("long", "1 " * 3000),
    completion_line("two", ["a", "b"]),
    {**chat_line("get"), "method": "GET"},
    {**chat_line("embed"), "url": "/v1/embeddings"},
    {"custom_id": "nobody", "method": "POST", "url": CHAT, "body": "text"},
    "no json at all",
    {**chat_line("more"), "priority": 1},
]
ANSWERED = ["chat", "samples", "text", "short", "ids", "roles"]
FAILED = ["format", "model", "hot", "long", "two", "get", "embed", "nobody", "batch.jsonl:14", "more"]
URLS = {line["custom_id"]: line["url"] for line in LINES if isinstance(line, dict)}


class FailingEngine(FakeEngine):
    """Fails at prompts that begin with token 3, as the real engine does where logits are not numbers."""

    @staticmethod
    def _finish(request: Request) -> Generation:
        made = FakeEngine._finish(request)
        if request.prompt_token_ids[0] != 3:
            return made
        return replace(made, finish_reason=FinishReason.ERROR, error="logits are not numbers")


def run(config: RunConfig, executor: InlineExecutor | None = None) -> None:
    storage = open_storage(config.output, layout.SCRATCH, config.output_options)
    run_on(executor or InlineExecutor(), config, storage, lambda progress: None)


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run over the lines, by the real engine and the shipped model."""
    folder = tmp_path_factory.mktemp("batch")
    config = RunConfig(
        input=str(write_batch(folder / "batch.jsonl", LINES)), output=str(folder / "out"), model="tiny", unit_rows=3,
        sampling=SamplingParams(window_size=16),  # so that no step costs need to be measured first
    )  # fmt: skip
    run(config, RealExecutor())
    return folder / "out"


@pytest.fixture(scope="module")
def results(output: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    done = export(output, output.parent / "answers.jsonl")
    assert (done.lines, done.failed) == (len(ANSWERED), len(FAILED))
    assert done.errors_to.endswith("answers_errors.jsonl")
    return parsed_results(Path(done.to), URLS), parsed_results(Path(done.errors_to), URLS)


def test_every_request_has_one_line_in_input_order(results: tuple[dict[str, Any], dict[str, Any]]) -> None:
    answers, errors = results
    assert list(answers) == ANSWERED
    assert list(errors) == FAILED


def test_answers_are_the_published_rows(output: Path, results: tuple[dict[str, Any], dict[str, Any]]) -> None:
    answers, _ = results
    rows = {(row["row_id"], row["sample_index"]): row for row in read(output)}
    assert {key[0] for key in rows} == {*ANSWERED, *FAILED}, "custom ids are the ids of rows"
    for custom_id, answer in answers.items():
        own = [row for (row_id, _), row in sorted(rows.items()) if row_id == custom_id]
        is_chat = URLS[custom_id] == CHAT
        assert [choice.message.content if is_chat else choice.text for choice in answer.choices] == [
            row["text"] for row in own
        ]
        assert [choice.finish_reason for choice in answer.choices] == [row["finish_reason"] for row in own]
        assert [choice.index for choice in answer.choices] == list(range(len(own)))
        assert answer.usage.prompt_tokens == own[0]["prompt_tokens"]
        assert answer.usage.completion_tokens == sum(row["completion_tokens"] for row in own)
        assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
        assert answer.model == "tiny"
    assert len(answers["samples"].choices) == 3
    assert len({row["seed"] for key, row in rows.items() if key[0] == "samples"}) == 3
    assert answers["chat"].choices[0].message.content.strip().startswith("3, 4, 5")
    assert answers["ids"].choices[0].text == answers["text"].choices[0].text
    assert answers["short"].choices[0].finish_reason == "length"


def test_log_probabilities_have_their_forms(output: Path, results: tuple[dict[str, Any], dict[str, Any]]) -> None:
    answers, _ = results
    rows = {(row["row_id"], row["sample_index"]): row for row in read(output)}
    for choice in answers["samples"].choices:
        content, row = choice.logprobs.content, rows["samples", choice.index]
        assert [token.logprob for token in content] == row["logprobs"]
        assert all(len(token.top_logprobs) == 2 for token in content)
        spoken = content[:-1] if choice.finish_reason == "stop" else content
        assert b"".join(bytes(token.bytes) for token in spoken).decode() == row["text"]
    text = answers["text"].choices[0].logprobs
    assert len(text.tokens) == len(text.token_logprobs) == len(text.top_logprobs) == len(text.text_offset)
    assert "".join(text.tokens[:-1]) == answers["text"].choices[0].text
    assert [text.tokens[i] for i in range(3)] == [max(top, key=top.get) for top in text.top_logprobs[:3]]
    whole = "".join(text.tokens)
    assert [whole[at:].startswith(token) for at, token in zip(text.text_offset, text.tokens, strict=True)]
    alone = answers["short"].choices[0].logprobs
    assert (len(alone.tokens), alone.top_logprobs) == (2, None)
    assert answers["chat"].choices[0].logprobs is None


def test_failed_requests_say_what_is_wrong_and_with_what(results: tuple[dict[str, Any], dict[str, Any]]) -> None:
    _, errors = results
    assert {error.type for error in errors.values()} == {"invalid_request_error"}
    named = {custom_id: (error.param, error.code) for custom_id, error in errors.items()}
    assert named["format"] == ("tool_choice", "RequestError")
    assert named["model"] == ("model", "RequestError")
    assert named["hot"] == ("temperature", "RequestError")
    assert named["long"] == ("prompt", "context_length_exceeded")
    assert named["two"] == ("prompt", "RequestError")
    assert (named["get"][0], named["embed"][0], named["nobody"][0]) == ("method", "url", "body")
    assert named["batch.jsonl:14"] == (None, "SourceError")
    assert "served_model_names=['gpt-4o']" in errors["model"].message
    assert "temperature=-1: a finite number, 0 or more" in errors["hot"].message


def test_rows_that_fail_while_they_run_have_no_response(tmp_path: Path) -> None:
    lines = [completion_line(str(i), [i + 1], max_tokens=3) for i in range(4)]
    config = RunConfig(input=str(write_batch(tmp_path / "b.jsonl", lines)), output=str(tmp_path / "out"), model="tiny")
    run(config, InlineExecutor(engine=FailingEngine))
    export(tmp_path / "out", tmp_path / "r.jsonl")
    errors = parsed_results(tmp_path / "r_errors.jsonl", {})
    assert errors == {"2": {"code": "GenerationError", "message": "logits are not numbers"}}
    assert list(parsed_results(tmp_path / "r.jsonl", {str(i): "" for i in range(4)})) == ["0", "1", "3"]


def test_the_same_output_gives_the_same_bytes_and_another_run_other_ids(output: Path, tmp_path: Path) -> None:
    first, again = tmp_path / "one.jsonl", tmp_path / "two.jsonl"
    for to in (first, again):
        export(str(output), to, errors_to=tmp_path / f"{to.stem}.errors")
    assert first.read_bytes() == again.read_bytes()
    assert (tmp_path / "one.errors").read_bytes() == (tmp_path / "two.errors").read_bytes()
    ids = [json.loads(line)["id"] for line in first.read_text().splitlines()]
    assert len(set(ids)) == len(ids)
    lines = [{**completion_line(name, "x"), "body": {"prompt": "x", "max_tokens": 2}} for name in ANSWERED]
    config = RunConfig(
        input=str(write_batch(tmp_path / "b.jsonl", lines)), output=str(tmp_path / "out"), model="tiny", seed=1
    )
    run(config)
    export(tmp_path / "out", again)
    assert not set(ids) & {json.loads(line)["id"] for line in again.read_text().splitlines()}


def test_verify_proves_it_against_the_input(output: Path) -> None:
    found = verify(str(output), input=str(output.parent / "batch.jsonl"))
    assert found.ok, found.problems
    assert found.rows == len(LINES)


def test_a_write_that_fails_leaves_what_was_there(
    output: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "r.jsonl").write_text("before")

    def fail(*args: Any) -> str:
        raise OSError("no space")

    monkeypatch.setattr(exporting, "failed_line", fail)
    with pytest.raises(OSError, match="no space"):
        export(output, tmp_path / "r.jsonl")
    assert [path.name for path in tmp_path.iterdir()] == ["r.jsonl"]
    assert (tmp_path / "r.jsonl").read_text() == "before"


def test_a_kill_between_the_two_files_loses_no_request(
    output: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    moved, replaced = list[str](), os.replace

    def replace_one(source: Any, target: Any) -> None:
        if moved:
            raise KeyboardInterrupt
        replaced(source, target)
        moved.append(Path(target).name)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", replace_one)
        with pytest.raises(KeyboardInterrupt):
            export(output, tmp_path / "r.jsonl")
    assert moved == ["r.jsonl"], "the answers appear first, so a request that is answered now is never in neither"


def test_unfinished_files_of_a_killed_export_are_removed_by_the_next(output: Path, tmp_path: Path) -> None:
    for name in ("r.jsonl", "r_errors.jsonl"):
        left = tmp_path / f".wedlm-export-{name}"
        left.mkdir()
        (left / f"{name}.0123456789ab").write_text("half a li")
    export(output, tmp_path / "r.jsonl")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["r.jsonl", "r_errors.jsonl"]


def test_to_a_store(output: Path, s3: S3Server, tmp_path: Path) -> None:
    import s3fs

    bucket = s3.bucket(f"b{uuid.uuid4().hex[:12]}")
    export(output, f"{bucket}/results/r.jsonl", to_storage_options=s3.options)
    export(output, tmp_path / "r.jsonl")
    fs = s3fs.S3FileSystem(**s3.options)
    for name in ("r.jsonl", "r_errors.jsonl"):
        assert fs.cat_file(f"{bucket}/results/{name}") == (tmp_path / name).read_bytes()
    assert len(fs.find(bucket)) == 2


def test_a_prefix_a_format_and_samples_across_parts(tmp_path: Path) -> None:
    lines = [completion_line(f"r{i}", f"prompt {i}", n=2 + i % 3, max_tokens=4) for i in range(40)]
    config = RunConfig(
        input=str(write_batch(tmp_path / "b.jsonl", lines)), output=str(tmp_path / "out"), model="tiny",
        column_prefix="gen_", output_format="jsonl", unit_rows=2, target_part_bytes=3000,
    )  # fmt: skip
    run(config)
    assert len(list((tmp_path / "out").glob("data-*/*"))) > 2
    export(tmp_path / "out", tmp_path / "r.jsonl")
    found = parsed_results(tmp_path / "r.jsonl", dict.fromkeys((f"r{i}" for i in range(40)), ""))
    assert [len(answer.choices) for answer in found.values()] == [2 + i % 3 for i in range(40)]


def test_faults_of_the_caller_are_named(output: Path, tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="no run was begun there"):
        export(tmp_path / "none", tmp_path / "r.jsonl")
    with pytest.raises(ConfigError, match=r"format='csv': one of \['openai-batch'\]"):
        export(output, tmp_path / "r.jsonl", format="csv")
    with pytest.raises(ConfigError, match=r"a folder\. Name a file in it"):
        export(output, f"{tmp_path}/")
    with pytest.raises(ConfigError, match=r"a folder\. Name a file in it"):
        export(output, tmp_path)
    with pytest.raises(ConfigError, match="the file of the answers"):
        export(output, tmp_path / "r.jsonl", errors_to=tmp_path / "r.jsonl")
    rows = RunConfig(input=[{"prompt": "x"}], output=str(tmp_path / "rows"), model="tiny")
    run(rows)
    with pytest.raises(OutputError, match="its input was no OpenAI batch"):
        export(tmp_path / "rows", tmp_path / "r.jsonl")


def test_a_failed_row_without_its_dead_letter_is_damage(tmp_path: Path) -> None:
    config = RunConfig(input=str(write_batch(tmp_path / "b.jsonl", [completion_line("a"), completion_line("b", "")])),
                       output=str(tmp_path / "out"), model="tiny")  # fmt: skip
    run(config)
    (letters,) = (tmp_path / "out" / layout.DEAD_LETTERS).iterdir()
    table = pq.read_table(letters)
    pq.write_table(table.slice(0, 0), letters)
    with pytest.raises(DamagedError, match="'b' has no dead letter"):
        export(tmp_path / "out", tmp_path / "r.jsonl")
    assert not (tmp_path / "r.jsonl").exists()


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"chat": True}, "chat=True: an OpenAI batch has prompts and parameters in its bodies"),
        ({"system_prompt": "x"}, "system_prompt='x'"),
        ({"sampling_columns": {"n": "custom_id"}}, "sampling_columns"),
        ({"id_column": "url"}, "id_column='url': an OpenAI batch's is custom_id"),
        ({"columns": ["custom_id"]}, "columns=.*Add 'url'"),
        ({"include_token_ids": False}, "include_token_ids=False"),
        ({"input_format": "openai-batch", "prompt_column": "body"}, "prompt_column='body'"),
    ],
)
def test_settings_about_other_rows_are_refused(tmp_path: Path, fields: dict[str, Any], words: str) -> None:
    path = write_batch(tmp_path / "b.jsonl", [chat_line("a")])
    with pytest.raises(ConfigError, match=words):
        run(RunConfig(input=str(path), output=str(tmp_path / "out"), model="tiny", **fields))


def test_ids_are_unique_or_the_batch_is_refused(tmp_path: Path) -> None:
    path = write_batch(tmp_path / "b.jsonl", [completion_line("a"), completion_line("b"), completion_line("a")])
    with pytest.raises(SourceError, match=r"rows 0 and 2 .* have the same id"):
        run(RunConfig(input=str(path), output=str(tmp_path / "out"), model="tiny"))
    write_batch(path, ["junk", completion_line("b.jsonl:0")])
    with pytest.raises(SourceError, match=r"rows 0 and 1 .* have the same id"):
        run(RunConfig(input=str(path), output=str(tmp_path / "out"), model="tiny", input_format="openai-batch"))


def test_a_continued_run_keeps_to_its_kind(tmp_path: Path) -> None:
    path = write_batch(tmp_path / "b.jsonl", [completion_line("a"), completion_line("b", model="m")])
    config = RunConfig(input=str(path), output=str(tmp_path / "out"), model="tiny")
    run(config)
    run(config)
    other = RunConfig(input=str(path), output=str(tmp_path / "out"), model="tiny", prompt_template="{{ custom_id }}")
    with pytest.raises(FingerprintError, match="input_format: was 'openai-batch'"):
        run(other)
    with pytest.raises(FingerprintError, match="served_model_names"):
        run(RunConfig(input=str(path), output=str(tmp_path / "out"), model="tiny", served_model_names=["m"]))
    assert read(str(tmp_path / "out"), committed=True, format="arrow").num_rows == 2


def test_other_names_of_the_model_may_be_allowed(tmp_path: Path) -> None:
    path = write_batch(tmp_path / "b.jsonl", [completion_line("a", model="m"), completion_line("b", model="n")])
    for names, failed in ((["m"], 1), (["m", "n"], 0), (["*"], 0)):
        config = RunConfig(
            input=str(path), output=str(tmp_path / "-".join(names)), model="tiny", served_model_names=names
        )
        run(config)
        assert export(config.output, tmp_path / "r.jsonl").failed == failed
