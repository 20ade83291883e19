"""A prompt that kills the process which makes it ready, in real Ray tasks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import ray

import pipeline
from pipeline import layout
from pipeline.cluster.executor import RayExecutor, _explained
from pipeline.cluster.private_ray import LOOPBACK, on_loopback
from pipeline.cluster.session import PRIVATE_SYSTEM_CONFIG
from pipeline.commands.run import run_on
from pipeline.config import RunConfig
from pipeline.errors import ResourceError, SourceError
from pipeline.storage.open import open_storage
from testing.pipeline.deadly_engines import harmless_engine
from testing.pipeline.deadly_readers import POISON
from testing.pipeline.fakes import MemoryStorage
from testing.repository import ROOT

HOOK = "testing.pipeline.deadly_readers.make_readers_mortal"


@pytest.fixture
def killing_readers() -> Iterator[None]:
    """A session in whose workers making the poison prompt ready is death by signal 9."""
    # The hook is imported by name, before Ray adds the driver's own path to the worker's.
    with session({"worker_process_setup_hook": HOOK, "env_vars": {"PYTHONPATH": str(ROOT)}}):
        yield


@contextmanager
def session(runtime_env: dict[str, Any]) -> Iterator[None]:
    """A private session whose workers have ``runtime_env``."""
    ray.shutdown()  # of a test before, which reading an output may have started
    with on_loopback():
        ray.init(
            address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, _node_ip_address=LOOPBACK,
            _system_config=PRIVATE_SYSTEM_CONFIG, runtime_env=runtime_env,
        )  # fmt: skip
    try:
        yield
    finally:
        ray.shutdown()


def test_a_prompt_that_kills_the_process_that_tokenises_it_is_quarantined(
    killing_readers: None, qwen3_folder: Path, tmp_path: Path
) -> None:
    prompts = [f"Count from {i}." if i != 6 else POISON for i in range(12)]
    pq.write_table(pa.table({"prompt": prompts, "k": list(range(12))}), tmp_path / "in.parquet")
    config = RunConfig(
        input=str(tmp_path / "in.parquet"), output=str(tmp_path / "out"), model=str(qwen3_folder), unit_rows=4
    )
    executor = RayExecutor(config, harmless_engine)  # type: ignore[arg-type]
    summary = run_on(executor, config, open_storage(config.output, layout.SCRATCH), lambda progress: None)
    assert (summary.total.rows, summary.total.failed_rows) == (12, 1)
    table = pipeline.read(config.output, format="arrow")
    assert [k for k, e in zip(*(table[n].to_pylist() for n in ("k", "error")), strict=True) if e] == [6]
    dead = pipeline.read(config.output, table="dead_letters", format="arrow").to_pylist()
    assert [(row["k"], row["error_class"]) for row in dead] == [(6, "QuarantinedRow")]
    assert "tokenised" in dead[0]["error"]
    assert pipeline.verify(config.output, input=config.input).ok


@pytest.mark.slow(reason="waits for Ray to give up: 35 s")
def test_a_session_whose_processes_cannot_start_is_an_error_and_no_hang(qwen3_folder: Path, tmp_path: Path) -> None:
    pq.write_table(pa.table({"prompt": ["a"]}), tmp_path / "in.parquet")
    with session({"worker_process_setup_hook": "there_is_no.such_hook"}), pytest.raises(ResourceError) as caught:
        pipeline.run(str(tmp_path / "in.parquet"), output=str(tmp_path / "out"), model=str(qwen3_folder))
    assert "3 of them in a row" in str(caught.value)
    assert "runtime environment" in str(caught.value)


def test_an_error_of_ours_is_one_line_whatever_ray_data_adds_to_it() -> None:
    from ray.data._internal.util import _annotate_exception_with_retry_context as annotated

    said = "a.parquet: it was changed during the run. Restore the file."
    error = annotated(
        SourceError(said), description="execute read task", attempts=1, max_attempts=1, total_backoff_s=0.0,
        exception_str=said,
    )  # fmt: skip
    assert "retried_io_errors" in str(error)
    assert str(_explained(error, MemoryStorage(), 0.0)) == said
