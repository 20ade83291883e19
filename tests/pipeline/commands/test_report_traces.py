"""Traces that are made of an output later are made with the settings of its run."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipeline.commands.report import trace_output
from pipeline.commit.committed_rows import ROWS, committed_tables
from pipeline.commit.run_record import RunState
from pipeline.errors import ConfigError
from pipeline.fingerprint import fingerprint_fields
from pipeline.plan.job import Job
from pipeline.worker.load_engine import load_engine
from pipeline.worker.row_traces import Traced
from testing.pipeline.chains import SmallChain
from testing.pipeline.exactly_once import SmallJob
from wedlm_core.config import EngineConfig
from wedlm_core.model.checkpoint import read_checkpoint
from wedlm_core.model.smoothing_files import save_smoothing, smooth_checkpoint
from wedlm_core.model.smoothing_names import SMOOTHING_FILE

MakeJob = Callable[[], SmallJob]


def traced(job: SmallJob, loaded: list[Job]) -> Traced:
    """Traces of two rows of an output; the run that is loaded for them is added to ``loaded``."""

    def load(run: Job, num_threads: int | None) -> Any:
        loaded.append(run)
        return load_engine(run, num_threads)

    state = RunState.load(job.storage)
    assert state is not None
    tables = committed_tables(job.storage, ROWS, state, state.schema)
    return trace_output(job.storage, state, tables, str(job.config.model), most=2, load=load)


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"weight_dtype": "int8", "quantised_head": False, "smoothing": "sample", "kv_cache_dtype": "float32"},
        {"weight_dtype": "int8", "dtype": "float16"},
        {"weight_dtype": "int8", "max_window": 8, "max_model_len": 96, "streaming": {"clip": False}},
    ],
)
def test_every_engine_setting_of_the_record_is_that_of_the_run(make_job: MakeJob, changed: dict[str, Any]) -> None:
    """The engine is loaded, which checks that the model and its smoothing are those of the run."""
    job, loaded, engine = make_job(), list[Job](), dict(changed)
    dtype = engine.pop("dtype", "float32")
    config = replace(job.config, dtype=dtype, engine=EngineConfig(**engine))
    job.run(dtype=dtype, engine=config.engine)
    assert len(traced(job, loaded).traces) == 2
    own, again = (
        {name: value for name, value in fingerprint_fields(run).items() if name.startswith("engine.")}
        for run in (config, loaded[0].config)
    )
    assert own == again
    assert loaded[0].config.engine.smoothing == config.engine.smoothing


def test_rows_of_a_later_stage_of_a_chain_are_traced_too(tmp_path: Path, qwen3_folder: Path) -> None:
    chain = SmallChain(tmp_path, qwen3_folder)
    chain.run()
    for storage in chain.storages:
        state = RunState.load(storage)
        assert state is not None
        found = trace_output(
            storage, state, committed_tables(storage, ROWS, state, state.schema), str(qwen3_folder), most=2
        )
        assert len(found.traces) == 2, found.reasons


def test_a_file_that_smoothed_the_weights_is_found_beside_them_or_asked_for(tmp_path: Path, qwen3_folder: Path) -> None:
    model, file, loaded = tmp_path / "model", tmp_path / "mine", list[Job]()
    shutil.copytree(qwen3_folder, model)
    save_smoothing(smooth_checkpoint(read_checkpoint(model), [[5, 9, 2, 7]], "int8"), file)
    job = SmallJob(tmp_path / "job", model)
    job.run(engine=EngineConfig(weight_dtype="int8", smoothing=str(file)))
    with pytest.raises(ConfigError, match=f"^model=.*smoothed by a file.*Give a folder with .* as {SMOOTHING_FILE}"):
        traced(job, loaded)
    shutil.copy(file, model / SMOOTHING_FILE)
    assert len(traced(job, loaded).traces) == 2
    assert loaded[0].config.engine.smoothing == "model"
