"""Rows are decoded once more, step by step: the same tokens, within bounds, or a reason why not."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline import layout
from pipeline.codec import EngineConfig, SamplingParams
from pipeline.commands.read import read
from pipeline.commands.run import run_on
from pipeline.config import RunConfig
from pipeline.plan.job import Job, resolve_job
from pipeline.sources import source_of
from pipeline.storage.open import open_storage
from pipeline.worker import row_traces
from pipeline.worker.engine_thread import EngineThread
from pipeline.worker.row_traces import Traced, rows_that_succeeded, trace_rows
from testing.pipeline.fakes import InlineExecutor
from wedlm_core.llm import LLM

PROMPTS = [f"Count from {i} to {i + 5}." for i in range(12)]


@pytest.fixture(scope="module")
def engine() -> Any:
    return LLM("tiny", config=EngineConfig(max_num_seqs=16)).engine


def done(folder: Path, engine: Any, **fields: Any) -> tuple[Job, pa.Table]:
    """A run of the shipped model in this process: its job, and its published rows."""
    folder.mkdir(parents=True, exist_ok=True)
    table = pa.table({"prompt": PROMPTS, "limit": [20 + i for i in range(len(PROMPTS))]})
    pq.write_table(table, folder / "in.parquet")
    given = {"sampling": SamplingParams(max_tokens=40), **fields}
    config = RunConfig(input=str(folder / "in.parquet"), output=str(folder / "out"), model="tiny", **given)
    storage = open_storage(config.output, layout.SCRATCH)
    run_on(InlineExecutor(engine=lambda: engine), config, storage)
    return resolve_job(config, source_of(config, storage), storage), read(config.output, format="arrow")


@pytest.mark.parametrize("strategy", ["verified", "reference", "streaming", "blockwise", "autoregressive"])
def test_the_tokens_are_those_of_the_output(tmp_path: Path, engine: Any, strategy: str) -> None:
    sampling = SamplingParams(max_tokens=40, strategy=strategy, window_size=8)
    job, rows = done(tmp_path, engine, sampling=sampling)
    found = trace_rows(job, engine, rows, 3)
    assert found.reasons == ()
    assert [trace.row_id for trace in found.traces] == rows["row_id"].to_pylist()[:3]
    for trace, row in zip(found.traces, rows.to_pylist(), strict=False):
        assert trace.same is True
        assert trace.whole
        assert list(trace.token_ids) == row["token_ids"]
        assert "".join(trace.pieces) == row["text"]
        assert trace.prompt.rstrip().endswith(row["prompt"])
        assert sum(len(f.committed) for f in trace.forwards) == row["completion_tokens"]
        assert len(trace.forwards) == row["stats"]["decode_forwards"]
        assert len(trace.plain_pieces) == len(trace.plain_ids) > 0
    assert Traced.from_json(found.to_json()) == found
    assert len(found.to_json()) < 60_000
    assert not engine.config.trace, "the engine is unchanged"


def test_rows_with_their_own_parameters_seeds_and_samples(tmp_path: Path, engine: Any) -> None:
    sampling = SamplingParams(max_tokens=40, n=2, temperature=1.0)
    job, rows = done(tmp_path, engine, sampling=sampling, sampling_columns={"max_tokens": "limit"}, seed=7,
                     column_prefix="g_")  # fmt: skip
    chosen = rows_that_succeeded([rows], 6, "g_")
    assert chosen is not None
    found = trace_rows(job, engine, chosen, 6)
    assert [trace.same for trace in found.traces] == [True] * 6
    assert {trace.sample_index for trace in found.traces} == {0, 1}


def test_rows_that_cannot_be_made_again_have_a_reason(tmp_path: Path, engine: Any) -> None:
    job, rows = done(tmp_path, engine)
    other = replace(job, config=replace(job.config, sampling=SamplingParams(max_tokens=39)))
    assert trace_rows(other, engine, rows, 2).traces == ()
    assert "parameters have changed" in trace_rows(other, engine, rows, 2).reasons[0]
    seeded = replace(job, config=replace(job.config, seed=5))
    assert "seed has changed" in trace_rows(seeded, engine, rows, 2).reasons[0]
    assert "does not hold the columns" in trace_rows(job, engine, rows.drop_columns(["prompt"]), 2).reasons[0]
    secret = rows.set_column(rows.column_names.index("text"), "text", pa.array(["s3://a:hunter2@b/c"] * rows.num_rows))
    assert "credential" in trace_rows(job, engine, secret, 2).reasons[0]
    assert trace_rows(job, object(), rows, 2).reasons == ("this engine cannot trace",)


def test_other_tokens_than_those_of_the_output_are_noticed(tmp_path: Path, engine: Any) -> None:
    job, rows = done(tmp_path, engine)
    place = rows.column_names.index("token_ids")
    changed = rows.set_column(place, rows.schema.field(place), pa.array([[5, 6]] * rows.num_rows, pa.list_(pa.int32())))
    assert [trace.same for trace in trace_rows(job, engine, changed, 2).traces] == [False, False]
    without = trace_rows(job, engine, rows.drop_columns(["token_ids"]), 2)
    assert [trace.same for trace in without.traces] == [True, True], "then texts are compared"


def test_long_rows_are_traced_up_to_a_limit_and_slow_ones_for_a_time(
    tmp_path: Path, engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, rows = done(tmp_path, engine)
    monkeypatch.setattr(row_traces, "TOKENS", 8)
    for trace in trace_rows(job, engine, rows, 2).traces:
        assert not trace.whole
        assert trace.same is True, "its tokens are the first of the row's"
        assert 8 <= len(trace.token_ids) < trace.tokens
    monkeypatch.setattr(row_traces, "SECONDS", 0.0)
    late = trace_rows(job, engine, rows, 2)
    assert late.traces == ()
    assert "no token came" in late.reasons[0]
    assert not engine.has_work(), "nothing is left"


def test_the_first_rows_that_succeeded_are_chosen_and_no_more_tables_are_read(tmp_path: Path, engine: Any) -> None:
    _, rows = done(tmp_path, engine)
    place = rows.column_names.index("finish_reason")
    failed = pa.array(["error", *rows["finish_reason"].to_pylist()[1:]], rows.schema.field(place).type)
    rows = rows.set_column(place, rows.schema.field(place), failed)
    for size in (1, 5, 12):
        pieces = iter([rows.slice(first, size) for first in range(0, rows.num_rows, size)])
        chosen = rows_that_succeeded(pieces, 4)
        assert chosen is not None
        assert chosen["row_id"].to_pylist() == rows["row_id"].to_pylist()[1:5]
        assert sum(piece.num_rows for piece in pieces) == max(0, 12 - -(-5 // size) * size)
    assert rows_that_succeeded([], 4) is None
    assert rows_that_succeeded([rows.slice(0, 1)], 4) is None


def test_tasks_run_when_the_engine_is_idle_and_what_they_raise_is_theirs(engine: Any) -> None:
    thread = EngineThread(engine)
    assert thread.when_idle(lambda own: own is engine).result(10) is True
    with pytest.raises(ZeroDivisionError):
        thread.when_idle(lambda own: 1 / 0).result(10)
    assert thread.when_idle(lambda own: json.dumps({})).result(10) == "{}", "the thread goes on"
    thread.close()
