"""Committed rows can be read while none, some or all of them are published: each row once, of its latest attempt."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.commands.read import read
from pipeline.errors import DamagedError, OutputError
from pipeline.schema import DATA_COLUMNS
from pipeline.sinks import stored_rows
from testing.pipeline.exactly_once import FAILING, ROWS, SmallJob, Stopped, StopsAfter
from testing.pipeline.fakes import FakeEngine

DATA = ["prompt", "topic", *DATA_COLUMNS]


@pytest.fixture
def job(tmp_path: Path, qwen3_folder: Path) -> SmallJob:
    return SmallJob(tmp_path / "job", qwen3_folder)


def committed(job: SmallJob, table: Any = "rows") -> pa.Table:
    return read(job.config.output, table=table, committed=True, format="arrow", storage_options=job.options)


def data(job: SmallJob) -> list[dict[str, Any]]:
    return committed(job).select(DATA).to_pylist()


def test_an_interrupted_run_gives_its_committed_rows_and_a_finished_one_all(
    job: SmallJob, undisturbed_rows: list[dict[str, Any]]
) -> None:
    job.stop_after(3)
    with pytest.raises(OutputError, match="committed=True"):
        read(job.config.output, storage_options=job.options)
    units = {f"a.parquet:{i}" for i in range(12)}
    assert data(job) == [row for row in undisturbed_rows if row["row_id"] in units]
    assert [row["row_id"] for row in committed(job, "dead_letters").to_pylist()] == ["a.parquet:3", "a.parquet:10"]
    schema = committed(job).schema
    job.run()
    assert data(job) == undisturbed_rows
    assert read(job.config.output, format="arrow", storage_options=job.options).schema.equals(schema)


def test_units_that_are_committed_out_of_order_are_read_in_order(
    job: SmallJob, undisturbed_rows: list[dict[str, Any]]
) -> None:
    with pytest.raises(Stopped):
        job.run(StopsAfter(5, order=lambda units: units[::-1]))
    assert data(job) == undisturbed_rows[-len(data(job)) :]
    assert committed(job).num_rows > 20


def test_rows_that_follow_a_publication_come_after_it(make_job: Callable[[], SmallJob]) -> None:
    job = make_job()
    pattern = f"{job.source.parent}/*.parquet"
    job.run(input=pattern)
    later = [{"prompt": f"Say {i}.", "topic": "late"} for i in range(8)]
    pq.write_table(pa.Table.from_pylist(later), job.source.parent / "b.parquet")
    job.stop_after(1, input=pattern)
    ids = list(dict.fromkeys(row["row_id"] for row in data(job)))
    assert ids == [f"a.parquet:{i}" for i in range(len(ROWS))] + [f"b.parquet:{i}" for i in range(4)]
    assert read(job.config.output, format="arrow").num_rows < committed(job).num_rows


def test_a_committed_retry_replaces_the_published_failures(make_job_that_ran: Callable[..., SmallJob]) -> None:
    job = make_job_that_ran()
    before = data(job)
    assert sum(row["error"] is not None for row in before) == len(FAILING)
    with pytest.raises(Stopped):
        job.run(StopsAfter(1, engine=lambda: FakeEngine(bans=False)), retry_failed=True)
    # The empty prompts fail again, as a further attempt; the published dead letters still have the first one.
    assert committed(job, "dead_letters")["attempt"].to_pylist() == [2, 1]
    assert read(job.config.output, table="dead_letters", format="arrow")["attempt"].to_pylist() == [1, 1]
    assert data(job) == before
    job.run()
    assert committed(job, "dead_letters").equals(read(job.config.output, table="dead_letters", format="arrow"))


def test_a_damaged_or_missing_unit_is_an_error_that_names_it(make_job_that_ran: Callable[..., SmallJob]) -> None:
    job = make_job_that_ran(3)
    lost = job.staged()[0]
    job.storage.delete_objects([lost])
    with pytest.raises(DamagedError, match=lost):
        committed(job)


def test_rows_that_a_run_publishes_meanwhile_are_an_error_that_says_so(
    make_job_that_ran: Callable[..., SmallJob],
) -> None:
    job = make_job_that_ran(3)
    load = stored_rows.load_staged
    left = iter([job.run])

    def after_a_run(*given: Any) -> pa.Table:
        for run in left:
            run()
        return load(*given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stored_rows, "load_staged", after_a_run)
        with pytest.raises(OutputError, match="published rows while they were read"):
            committed(job)
    assert data(job) == job.data()
