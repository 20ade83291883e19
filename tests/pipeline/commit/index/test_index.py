"""The index against plain dictionaries and lists: it answers the same, whatever was entered in whatever order."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import replace

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.commit.index import Index, PublishedUnit
from pipeline.commit.lists import index_publication, write_units
from pipeline.commit.manifest import Publication
from pipeline.commit.part_files import PartRecord
from pipeline.types import CommitRecord, Place, Revocation, Slice, Totals, Unit
from testing.pipeline.fakes import MemoryStorage

UNITS = [Unit(unit_id=f"u{i:02d}", index=i, rows=Slice(file=i // 4, first_row=i, num_rows=1 + i % 5, group=i // 2,
                                                        start=i * 10, stop=i * 10 + 7)) for i in range(12)]  # fmt: skip


@pytest.fixture(autouse=True)
def _small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.commit.index.scratch._PAGE", 3)
    monkeypatch.setattr("pipeline.commit.index.scratch._BATCH", 2)


def record(number: int, attempt: int, failed: int, tokens: int) -> CommitRecord:
    failures = {f"E{number % 2}": failed} if failed else {}
    return CommitRecord(
        unit_id=f"u{number:02d}", file_key=f"f{number}", first_row=number, num_rows=3, failed_rows=failed,
        samples=6 - failed, prompt_tokens=tokens, completion_tokens=tokens * 2, decode_forwards=tokens + 1,
        rows_forwarded=tokens * 5, staged_bytes=tokens, data_sha256=f"{tokens:x}", engine_seconds=tokens / 7,
        attempt=attempt, failures=failures,
    )  # fmt: skip


# Number 12 and up: units that are not in the plan.
RECORDS = st.lists(
    st.builds(record, st.integers(0, 14), st.integers(1, 3), st.integers(0, 2), st.integers(0, 99)), max_size=30
)


def latest(records: list[CommitRecord]) -> dict[str, CommitRecord]:
    """The slow oracle: unit -> its last record of the highest attempt."""
    return {record.unit_id: record for record in sorted(records, key=lambda record: record.attempt)}


def filled(planned: int, records: list[CommitRecord]) -> Index:
    index = Index()
    index.units.fill(UNITS[:planned])
    index.records.add(records)
    return index


@given(records=RECORDS)
@settings(max_examples=60, deadline=None)
def test_of_each_unit_the_record_of_the_highest_attempt_counts(records: list[CommitRecord]) -> None:
    expected = latest(records)
    with filled(12, records) as index:
        assert {record.unit_id: record for record in index.records} == expected
        assert len(index.records) == len(expected)
        assert [index.records.get(f"u{i:02d}") for i in range(15)] == [expected.get(f"u{i:02d}") for i in range(15)]
        assert index.records.totals() == Totals.of(expected.values())
        assert index.records.attempts() == Counter(record.attempt for record in expected.values())


@given(records=RECORDS, planned=st.integers(0, 12), retry=st.booleans())
@settings(max_examples=60, deadline=None)
def test_work_is_what_the_ledger_lacks_and_failed_units_where_asked_for(
    records: list[CommitRecord], planned: int, retry: bool
) -> None:
    known = latest(records)
    expected = [
        replace(unit, attempt=known[unit.unit_id].attempt + 1 if unit.unit_id in known else 1)
        for unit in UNITS[:planned]
        if unit.unit_id not in known or (retry and known[unit.unit_id].failed_rows)
    ]
    with filled(planned, records) as index:
        index.units.mark_work(retry_failed=retry)
        assert list(index.units) == UNITS[:planned]
        assert (len(index.units), index.units.rows) == (planned, sum(u.rows.num_rows for u in UNITS[:planned]))
        assert list(index.units.work()) == expected
        assert index.units.work_units == len(expected)
        assert index.units.largest_work == max((unit.rows.num_rows for unit in expected), default=0)
        left = {unit.unit_id for unit in expected}
        settled = [known[u.unit_id] for u in UNITS[:planned] if u.unit_id not in left]
        assert index.settled() == Totals.of(settled)
        assert index.units.missing(most=99) == [unit.unit_id for unit in expected]
        index.records.add(record(unit.index, unit.attempt, 0, 1) for unit in expected[1:])
        assert index.units.missing(most=99) == [unit.unit_id for unit in expected[:1]]


PUBLISHED = st.lists(st.lists(st.integers(0, 13), max_size=6, unique=True), max_size=3)


@given(positions=PUBLISHED, records=RECORDS, per_part=st.integers(1, 4), attempt=st.integers(1, 2))
@settings(max_examples=60, deadline=None)
def test_published_units_are_found_where_they_are(
    positions: list[list[int]], records: list[CommitRecord], per_part: int, attempt: int
) -> None:
    known, storage = latest(records), MemoryStorage()
    units = {
        position: [PublishedUnit(unit_id=f"u{n:02d}", attempt=attempt, rows=1 + n, failed=n % 2) for n in numbers]
        for position, numbers in enumerate(positions)
    }
    with filled(12, records) as index:
        for position, held in units.items():
            index_publication(storage, publication(storage, position, held[::-1], per_part), index.published)
            index_publication(storage, publication(storage, position, held, per_part), index.published)
        every = [unit for held in units.values() for unit in held]
        ids = Counter(unit.unit_id for unit in every)
        assert len(index.published) == len(ids)
        assert list(index.published.duplicates()) == sorted((i, n) for i, n in ids.items() if n > 1)
        assert index.published.attempts([*ids, "x"]) == dict.fromkeys(ids, attempt)
        for position, held in units.items():
            found = list(index.published.units(position))
            assert [unit.unit for unit in found] == held
            assert [unit.record for unit in found] == [known.get(unit.unit_id) for unit in held]
            assert [unit.planned for unit in found] == [
                UNITS[int(unit.unit_id[1:])] if unit.unit_id < "u12" else None for unit in held
            ]
            assert [unit.place for unit in found] == places(position, held, per_part)
        last = {unit.unit_id: place for position, held in units.items()
                for unit, place in zip(held, places(position, held, per_part), strict=True)}  # fmt: skip
        assert {i: index.published.place(i, attempt) for i in ids} == last
        assert all(index.published.place(i, attempt + 1) is None for i in ids)
        assert index.published.outdated() == {
            position
            for position, held in units.items()
            if any(u.unit_id in known and known[u.unit_id].attempt > attempt for u in held)
        }
        assert list(index.units.unpublished()) == [unit for unit in UNITS if unit.unit_id not in ids]
        assert {r.unit_id for r in index.records.unpublished()} == known.keys() - ids.keys()
        due = [known[u.unit_id] for u in UNITS if u.unit_id in known and u.unit_id not in ids]
        assert list(index.publishable()) == due
        assert list(index.publishable(failed_only=True)) == [r for r in due if r.failed_rows]


def places(position: int, units: list[PublishedUnit], per_part: int) -> list[Place]:
    """Where units are that are written ``per_part`` to a part."""
    return [
        Place(
            key=f"data-{position:06d}/part-{i // per_part}",
            first_row=sum(u.rows for u in units[i - i % per_part : i]),
            num_rows=unit.rows,
            format="parquet",
            sha256="",
        )
        for i, unit in enumerate(units)
    ]


def publication(storage: MemoryStorage, position: int, units: list[PublishedUnit], per_part: int) -> Publication:
    listed = write_units(storage, f"__wedlm/units/{position}", lambda: units)
    groups = [units[i : i + per_part] for i in range(0, len(units), per_part)] or [[]]
    parts = [
        PartRecord(name=f"part-{i}", rows=sum(u.rows for u in g), bytes=1, sha256="") for i, g in enumerate(groups)
    ]
    return Publication(
        number=position, position=position, revision=0, epoch=1, format="parquet", schema=pa.schema([]),
        dead_schema=pa.schema([]), parts=tuple(parts), dead_letters=None, units=listed,
    )  # fmt: skip


def test_work_is_read_while_another_thread_commits() -> None:
    with filled(12, []) as index:
        index.units.mark_work(retry_failed=False)
        work, seen, wake = index.units.work(), [], threading.Event()

        def read() -> None:
            for unit in work:
                seen.append(unit)
                wake.set()

        reader = threading.Thread(target=read)
        reader.start()
        wake.wait()
        index.records.add(record(i, 1, 0, i) for i in range(12))
        reader.join()
        assert [unit for unit in seen if unit.index < 3] == UNITS[:3], "the first page was read before"
        assert seen == UNITS, "work was settled when it was marked"
        assert index.units.missing() == []


def test_what_was_revoked_does_not_come_back_in_whatever_order_it_is_read() -> None:
    with filled(12, [record(1, 2, 0, 5)]) as index:
        index.records.revoke([Revocation(unit_id="u01", attempt=2, reason="r", input_sha256="i")])
        index.records.add([record(1, 1, 0, 4), record(1, 2, 0, 5)])
        assert index.records.get("u01") is None
        index.records.add([record(1, 3, 0, 6)])
        assert index.records.get("u01") == record(1, 3, 0, 6)
