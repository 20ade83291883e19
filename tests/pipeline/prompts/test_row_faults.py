"""Rows are judged before a run as by the engine: a row that it would accept is never refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch

from pipeline import layout
from pipeline.codec import CapacityError, EngineConfig, Request, SamplingParams
from pipeline.config import RunConfig
from pipeline.plan.job import resolve_job
from pipeline.plan.units import plan_units
from pipeline.prompts.row_faults import row_faults
from pipeline.prompts.tokenize import prepare_table
from pipeline.sources import open_source
from pipeline.storage.local import LocalStorage
from wedlm_core.engine import Engine
from wedlm_core.model.weights import load_model
from wedlm_core.tokenizer import Tokenizer

PROMPTS = [[7] * length for length in (1, 40, 70, 72, 88, 100, 130, 150, 159, 160, 180, 190, 250, 330)]
PARAMS = SamplingParams(max_tokens=8, window_size=1)


def refusal(engine: Engine, request: Request) -> tuple[str, str] | None:
    """Class and message of an engine's refusal of a request that its pool cannot hold."""
    try:
        engine.add(request)
    except CapacityError as error:
        return type(error).__name__, str(error)
    return None


@pytest.mark.parametrize(
    ("dtype", "kv", "known"),
    [
        ("float32", "auto", True),
        ("float32", "bfloat16", True),
        ("float32", "fp8_e4m3", True),
        ("float32", "int8", True),
        ("bfloat16", "auto", True),
        ("bfloat16", "float32", True),
        ("auto", "auto", False),
        ("auto", "bfloat16", True),
    ],
)
def test_rows_that_a_pool_cannot_hold_are_those_that_the_engine_refuses(
    qwen3_folder: Path, tmp_path: Path, dtype: Any, kv: Any, known: bool
) -> None:
    """80 tokens of KV in float32, 160 in bfloat16, 320 in 8 bits (fewer with scales), the most where unknown."""
    model = load_model(qwen3_folder, dtype=getattr(torch, "float32" if dtype == "auto" else dtype))
    engine_config = EngineConfig(kv_cache_bytes=80 * 4 * model.config.kv_values_per_token, kv_cache_dtype=kv)
    table = pa.table({"prompt_token_ids": pa.array(PROMPTS, pa.list_(pa.int64()))})
    config = RunConfig(input=table, output=str(tmp_path / "out"), model=str(qwen3_folder), dtype=dtype,
                       engine=engine_config, sampling=PARAMS)  # fmt: skip
    storage = LocalStorage(tmp_path / "out", layout.SCRATCH)
    job = resolve_job(config, open_source(table, storage), storage)
    (unit,) = plan_units(job.source, 1000, "f")
    faults = row_faults(prepare_table(next(job.source.read([unit.rows])), unit, job), job)

    engine = Engine(model, Tokenizer.load(qwen3_folder), engine_config)
    for prompt, fault in zip(PROMPTS, faults, strict=True):
        why = refusal(engine, Request(request_id=str(len(prompt)), prompt_token_ids=tuple(prompt), params=PARAMS))
        if known:
            assert (None if fault is None else (fault.error_class, fault.message)) == why
        else:
            assert fault is None or why is not None, "no row is refused that the engine takes"
    assert {fault is None for fault in faults} == {True, False}
