"""Codec, engine thread and tokenising: the parts between the files and the engine."""

from __future__ import annotations

import itertools
import json
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline import layout
from pipeline.cluster.prepare_task import pack, unpack
from pipeline.codec import (
    CapacityError,
    Generation,
    Request,
    RequestError,
    SamplingParams,
    make_requests,
    params_of_row,
)
from pipeline.config import RunConfig
from pipeline.errors import ConfigError
from pipeline.plan.job import Job, resolve_job
from pipeline.plan.units import plan_units
from pipeline.prompts.tokenize import PROMPT_IDS, prepare_table
from pipeline.sinks.staged import data_checksum
from pipeline.sources import open_source
from pipeline.storage import retry
from pipeline.storage.local import LocalStorage
from pipeline.storage.retry import with_retries
from pipeline.types import Unit
from pipeline.worker.engine_thread import EngineThread
from pipeline.worker.output_tables import encode_unit
from pipeline.worker.unit_worker import UnitWorker
from testing.pipeline.fakes import FakeEngine
from wedlm_core.model.sources import resolve
from wedlm_core.seeds import row_seed
from wedlm_core.tokenizer import Tokenizer


def job_for(model: Path, rows: Any, folder: Path, **fields: Any) -> Job:
    config = RunConfig(input=rows, output=str(folder / "out"), model=str(model), **fields)
    storage = LocalStorage(folder / "out", layout.SCRATCH)
    return resolve_job(config, open_source(rows, storage), storage)


def prepared(job: Job) -> tuple[Unit, pa.Table]:
    (unit,) = plan_units(job.source, 1000, "f")
    return unit, prepare_table(next(job.source.read([unit.rows])), unit, job)


# --- envelope and checksum -----------------------------------------------------------------------


@given(values=st.lists(st.one_of(st.none(), st.text())))
@settings(max_examples=30, deadline=None)
def test_an_envelope_gives_back_its_table(values: list[str | None]) -> None:
    table = pa.table({"a": pa.array(values, pa.large_string()), "b": pa.array(values).dictionary_encode()})
    block = pack(table)
    assert block.num_rows == 1
    got = unpack(block)
    assert got.schema.equals(table.schema)
    assert got.to_pylist() == table.to_pylist()


@given(
    lists=st.lists(st.one_of(st.none(), st.lists(st.one_of(st.none(), st.text(max_size=3)), max_size=3)), max_size=8),
    cut=st.integers(0, 8),
)
@settings(max_examples=40, deadline=None)
def test_the_checksum_is_the_same_after_parquet_and_slicing(lists: list[Any], cut: int) -> None:
    structs = [None if v is None else {"a": v, "b": len(v)} for v in lists]
    table = pa.table(
        {
            "lists": pa.array(lists, pa.list_(pa.string())),
            "structs": pa.array(structs, pa.struct([("a", pa.list_(pa.string())), ("b", pa.int64())])),
            "kinds": pa.array([None if v is None else str(len(v)) for v in lists], pa.string()).dictionary_encode(),
            "maps": pa.array([None if v is None else [("k", i) for i in range(len(v))] for v in lists],
                             pa.map_(pa.string(), pa.int8())),
            "flags": pa.array([None if v is None else not v for v in lists], pa.bool_()),
        }
    )  # fmt: skip
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    again = pq.read_table(pa.BufferReader(sink.getvalue()))
    names = table.column_names
    assert data_checksum(again, names) == data_checksum(table, names)
    assert data_checksum(again.slice(cut), names) == data_checksum(table.slice(cut), names)
    if len(lists) and lists[0]:
        changed = pa.table({**dict(zip(names, table.columns, strict=True)), "lists": [[*lists[0], "x"], *lists[1:]]})
        assert data_checksum(changed, names) != data_checksum(table, names)


# --- codec ---------------------------------------------------------------------------------------


def test_a_rows_own_parameters_override_and_nulls_keep_the_base() -> None:
    base = SamplingParams(max_tokens=5, temperature=0.5)
    assert params_of_row(base, {"max_tokens": None}) is base
    own = params_of_row(base, {"max_tokens": 7.0, "stop": ["x"], "temperature": None})
    assert (own.max_tokens, own.stop, own.temperature) == (7, ("x",), 0.5)
    with pytest.raises(RequestError, match="max_tokens=-1"):
        params_of_row(base, {"max_tokens": -1})
    with pytest.raises(RequestError, match="nonsense"):
        params_of_row(base, {"nonsense": 1})


def test_seeds_come_from_run_row_and_sample_or_from_the_parameters() -> None:
    drawn = make_requests("k", "row", [1, 2], SamplingParams(n=3), 11)
    assert [r.seed for r in drawn] == [row_seed(11, "row", i) for i in range(3)]
    assert [r.sample_index for r in drawn] == [0, 1, 2]
    assert len({r.request_id for r in drawn}) == 3
    fixed = make_requests("k", "row", [1, 2], SamplingParams(n=2, seed=5), 11)
    assert fixed[0].seed == 5
    assert fixed[1].seed not in (5, drawn[1].seed)


def test_optional_columns_and_the_prefix(qwen3_folder: Path, tmp_path: Path) -> None:
    rows = [{"prompt": "a", "text": "mine", "seed": 3}]
    with pytest.raises(ConfigError, match=r"\['text', 'seed'\].*column_prefix"):
        job_for(qwen3_folder, rows, tmp_path)
    job = job_for(qwen3_folder, rows, tmp_path, column_prefix="gen_", include_token_ids=False)
    assert job.schema.names[:4] == ["prompt", "text", "seed", "gen_row_id"]
    assert "gen_token_ids" not in job.schema.names
    assert "gen_logprobs" not in job.schema.names
    unit, table = prepared(job)
    thread = EngineThread(FakeEngine())
    record = UnitWorker(job, thread).run(unit, table)
    thread.close()
    assert (record.num_rows, record.samples, record.failed_rows) == (1, 1, 0)
    asked = job_for(qwen3_folder, [{"prompt": "a"}], tmp_path, sampling=SamplingParams(logprobs=True))
    assert "logprobs" in asked.schema.names


