"""Poison rows and dying actors in real Ray processes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pipeline
from pipeline import layout
from pipeline.cluster.executor import RayExecutor
from pipeline.commands.run import run_on
from pipeline.commands.summary import RunSummary
from pipeline.config import RunConfig
from pipeline.storage.open import open_storage
from testing.pipeline.deadly_engines import (
    DEADLY_TOKEN,
    deadly_row_engine,
    dies_at_start_engine,
    harmless_engine,
)

POISON = 13
pytestmark = pytest.mark.usefixtures("cluster")


@pytest.fixture
def config(qwen3_folder: Path, tmp_path: Path) -> RunConfig:
    ids = [[10 + i, 300 - i] if i != POISON else [10, DEADLY_TOKEN] for i in range(40)]
    pq.write_table(pa.table({"prompt_token_ids": ids, "k": list(range(40))}), tmp_path / "in.parquet")
    return RunConfig(
        input=str(tmp_path / "in.parquet"), output=str(tmp_path / "out"), model=str(qwen3_folder), unit_rows=4
    )


def go(config: RunConfig, load: object) -> RunSummary:
    executor = RayExecutor(config, load)  # type: ignore[arg-type]
    return run_on(executor, config, open_storage(config.output, layout.SCRATCH), lambda progress: None)


def test_a_row_that_kills_its_process_is_quarantined_and_every_other_row_is_done(config: RunConfig) -> None:
    summary = go(config, deadly_row_engine)
    assert (summary.total.rows, summary.total.failed_rows) == (40, 1)
    table = pipeline.read(config.output, format="arrow")
    assert table["k"].to_pylist() == list(range(40))
    assert [k for k, e in zip(*(table[n].to_pylist() for n in ("k", "error")), strict=True) if e] == [POISON]
    (dead,) = pipeline.read(config.output, table="dead_letters", format="arrow").to_pylist()
    assert (dead["k"], dead["error_class"]) == (POISON, "QuarantinedRow")
    assert "2 times" in dead["error"]
    starts = Path(config.output, "starts.txt").read_text().split()
    assert len(starts) - 1 <= 2 + 1, "twice beside others; the rest in children of one more process"
    assert pipeline.verify(config.output, input=config.input).ok

    again = go(replace(config, retry_failed=True), harmless_engine)
    assert (again.session.rows, again.total.failed_rows, again.publications) == (1, 0, ("data-000000-r001",))
    assert pipeline.read(config.output, format="arrow")["error"].null_count == 40
    assert pipeline.read(config.output, table="dead_letters", format="arrow").num_rows == 0
    assert pipeline.verify(config.output, input=config.input).ok


@pytest.mark.slow(reason="six processes: 9 s; test_crash_bisection.py has the same without Ray")
def test_many_rows_in_a_row_that_kill_cost_a_bounded_number_of_engine_starts(
    config: RunConfig, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ids = [[10 + i, 300 - i] if not 16 <= i < 48 else [10, DEADLY_TOKEN] for i in range(80)]
    pq.write_table(pa.table({"prompt_token_ids": ids, "k": list(range(80))}), tmp_path / "in.parquet")
    with caplog.at_level("INFO", logger="pipeline.stages"):
        summary = go(replace(config, unit_rows=16, units_in_flight=1), deadly_row_engine)
    assert (summary.total.rows, summary.total.failed_rows) == (80, 32)
    table = pipeline.read(config.output, format="arrow")
    assert [e is not None for e in table["error"].to_pylist()] == [16 <= i < 48 for i in range(80)]
    assert len(Path(config.output, "starts.txt").read_text().split()) <= 1 + 4 + 1
    assert "32 rows killed their process" in caplog.text


def test_actors_that_die_without_achieving_anything_end_the_job_instead_of_hanging(config: RunConfig) -> None:
    with pytest.raises(pipeline.EngineDiedError, match="2 processes in a row died before any unit was done"):
        go(replace(config, max_engine_deaths=1), dies_at_start_engine)
    assert pipeline.status(config.output)["units_committed"] == 0
