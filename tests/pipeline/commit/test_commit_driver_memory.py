"""The driver's memory does not grow with the units and rows of a run."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline import layout
from pipeline.commands.run import run_on
from pipeline.commands.status import status
from pipeline.commands.summary import RunSummary
from pipeline.commit.index import Index
from pipeline.commit.part_files import PartJob, PartRecord
from pipeline.config import RunConfig
from pipeline.plan.input_check import check_unique_ids
from pipeline.plan.job import Job
from pipeline.plan.units import Work, plan_units
from pipeline.progress.snapshot import ExecutorState, ResourceSeconds
from pipeline.sources import open_source
from pipeline.storage.local import LocalStorage
from pipeline.types import CommitRecord
from testing.pipeline.fakes import MemoryStorage

UNITS_PER_PART = 1_024
SMALLER = {
    "pipeline.commit.index.scratch._BATCH": 64, "pipeline.commit.index.scratch._PAGE": 64,
    "pipeline.commit.ledger._SEGMENT_RECORDS": 64, "pipeline.commit.lists._BATCH": 64,
    "pipeline.storage.local._PAGE": 64,
}  # fmt: skip
"""Pages, batches and segments of a tenth or less: they are full with few units already, which takes seconds."""


class InstantExecutor:
    """Says that everything is staged and written: the rest is the driver's own memory."""

    def session(self) -> AbstractContextManager[None]:
        return nullcontext()

    starts: Sequence[Mapping[str, float]] = ()

    def used(self) -> ResourceSeconds:
        return ResourceSeconds()

    def state(self) -> ExecutorState:
        return ExecutorState()

    def traced(self) -> None:
        """No row was decoded once more."""

    def run_units(self, job: Job, work: Work) -> Iterator[list[CommitRecord]]:
        for task in work.tasks:
            yield [
                CommitRecord(
                    unit_id=unit.unit_id, file_key="in.parquet", first_row=unit.rows.first_row, num_rows=1,
                    failed_rows=0, samples=1, prompt_tokens=9, completion_tokens=16, decode_forwards=4,
                    rows_forwarded=40, staged_bytes=1, data_sha256=unit.unit_id * 3, engine_seconds=0.5,
                )
                for unit in task.units
            ]  # fmt: skip

    def write_parts(self, jobs: Iterable[PartJob]) -> Iterator[PartRecord]:
        for job in jobs:
            job.storage.put(job.key, b"part")
            yield PartRecord(name=job.key.rsplit("/", 1)[-1], rows=len(job.pieces), bytes=4, sha256="0" * 64)


def write_input(folder: Path, rows: int) -> Path:
    path = folder / "in.parquet"
    pq.write_table(pa.table({"prompt": ["p"] * rows, "key": range(rows)}), path, row_group_size=1024)
    return path


def peak_of(action: Callable[[], Any]) -> int:
    """Bytes of Python objects that were alive at once, beyond those of before."""
    tracemalloc.start()
    try:
        action()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def peaks(folder: Path, model: Path, units: int) -> dict[str, int]:
    folder.mkdir()
    config = RunConfig(
        input=str(write_input(folder, units)), output=str(folder / "out"), model=str(model), unit_rows=1,
        target_part_bytes=UNITS_PER_PART,
    )  # fmt: skip
    storage = LocalStorage(config.output, layout.SCRATCH)

    def run() -> RunSummary:
        return run_on(InstantExecutor(), config, storage, lambda progress: None)

    found = {"a first run": peak_of(run)}
    assert len(list(Path(config.output).glob("data-000000/*"))) == -(-units // UNITS_PER_PART)
    found["a run that finds all done"] = peak_of(run)
    found["a look at the status"] = peak_of(lambda: status(config.output))
    assert status(config.output)["units_published"] == units
    return found


@pytest.mark.slow(reason="two drivers, one with ten times as many units: 30 s")
def test_memory_of_the_driver_is_the_same_for_ten_times_as_many_units(
    qwen3_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few, many = 2_048, 20_480
    for name, size in SMALLER.items():
        monkeypatch.setattr(name, size)
    peaks(tmp_path / "warm", qwen3_folder, few)  # imports and caches belong to no size
    before, after = (peaks(tmp_path / f"{units}", qwen3_folder, units) for units in (few, many))
    for what, peak in after.items():
        assert peak < 1.25 * before[what], f"{what}: {peak} bytes for {many} units, {before[what]} for {few}"


@pytest.mark.slow(reason="hashes of 160,000 ids under tracemalloc: 3 s")
def test_ids_are_checked_in_the_same_memory_however_many_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, size in SMALLER.items():
        monkeypatch.setattr(name, size)

    def peak(rows: int) -> int:
        folder = tmp_path / str(rows)
        folder.mkdir()
        source = open_source(str(write_input(folder, rows)), MemoryStorage())
        with Index() as index:
            index.units.fill(plan_units(source, 250, "f"))
            return peak_of(lambda: check_unique_ids(source, index.units, "key"))

    peak(1_000)
    few, many = peak(20_000), peak(160_000)
    assert many < few + 3 * 2**20, "hashes of 140,000 more rows would take 7 MB"  # 1 MB more after a Ray test