# --- tokenising ----------------------------------------------------------------------------------


def test_prompts_messages_and_token_ids_become_the_tokenizers_ids(qwen3_folder: Path, tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(qwen3_folder)
    user = [{"role": "user", "content": "hi"}]
    system = [{"role": "system", "content": "be brief"}]

    def ids(rows: list[Any], **fields: Any) -> Any:
        return prepared(job_for(qwen3_folder, rows, tmp_path / str(next(counter)), **fields))[1][PROMPT_IDS].to_pylist()

    counter = itertools.count()
    assert ids([{"prompt": "hi"}]) == [tokenizer.encode("hi")]
    assert ids(["hi"]) == [tokenizer.encode("hi")]
    assert ids([{"prompt": "hi"}], chat=True) == [tokenizer.apply_chat_template(user)]
    assert ids([{"prompt": "hi"}], system_prompt="be brief") == [tokenizer.apply_chat_template(system + user)]
    assert ids([{"messages": user}, {"messages": system + user}]) == [
        tokenizer.apply_chat_template(user),
        tokenizer.apply_chat_template(system + user),
    ]
    assert ids([{"messages": json.dumps(user)}]) == [tokenizer.apply_chat_template(user)]
    assert ids([{"prompt_token_ids": [7, 8]}]) == [[7, 8]]
    assert ids([{"q": "hi"}], prompt_column="q") == [tokenizer.encode("hi")]


def test_a_text_has_the_tokens_around_prompts_unless_it_is_in_the_chat_template(tmp_path: Path) -> None:
    folder = resolve("tiny")
    tokenizer = Tokenizer.load(folder)
    chat = tokenizer.apply_chat_template([{"role": "user", "content": "hi"}])
    plain = tokenizer.encode("hi\n")
    forms: list[tuple[Any, dict[str, Any], list[int]]] = [
        ({"prompt": "hi"}, {}, plain),
        ({"prompt": "hi"}, {"special_tokens_in_text": "text"}, plain),
        ({"q": "h"}, {"prompt_template": "{{ q }}i"}, plain),
        ({"prompt": "hi"}, {"chat": True}, chat),
        ({"prompt": "hi"}, {"chat": True, "special_tokens_in_text": "text"}, chat),
        ({"messages": [{"role": "user", "content": "hi"}]}, {}, chat),
        ({"prompt_token_ids": [7]}, {}, [7]),
    ]
    for i, (row, fields, expected) in enumerate(forms):
        job = job_for(folder, [row], tmp_path / str(i), **fields)
        assert prepared(job)[1][PROMPT_IDS].to_pylist() == [expected], (row, fields)


# --- engine thread and unit worker ---------------------------------------------------------------


def requests_of(unit: int, count: int) -> list[Request]:
    return [
        Request(request_id=f"{unit}/{i}", prompt_token_ids=(9, i + 10), params=SamplingParams(), seed=i + unit)
        for i in range(count)
    ]


def test_units_of_many_threads_share_the_engine_without_a_barrier() -> None:
    gate = threading.Event()

    class Gated(FakeEngine):
        def step(self) -> list[Generation]:
            gate.wait(20)
            return super().step()

    engine = Gated(slots=8)
    thread = EngineThread(engine)
    outcomes: dict[int, dict[str, Any]] = {}
    submitted = threading.Semaphore(0)

    def work(unit: int) -> None:
        future = thread.submit(requests_of(unit, 6))
        submitted.release()
        outcomes[unit] = future.result(timeout=20)

    workers = [threading.Thread(target=work, args=(u,)) for u in range(12)]
    for worker in workers:
        worker.start()
    for _ in workers:
        submitted.acquire()
    gate.set()
    for worker in workers:
        worker.join()
    thread.close()
    assert all(set(outcomes[u]) == {f"{u}/{i}" for i in range(6)} for u in range(12))
    assert engine.most_at_once == 8, "samples of different units ran in one step"


def test_a_row_whose_sample_fails_fails_as_a_whole(qwen3_folder: Path, tmp_path: Path) -> None:
    class TooSmall(FakeEngine):
        def add(self, request: Request) -> None:
            if request.sample_index == 1 and request.prompt_token_ids == (7,):
                raise CapacityError("too big for the pool")
            super().add(request)

    rows = pa.table({"prompt_token_ids": [[7], [8]], "count": [2, 1], "t": [0.0, -1.0]})
    job = job_for(qwen3_folder, rows, tmp_path, sampling_columns={"n": "count", "temperature": "t"})
    unit, table = prepared(job)
    thread = EngineThread(TooSmall())
    results = UnitWorker(job, thread).verdicts(unit, table)
    thread.close()
    assert [r.failure and r.failure.error_class for r in results] == ["CapacityError", "RequestError"]
    out, dead = encode_unit(job, table, results)
    assert out.num_rows == dead.num_rows == 2
    assert "temperature=-1.0" in out["error"].to_pylist()[1]


def test_writes_are_retried_with_growing_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "_FIRST_WAIT_SECONDS", 0.2)
    pauses: list[float] = []
    attempts = iter([OSError("busy"), OSError("busy"), None])

    def flaky() -> str:
        if (error := next(attempts)) is not None:
            raise error
        return "done"

    monkeypatch.setattr(retry.time, "sleep", pauses.append)
    assert with_retries(flaky, "writing") == "done"
    assert len(pauses) == 2
    assert pauses[0] < pauses[1]
