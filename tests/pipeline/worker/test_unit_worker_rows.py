"""Every kind of bad row is one clear failure of that row alone, through the real engine; and sources of prompts."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pipeline import layout
from pipeline.codec import SamplingParams
from pipeline.commands.read import read
from pipeline.commands.run import run_on
from pipeline.config import RunConfig
from pipeline.errors import ConfigError, SourceError
from pipeline.plan.job import resolve_job
from pipeline.plan.units import plan_units
from pipeline.prompts.tokenize import PROMPT_IDS, prepare_table
from pipeline.sources import source_of
from pipeline.storage.local import LocalStorage
from testing.pipeline.fakes import InlineExecutor
from wedlm_core import LLM
from wedlm_core.tokenizer import Tokenizer

LENGTH = 512
"""Of the test model."""
GOOD = "Count from 3 to 9."
ROLE = {"role": "user", "content": "hi"}
SURROGATE = "half a pair: \ud800"


def broken_utf8() -> pa.Table:
    raw = pa.array([b"fine", b"\xff\xfe", b"also"], pa.binary())
    return pa.table({"prompt": pa.Array.from_buffers(pa.string(), 3, raw.buffers())})


def around(rows: list[Any], good: Any) -> list[Any]:
    """Bad rows between good ones."""
    return [good, *rows, good]


def params(name: str, values: list[Any]) -> tuple[Any, dict[str, Any]]:
    rows = [{"prompt": GOOD, "own": value} for value in [None, *values, None]]
    return rows, {"sampling_columns": {name: "own"}}


CASES: dict[str, tuple[Any, dict[str, Any], list[tuple[str, str]]]] = {
    "text": (
        around([{"prompt": ""}, {"prompt": None}, {"prompt": 7}, {"prompt": ["x"]}, "a string of its own", 3,
                {"prompt": GOOD, "more": 1}, {"prompt": SURROGATE}, {"prompt": "x " * 900}], {"prompt": GOOD}),
        {},
        [("RequestError", "not empty"), ("RequestError", "never null"), ("SourceError", "int 7"),
         ("SourceError", "list"), ("ok", ""), ("SourceError", "mapping"), ("ok", ""),
         ("SourceError", "prompt"), ("RequestError", f"at most {LENGTH} tokens")],
    ),
    "text that is not UTF-8": (broken_utf8(), {}, [("RequestError", "UTF-8")]),
    "messages": (
        around([{"messages": m} for m in ("[]", "{", '{"role": "user"}', '[{"role": "user"}]', '[{"content": "x"}]',
                                          '["x"]', '[{"role": "user", "content": 5}]', None)],
               {"messages": json.dumps([ROLE])}),
        {},
        [("RequestError", "at least one message"), ("RequestError", "not JSON"), ("RequestError", "list of mappings"),
         ("RequestError", "content"), ("RequestError", "role"), ("RequestError", "list of mappings"),
         ("RequestError", "content"), ("RequestError", "never null")],
    ),
    "token ids": (
        pa.table({"prompt_token_ids": pa.array([[5], [], None, [-1], [9999], [5] * 600, [5]], pa.list_(pa.int64()))}),
        {},
        [("RequestError", "at least one token"), ("RequestError", "never null"), ("RequestError", "0 or more"),
         ("RequestError", r"ids are in [0, 336)"), ("RequestError", f"at most {LENGTH} tokens")],
    ),
    "template": (
        around([{"q": "", "a": None}, {"q": "x", "a": {"b": None}}, {"q": "x", "a": None}], {"q": "x", "a": {"b": 1}}),
        {"prompt_template": "{% if q %}{{ q }} {{ a.b + 1 }}{% endif %}"},
        [("RequestError", "not empty"), ("TemplateRenderError", "TypeError"), ("TemplateRenderError", "b")],
    ),
    "temperature": (*params("temperature", [-1.0, float("inf")]), [("RequestError", "temperature")] * 2),
    "max_tokens": (*params("max_tokens", [-1, 10_000]),
                   [("RequestError", "max_tokens=-1"), ("RequestError", f"at most {LENGTH} tokens")]),
    "text for a number": (*params("max_tokens", ["many", "4"]),
                          [("RequestError", "max_tokens='many'"), ("RequestError", "max_tokens='4'")]),
    "window_size": (*params("window_size", [0, 4000]), [("RequestError", "window_size=0"), ("RequestError", "4000")]),
    "stop": (*params("stop", [[""], ["x", None]]), [("RequestError", "stop=")] * 2),
    "tools": (
        around([{"prompt": GOOD, "t": "{"}, {"prompt": GOOD, "t": "[1]"}], {"prompt": GOOD, "t": None}),
        {"tools_column": "t", "chat": True},
        [("RequestError", "not JSON"), ("RequestError", "list of mappings")],
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def engine(qwen3_folder: Path) -> Any:
    return LLM(str(qwen3_folder)).engine


@pytest.mark.parametrize("case", CASES)
def test_each_bad_row_is_one_clear_failure_and_harms_no_other(
    case: str, qwen3_folder: Path, tmp_path: Path, engine: Any
) -> None:
    source, fields, expected = CASES[case]
    config = RunConfig(
        input=source, output=str(tmp_path / "out"), model=str(qwen3_folder), sampling=SamplingParams(max_tokens=3),
        **fields,
    )  # fmt: skip
    run_on(InlineExecutor(engine=lambda: engine), config, LocalStorage(config.output, layout.SCRATCH), lambda p: None)
    rows = read(config.output, format="arrow").select(["row_id", "finish_reason", "text", "error"]).to_pylist()
    dead = read(config.output, table="dead_letters", format="arrow")
    letters = {d["row_id"]: d for d in dead.select(["row_id", "error_class", "error", "attempt"]).to_pylist()}
    assert len(rows) == len(expected) + 2, "every row is there once"
    for row, (kind, words) in zip(rows, [("ok", ""), *expected, ("ok", "")], strict=True):
        if kind == "ok":
            assert row["finish_reason"] != "error", row["error"]
            assert row["text"] is not None
            assert row["row_id"] not in letters
        else:
            assert row["finish_reason"] == "error", row
            assert letters[row["row_id"]]["error_class"] == kind
            assert words in row["error"]
            assert letters[row["row_id"]]["error"] == row["error"]
            assert letters[row["row_id"]]["attempt"] == 1


def prompt_ids(source: Any, model: Path, folder: Path, **fields: Any) -> list[Any]:
    config = RunConfig(input=source, output=str(folder / "out"), model=str(model), **fields)
    storage = LocalStorage(config.output, layout.SCRATCH)
    job = resolve_job(config, source_of(config, storage), storage)
    (unit,) = plan_units(job.source, 1000, "f")
    return prepare_table(next(job.source.read([unit.rows])), unit, job)[PROMPT_IDS].to_pylist()


def test_a_template_makes_prompts_of_columns_and_the_chat_template_goes_around_them(
    qwen3_folder: Path, tmp_path: Path
) -> None:
    tokenizer = Tokenizer.load(qwen3_folder)
    rows = [{"question": "2 + 3?", "options": ["5", "6"], "row": "mine", "a name": 1}]
    template = "{{ question }}{% for o in options %}\n- {{ o }}{% endfor %}\n"
    text = "2 + 3?\n- 5\n- 6\n"
    assert prompt_ids(rows, qwen3_folder, tmp_path / "a", prompt_template=template) == [tokenizer.encode(text)]
    chat = [tokenizer.apply_chat_template([{"role": "user", "content": text}])]
    assert prompt_ids(rows, qwen3_folder, tmp_path / "b", prompt_template=template, chat=True) == chat
    other = [{"a name": 1, "prompt": "no"}]
    whole = prompt_ids(other, qwen3_folder, tmp_path / "c", prompt_template="{{ row['a name'] }}!")
    assert whole == [tokenizer.encode("1!")]


@pytest.mark.parametrize(
    ("template", "error", "words"),
    [
        ("{{ question", ConfigError, "not a Jinja template"),
        ("", ConfigError, "not empty"),
        ("{{ qestion }}", SourceError, r"\['qestion'\].*\['question'\]"),
    ],
)
def test_a_template_that_cannot_work_is_refused_before_the_run(
    template: str, error: type[Exception], words: str, qwen3_folder: Path, tmp_path: Path
) -> None:
    with pytest.raises(error, match=words):
        prompt_ids([{"question": "x"}], qwen3_folder, tmp_path, prompt_template=template)


def test_a_template_cannot_reach_into_the_process(qwen3_folder: Path, tmp_path: Path) -> None:
    reach = "{{ q.__class__.__mro__[1].__subclasses__() }}"
    assert prompt_ids([{"q": "x"}], qwen3_folder, tmp_path, prompt_template=reach) == [None]


TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"a": "number"}}}]
WITH_TOOLS = (
    "{% for t in tools or [] %}<tool>{{ t.function.name }}:{{ t.function.parameters | tojson }}{% endfor %}"
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}"
    "{% for c in m.tool_calls or [] %}<call>{{ c.function.name }}{% endfor %}{% endfor %}"
)


def test_tools_and_tool_messages_pass_through_the_chat_template(qwen3_folder: Path, tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    for path in qwen3_folder.iterdir():
        (model / path.name).write_bytes(path.read_bytes())
    settings = json.loads((model / "tokenizer_config.json").read_text())
    (model / "tokenizer_config.json").write_text(json.dumps({**settings, "chat_template": WITH_TOOLS}))
    messages = [
        {"role": "user", "content": "2 + 3?"},
        {"role": "assistant", "tool_calls": [{"function": {"name": "add", "arguments": "{}"}}]},
        {"role": "tool", "name": "add", "content": "5"},
    ]
    text = '<tool>add:{"a": "number"}[user]2 + 3?[assistant]<call>add[tool]5'
    expected = [Tokenizer.load(model).encode(text)]
    as_json = [{"messages": json.dumps(messages), "tools": json.dumps(TOOLS)}]
    assert prompt_ids(as_json, model, tmp_path / "json", tools_column="tools") == expected
    as_structs = pa.table({"messages": [messages], "tools": [TOOLS]})
    assert prompt_ids(as_structs, model, tmp_path / "structs", tools_column="tools") == expected
    plain = [{"prompt": "hi", "tools": json.dumps(TOOLS)}, {"prompt": "hi", "tools": None}]
    got = prompt_ids(plain, model, tmp_path / "plain", tools_column="tools", chat=True)
    assert got == [Tokenizer.load(model).encode(t) for t in ('<tool>add:{"a": "number"}[user]hi', "[user]hi")]


def test_variables_of_the_chat_template_come_from_the_run_and_from_a_column(qwen3_folder: Path, tmp_path: Path) -> None:
    model = tmp_path / "model"
    shutil.copytree(qwen3_folder, model)
    settings = json.loads((model / "tokenizer_config.json").read_text())
    template = "{{ messages[0].content }}{{ enable_thinking }}{{ tone }}"
    (model / "tokenizer_config.json").write_text(json.dumps({**settings, "chat_template": template}))
    common = {"chat": True, "chat_template_kwargs": {"enable_thinking": False}}
    rows = pa.table({"prompt": ["a", "b", "c", "d"], "k": ['{"tone": 1}', None, '{"enable_thinking": 5}', "[1]"]})
    encode = Tokenizer.load(model).encode
    plain = prompt_ids(rows.select(["prompt"]), model, tmp_path / "plain", **common)
    assert plain == [encode(f"{text}False") for text in "abcd"]
    own = prompt_ids(rows, model, tmp_path / "own", chat_template_kwargs_column="k", **common)
    assert own == [encode("aFalse1"), encode("bFalse"), encode("c5"), None]
    structs = pa.table({"q": ["a", "b"], "k": [{"enable_thinking": True, "tone": None}, {"tone": "!"}]})
    made = {**common, "prompt_template": "{{ q }}", "chat_template_kwargs_column": "k"}
    assert prompt_ids(structs, model, tmp_path / "structs", **made) == [encode("aTrue"), encode("bFalse!")]
    with pytest.raises(ConfigError, match=r"chat_template_kwargs=.*do not go through the chat template.*chat=True"):
        prompt_ids(rows, model, tmp_path / "unused", chat_template_kwargs={"enable_thinking": False})


def test_features_of_the_sampler_are_fields_and_columns(qwen3_folder: Path, tmp_path: Path, engine: Any) -> None:
    """Each row as ``LLM`` gives it with the same parameters, the most likely tokens included."""
    columns = {"repetition_penalty": 1.5, "min_tokens": 3, "bad_words": ["e", "a"], "min_p": 0.1, "logprobs": 2,
               "logit_bias": '{"7": 4.0}', "presence_penalty": 0.5, "frequency_penalty": 0.5}  # fmt: skip
    rows = [{"prompt": "count to 9", **{f"p_{name}": value for name, value in columns.items()}}, {"prompt": "hi"}]
    sampling = SamplingParams(max_tokens=6, temperature=1.0, seed=5)
    config = RunConfig(
        input=rows, output=str(tmp_path / "out"), model=str(qwen3_folder), sampling=sampling,
        sampling_columns={name: f"p_{name}" for name in columns},
    )  # fmt: skip
    run_on(InlineExecutor(engine=lambda: engine), config, LocalStorage(config.output, layout.SCRATCH), lambda p: None)
    found = read(config.output, format="arrow").to_pylist()
    bias = {7: 4.0}
    params = [replace(sampling, **{**columns, "logit_bias": bias}), sampling]  # type: ignore[arg-type]
    expected = LLM(str(qwen3_folder), device="cpu").generate([row["prompt"] for row in rows], params)
    assert [tuple(row["token_ids"]) for row in found] == [g.token_ids for g in expected]
    tops = [[(top["token_id"], top["logprob"]) for top in place] for place in found[0]["top_logprobs"]]
    assert tops == [list(place) for place in expected[0].top_logprobs or ()]
    assert found[1]["top_logprobs"] is None
    assert found[0]["params_hash"] != found[1]["params_hash"]


def test_long_prompts_are_cut_where_the_policy_says_to_what_their_own_max_tokens_leave(
    qwen3_folder: Path, tmp_path: Path
) -> None:
    ids = list(range(5, 5 + 300)) * 2
    rows = pa.table({"prompt_token_ids": [ids, ids[:10], ids, ids], "m": [12, None, 500, LENGTH]})
    common = {"sampling": SamplingParams(max_tokens=100), "sampling_columns": {"max_tokens": "m"}}
    left = prompt_ids(rows, qwen3_folder, tmp_path / "l", on_long_prompt="truncate_left", **common)
    assert left == [ids[-(LENGTH - 12) :], ids[:10], ids[-12:], None]
    right = prompt_ids(rows, qwen3_folder, tmp_path / "r", on_long_prompt="truncate_right", **common)
    assert right == [ids[: LENGTH - 12], ids[:10], ids[:12], None]
    failed = prompt_ids(rows, qwen3_folder, tmp_path / "f", **common)
    assert failed == [None, ids[:10], None, None]


def test_a_prompt_that_was_cut_generates(qwen3_folder: Path, tmp_path: Path, engine: Any) -> None:
    config = RunConfig(
        input=[{"prompt": "count " * 900}], output=str(tmp_path / "out"), model=str(qwen3_folder),
        sampling=SamplingParams(max_tokens=3, ignore_eos=True), on_long_prompt="truncate_left",
    )  # fmt: skip
    run_on(InlineExecutor(engine=lambda: engine), config, LocalStorage(config.output, layout.SCRATCH), lambda p: None)
    (row,) = read(config.output, format="arrow").to_pylist()
    assert (row["prompt_tokens"], row["completion_tokens"], row["error"]) == (LENGTH - 3, 3, None)
