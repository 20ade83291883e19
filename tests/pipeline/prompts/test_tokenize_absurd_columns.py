"""A bad value in a sampling column is one failed row with the message a call would have had; the job goes on."""

from __future__ import annotations

import json
import math
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pipeline import layout
from pipeline.codec import RequestError, SamplingParams, make_requests, params_of_row
from pipeline.commands.read import read
from pipeline.commands.run import run_on
from pipeline.config import RunConfig
from pipeline.storage.local import LocalStorage
from testing.engine.absurd import SAMPLING, name_of
from testing.engine.refusals import assert_clear, assert_refused
from testing.pipeline.fakes import InlineExecutor
from wedlm_core import LLM

GOOD = "Count from 3 to 9."


@pytest.fixture(scope="module")
def engine(qwen3_folder: Path) -> Any:
    return LLM(str(qwen3_folder)).engine


@pytest.mark.parametrize("case", [c for c in SAMPLING if c[1] is not None], ids=name_of)
def test_an_absurd_value_of_a_row_is_refused_as_a_call_refuses_it(case: tuple[str, Any]) -> None:
    name, value = case
    if isinstance(value, float) and value.is_integer():
        return  # a column of integers that holds a null is floating point: 4.0 means 4
    message = assert_refused(lambda: params_of_row(SamplingParams(), {name: value}), f"^{name}=", (RequestError,))
    assert message == assert_refused(lambda: SamplingParams(**{name: value}), f"^{name}=", (RequestError,))


def test_a_row_makes_no_more_requests_than_samples_are_allowed() -> None:
    params = params_of_row(SamplingParams(), {"n": 10_000.0})
    assert len(make_requests("k", "row", [5], params, 0)) == 10_000
    with pytest.raises(RequestError, match=r"^n=10001"):
        params_of_row(SamplingParams(), {"n": 10_001})


COLUMNS: dict[str, pa.Array] = {
    "top_k": pa.array([2**31, 2**62, -2], pa.int64()),
    "min_p": pa.array([math.nan, -0.1, 1.5]),
    "min_tokens": pa.array([2**31, -1, 10_000], pa.int64()),
    "repetition_penalty": pa.array([math.nan, math.inf, 0.0, -1.0]),
    "presence_penalty": pa.array([math.nan, 2.5]),
    "logit_bias": pa.array(["{", "[5]", '{"a": 1}', '{"9999": 1}', '{"5": 1000}', '{"5": NaN}', "7"]),
    "bad_words": pa.array([[""], ["x" * 10_000], [" "], ["z"] * 2000], pa.list_(pa.string())),
    "temperature": pa.array([math.nan, math.inf, -math.inf, 1e308, 1e-40, -0.5]),
    "top_p": pa.array([math.nan, 0.0, 1.5, -math.inf]),
    "max_tokens": pa.array([2**31, 2**62, -1, 2**31 - 1], pa.int64()),
    "n": pa.array([10**9, 2**62, 0, -1], pa.int64()),
    "seed": pa.array([2**63, 2**64 - 1], pa.uint64()),
    "window_size": pa.array([2**62, 2**31, 0, 4000], pa.int64()),
    "entropy_threshold": pa.array([math.nan, math.inf, 1e300, -1.0]),
    "position_penalty": pa.array([math.nan, math.inf, 1e300, -1.0]),
    "stop": pa.array([[""], ["x", None], ["y" * 10_000], ["z"] * 2000], pa.list_(pa.string())),
    "stop_token_ids": pa.array([[-1], [2**40], [336], [None], [5] * 2000], pa.list_(pa.int64())),
    "strategy": pa.array(["", "fast", "VERIFIED", "x" * 10**6]),
    "ignore_eos": pa.array([1, 0, 2], pa.int8()),
    "logprobs": pa.array(["true", "no"]),
    "top_p as a decimal": pa.array([Decimal("0.5"), Decimal("99.99")]),
    "top_k as bools": pa.array([True, False]),
    "max_tokens as floats": pa.array([math.inf, 1e300, 4.5, -2.0]),
    "temperature as text": pa.array(["0.7", ""]),
    "temperature as bytes": pa.array([b"\xff", b"1"], pa.binary()),
    "seed as a struct": pa.array([{"a": 1}, {"a": None}]),
}


@pytest.mark.parametrize("case", COLUMNS)
def test_an_absurd_cell_is_one_failed_row_with_a_clear_message(
    case: str, qwen3_folder: Path, tmp_path: Path, engine: Any
) -> None:
    name, bad = case.split(" as ")[0], COLUMNS[case]
    none = pa.nulls(1, bad.type)
    column = pa.concat_arrays([none, bad, none])
    table = pa.table({"prompt": [GOOD] * len(column), "own": column})
    rows = run(table, {name: "own"}, qwen3_folder, tmp_path, engine)
    assert len(rows) == len(column), "every row is there once"
    assert [row["error"] for row in (rows[0], rows[-1])] == [None, None]
    for row in rows[1:-1]:
        assert row["finish_reason"] == "error", row
        assert_clear(row["error"], rf"^({name}|prompt \+ {name})(\[\d+\])?=")


def run(source: Any, columns: dict[str, str], model: Path, folder: Path, engine: Any) -> list[dict[str, Any]]:
    config = RunConfig(
        input=source, output=str(folder / "out"), model=str(model), sampling=SamplingParams(max_tokens=3),
        sampling_columns=columns,
    )  # fmt: skip
    run_on(InlineExecutor(engine=lambda: engine), config, LocalStorage(config.output, layout.SCRATCH), lambda p: None)
    return read(config.output, format="arrow").select(["finish_reason", "text", "error"]).to_pylist()


def test_numbers_of_a_json_lines_file_that_nothing_holds_are_failed_rows(
    qwen3_folder: Path, tmp_path: Path, engine: Any
) -> None:
    """Text is where any number can stand: beyond 64 bits, beyond floats, beyond Python's limit."""
    cells = ["2", "1e999", "-1e999", str(2**70), str(10**400), "9" * 5000, "2"]
    lines = [f'{{"prompt": {json.dumps(GOOD)}, "own": {cell}}}' for cell in cells]
    (tmp_path / "in.jsonl").write_text("\n".join(lines) + "\n")
    rows = run(str(tmp_path / "in.jsonl"), {"max_tokens": "own"}, qwen3_folder, tmp_path, engine)
    assert [row["finish_reason"] == "error" for row in rows] == [False, True, True, True, True, True, False]
    for row in rows[1:-1]:
        assert row["error"]
        assert "\n" not in row["error"]
        assert len(row["error"]) < 700


def test_a_row_whose_logits_are_no_numbers_is_never_published(qwen3_folder: Path, tmp_path: Path) -> None:
    """A token's embedding is damaged: rows that hold it fail, all others stay the same."""
    llm = LLM(str(qwen3_folder))
    prompts = [[5, 6, 7], [5, 50, 7], [9] * 70, [50] * 70, [11]]
    table = pa.table({"prompt_token_ids": pa.array(prompts, pa.list_(pa.int64()))})
    before = run(table, {}, qwen3_folder, tmp_path / "before", llm.engine)
    damaged = LLM(str(qwen3_folder))
    damaged.engine._runner.model.embed.weight[50] = math.nan
    after = run(table, {}, qwen3_folder, tmp_path / "after", damaged.engine)
    for prompt, ours, theirs in zip(prompts, after, before, strict=True):
        if 50 in prompt:
            assert (ours["finish_reason"], ours["text"]) == ("error", None)
            assert_clear(ours["error"], "^logits=")
        else:
            assert ours == theirs
