"""Staged units that differ from their commit are never published: they are revoked and done again at once."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from pipeline import layout
from pipeline.commit.index import Index
from pipeline.commit.ledger import read_ledger
from pipeline.commit.part_files import staged_place
from pipeline.errors import DamagedError
from pipeline.sinks.staged import load_staged
from pipeline.storage.damage import FoundDamageError
from pipeline.storage.protocol import Storage
from pipeline.storage.retry import RetryingStorage
from testing.pipeline.damage import FAULTS, make_unreadable, swap
from testing.pipeline.exactly_once import SmallJob, Within
from testing.pipeline.fakes import FakeEngine, InlineExecutor
from testing.pipeline.s3 import S3Server

MakeJob = Callable[..., SmallJob]
LENIENT = partial(FakeEngine, bans=False)

Rows = list[dict[str, Any]]


def inner(storage: RetryingStorage) -> Any:
    return storage.inner


def revoked(storage: Storage) -> dict[str, str]:
    with Index() as index:
        read_ledger(storage, index.records)
        return {r.unit_id: r.reason for r in index.records.revocations()}


@pytest.mark.sweep(5)
@pytest.mark.parametrize("kind", ["rows", "dead"])
@pytest.mark.parametrize("fault", [*FAULTS, "unreadable"])
def test_a_damaged_unit_is_done_again_in_the_run_that_finds_it(
    make_job_that_ran: MakeJob, undisturbed_rows: Rows, fault: str, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    job = make_job_that_ran(5)
    key = job.staged(kind)[0]
    if fault == "unreadable":
        make_unreadable(inner(job.storage), key)
    else:
        FAULTS[fault](job.storage, key)
    executor = InlineExecutor()
    with caplog.at_level(logging.WARNING):
        summary = job.run(executor)
    assert executor.units_done == 1 + 1, "the one that was missing, and the damaged one"
    assert job.data() == undisturbed_rows
    assert job.problems() == ()
    assert summary.total.rows == 22
    unit, attempt = layout.staged_attempt(key)
    assert attempt == 1
    assert list(revoked(job.storage)) == [unit]
    (line,) = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
    assert line.startswith(f"{key}: ")
    assert line.endswith("; its rows are generated again")
    assert "\n" not in line
    assert job.storage.keys(layout.STAGED) == job.storage.keys(layout.PUBLISH) == []


def test_all_damage_of_many_parts_is_found_at_once(make_job_that_ran: MakeJob, undisturbed_rows: Rows) -> None:
    job = make_job_that_ran(6)
    for key, fault in zip(job.staged(), FAULTS, strict=False):
        FAULTS[fault](job.storage, key)
    times: list[int] = []
    executor = Within(times.append)
    job.run(executor, target_part_bytes=1)
    assert executor.units_done == 6
    assert times == [0, 1], "parts are written again once, not once for each damaged unit"
    assert job.data() == undisturbed_rows
    assert job.problems() == ()


def test_what_is_damaged_after_it_was_done_again_ends_the_run_and_publishes_nothing(make_job_that_ran: MakeJob) -> None:
    job = make_job_that_ran(6)

    def damage(time: int) -> None:
        if time < 2:
            key = max(k for k in job.staged() if layout.staged_attempt(k)[0] == unit)
            FAULTS["a bit is flipped"](job.storage, key)

    unit = layout.staged_attempt(job.staged()[0])[0]
    with pytest.raises(DamagedError, match=r"damaged twice in this run.*Check the storage"):
        job.run(Within(damage))
    assert not list(Path(job.config.output).glob("data-*"))
    job.run()
    assert job.problems() == ()


@pytest.mark.sweep(3)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_retry_whose_units_are_damaged_does_all_their_rows_again(
    make_job_that_ran: MakeJob, fault: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A retry keeps the good rows of the attempt before: from staging, where that is not published yet."""
    whole = make_job_that_ran()
    whole.retry()
    job = make_job_that_ran(6)
    with Index() as index:
        read_ledger(job.storage, index.records)
        broken = [record for record in index.records if record.failed_rows]
    for record in broken:
        FAULTS[fault](job.storage, staged_place(record, derived_ids=True).key)
    with caplog.at_level(logging.WARNING):
        job.retry()
    lines = [r.getMessage() for r in caplog.records]
    assert len([line for line in lines if "all rows of its unit were generated again" in line]) == len(broken) == 2
    assert job.data() == whole.data()
    assert job.problems() == ()


@pytest.mark.sweep(3)
@pytest.mark.parametrize("which", ["the part with the failed row", "a part that is copied", "the dead letters"])
@pytest.mark.parametrize("fault", ["a bit is flipped", "deleted", "cut in the middle"])
def test_a_published_part_that_is_damaged_is_not_copied_into_a_revision(
    make_job: MakeJob, fault: str, which: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Damage that comes after the look at the beginning of the run, or that leaves the size as it is."""
    whole = make_job()
    whole.run(target_part_bytes=1)
    whole.retry()
    job = make_job()
    job.run(target_part_bytes=1)
    parts = sorted(key for key in job.storage.keys("data-000000"))
    letters = job.storage.keys(layout.DEAD_LETTERS)
    key = {"the part with the failed row": parts[0], "a part that is copied": parts[1], "the dead letters": letters[0]}

    def damage(time: int) -> None:
        if time == 0:
            FAULTS[fault](job.storage, key[which])

    # One of the failed rows fails again: its dead letter is then taken from where it was.
    job.retry(Within(damage, engine=LENIENT))
    assert job.data() == whole.data()
    assert job.problems() == ()
    assert list(Path(job.config.output).glob("data-*")) == [Path(job.config.output) / "data-000000-r001"]


def test_a_stage_is_named_by_its_content_so_that_no_late_writer_takes_its_place(
    make_job: MakeJob, make_job_that_ran: MakeJob
) -> None:
    job = make_job_that_ran(6)
    keys = job.storage.keys(layout.STAGED)
    before = {key: job.storage.read(key) for key in keys}
    other = make_job()
    other.stop_after(6)  # the same units with other timings, as an actor that was taken for dead would stage them
    for key in other.storage.keys(layout.STAGED):
        job.storage.put(key, other.storage.read(key))
    assert {key: job.storage.read(key) for key in keys} == before
    job.run()
    assert revoked(job.storage) == {}
    assert job.storage.keys(layout.STAGED) == []


def test_the_same_on_an_object_store(s3: S3Server, tmp_path: Path, qwen3_folder: Path, undisturbed_rows: Rows) -> None:
    job = SmallJob(tmp_path, qwen3_folder, f"{s3.bucket('damage')}/out", s3.options)
    job.stop_after(5)
    *damaged, one, other = job.staged()
    for key, fault in zip(damaged, ("a bit is flipped", "zeros", "deleted"), strict=True):
        FAULTS[fault](job.storage, key)
    swap(job.storage, one, other)
    executor = InlineExecutor()
    job.run(executor)
    assert executor.units_done == 1 + 5
    assert job.data() == undisturbed_rows
    assert job.problems() == ()


def test_a_store_without_an_answer_is_not_taken_for_damage(
    make_job_that_ran: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = make_job_that_ran(1)
    storage = inner(job.storage)
    monkeypatch.setattr(type(storage), "read", lambda self, key: (_ for _ in ()).throw(ConnectionError("no route")))
    with pytest.raises(ConnectionError):
        load_staged(storage, job.staged()[0], None)
    monkeypatch.undo()
    with pytest.raises(FoundDamageError, match="missing"):
        load_staged(storage, "nowhere", None)
