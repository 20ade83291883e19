"""Aggregates of parts count each published row exactly once, however the output came to be."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pytest

from pipeline import layout
from pipeline.codec import Request, RequestError
from pipeline.commands.read import read
from pipeline.commands.report import gather
from pipeline.commit.manifest import Manifest
from pipeline.commit.part_files import PartAggregator, load_aggregates
from pipeline.reporting.aggregate import Aggregate, Aggregator
from testing.pipeline.exactly_once import SmallJob
from testing.pipeline.fakes import FakeEngine, InlineExecutor, MemoryStorage
from testing.pipeline.output_rows import output_table

MakeJob = Callable[..., SmallJob]


class Refuses(FakeEngine):
    """Refuses the ninth request; the engine of a retry does not."""

    added = 0

    def add(self, request: Request) -> None:
        self.added += 1
        if self.added == 9:
            raise RequestError("not today")
        super().add(request)


def of_published_rows(job: SmallJob) -> Aggregate:
    """The slow way: of all rows as any reader gets them."""
    return Aggregate.of(read(job.config.output, format="arrow"))


def kept(job: SmallJob) -> list[str]:
    return job.storage.keys(f"{layout.REPORT}/parts")


def parts(job: SmallJob) -> list[tuple[str, int]]:
    return [(part.sha256, part.rows) for p in Manifest.load(job.storage).publications for part in p.parts]


def assert_exact(job: SmallJob) -> None:
    """Every part has its aggregate, there is no other, and they add up to the rows."""
    assert sorted(kept(job)) == sorted(layout.part_aggregate(sha256) for sha256, _ in parts(job))
    found = list(load_aggregates(job.storage, parts(job)))
    assert None not in found
    total = Aggregate()
    for own in found:
        assert own is not None
        total = total.merged_with(own)
    assert total == of_published_rows(job) == gather(job.storage).aggregate


@pytest.mark.parametrize("units", [1, 3, 5])
def test_after_a_run_that_was_stopped_and_continued_by_actors_in_another_order(make_job: MakeJob, units: int) -> None:
    job = make_job()
    job.stop_after(units)
    job.run(InlineExecutor(order=lambda given: given[::-1]))
    assert_exact(job)


def test_after_failed_rows_were_done_again(make_job: MakeJob) -> None:
    job = make_job()
    job.run(InlineExecutor(engine=Refuses))
    before = kept(job)
    assert of_published_rows(job).failed == 3
    job.retry()
    assert of_published_rows(job).failed == 2
    assert set(kept(job)) != set(before), "parts of the revision have their own"
    assert set(kept(job)) & set(before), "parts that were copied keep theirs"
    assert_exact(job)


def test_rows_are_read_where_the_aggregate_is_missing_or_damaged(make_job_that_ran: MakeJob) -> None:
    job = make_job_that_ran()
    first, second, *_ = kept(job)
    job.storage.delete_objects([first])
    job.storage.put(second, job.storage.read(second).replace(b'"rows": ', b'"rows": 1', 1))
    assert list(load_aggregates(job.storage, parts(job))).count(None) == 2
    assert gather(job.storage).aggregate == of_published_rows(job)


def test_an_output_without_any_is_read_and_a_run_without_a_report_makes_none(make_job: MakeJob) -> None:
    job = make_job()
    job.run(report=False)
    assert not job.storage.keys(layout.REPORT)
    assert not job.storage.exists(layout.REPORT_PAGE)
    assert gather(job.storage).aggregate == of_published_rows(job)


def test_committed_rows_that_are_not_published_are_read(make_job_that_ran: MakeJob) -> None:
    job = make_job_that_ran(3)
    expected = Aggregator()
    expected.add(read(job.config.output, format="arrow", committed=True))
    facts = gather(job.storage)
    assert facts.aggregate == expected.result()
    assert facts.aggregate.rows > 0
    assert not facts.complete
    assert facts.state == "12 of 22 rows done"


def test_rows_that_cannot_be_aggregated_do_not_fail_their_part(caplog: pytest.LogCaptureFixture) -> None:
    storage = MemoryStorage()
    aggregator = PartAggregator("")
    aggregator.add(output_table(3))
    aggregator.add(pa.table({"nothing": [1]}))
    aggregator.add(output_table(3))
    aggregator.put(storage, "0" * 64)
    assert storage.objects == {}
    assert "could not be aggregated" in caplog.text
