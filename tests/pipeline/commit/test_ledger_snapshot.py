"""Snapshots of the ledger: an index that loads one equals the segments, and a wrong one changes nothing."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipeline import layout
from pipeline.commands.begin import begin, prepare_output
from pipeline.commit import ledger as ledger_module
from pipeline.commit.index import Index
from pipeline.commit.lease import hold_lease
from pipeline.commit.ledger import Ledger, read_ledger
from pipeline.errors import LeaseLostError
from pipeline.plan import small_files
from pipeline.storage.local import LocalStorage
from pipeline.types import CommitRecord, Revocation, Totals, Unit
from testing.pipeline.exactly_once import SmallJob
from testing.pipeline.fakes import MemoryStorage
from testing.pipeline.leases import expire_leases


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few entries are worth a snapshot."""
    monkeypatch.setattr(ledger_module, "_SNAPSHOT_ENTRIES", 8)
    monkeypatch.setattr(ledger_module, "_COMPACT_SEGMENTS", 6)
    monkeypatch.setattr(ledger_module, "_SEGMENT_RECORDS", 4)


def record(number: int, attempt: int, draw: random.Random) -> CommitRecord:
    return CommitRecord(
        unit_id=f"u{number:02d}", file_key="f", first_row=number, num_rows=1, failed_rows=draw.randrange(2), samples=1,
        prompt_tokens=draw.randrange(2**40), completion_tokens=draw.randrange(9), decode_forwards=1, rows_forwarded=1,
        staged_bytes=1, data_sha256=f"{draw.randrange(99)}", attempt=attempt, failures={"E": draw.randrange(1, 9)},
    )  # fmt: skip


def held_by(index: Index) -> tuple[list[CommitRecord], list[Revocation]]:
    records = sorted(index.records, key=lambda one: one.unit_id)
    return records, sorted(index.records.revocations(), key=lambda one: one.unit_id)


def read(storage: Any, since: int = 1) -> tuple[Any, Totals, list[str]]:
    with Index() as index:
        reading = read_ledger(storage, index.records, since)
        return held_by(index), index.records.totals(), reading.notes


def snapshots(storage: Any) -> list[str]:
    return list(storage.keys(layout.SNAPSHOTS))


@pytest.mark.parametrize("seed", range(12))
def test_what_a_snapshot_and_the_segments_after_it_hold_is_what_all_segments_hold(seed: int) -> None:
    draw, storage, attempts = random.Random(seed), MemoryStorage(), dict.fromkeys(range(20), 0)
    made = 0
    for _ in range(4):
        with hold_lease(storage) as lease, Index() as index:
            ledger, notes = Ledger.load(storage, index.records, lease, 1)
            assert notes == []
            for _ in range(draw.randrange(1, 7)):
                chosen = draw.sample(sorted(attempts), 5)
                if draw.randrange(4):
                    for number in chosen:
                        attempts[number] += 1
                    ledger.commit([record(number, attempts[number], draw) for number in chosen])
                else:
                    ledger.revoke([Revocation(unit_id=f"u{n:02d}", attempt=attempts[n], reason="r") for n in chosen])
            made += bool(snapshots(storage))
            wanted, totals = held_by(index), index.records.totals()
        found, sums, notes = read(storage)
        assert (found, replace(sums, examples={}), notes) == (wanted, replace(totals, examples={}), [])
        storage.delete(layout.SNAPSHOTS) if draw.randrange(3) == 0 else None
        assert read(storage)[0] == wanted
    assert made
    assert len(snapshots(storage)) <= 1, "a snapshot takes the place of the one before"


def committed(storage: Any, units: int = 20) -> None:
    draw = random.Random(0)
    with hold_lease(storage) as lease, Index() as index:
        ledger, _ = Ledger.load(storage, index.records, lease, 1)
        ledger.commit([record(number, 1, draw) for number in range(units)])


def test_a_kill_at_any_commit_leaves_few_entries_that_no_snapshot_holds() -> None:
    draw, storage = random.Random(0), MemoryStorage()
    with hold_lease(storage) as lease, Index() as index:
        ledger, _ = Ledger.load(storage, index.records, lease, 1)
        for first in range(0, 400, 4):
            ledger.commit([record(first + number, 1, draw) for number in range(4)])
            with Index() as other:
                reading = read_ledger(storage, other.records, 1)
            assert len(held_by(index)[0]) == first + 4
            assert reading.loose < max(8, 0.05 * (first + 4))


@pytest.mark.parametrize("damage", ["altered", "cut", "empty", "no database", "gone"])
def test_a_wrong_snapshot_is_named_and_not_used_and_the_next_writer_makes_another(tmp_path: Path, damage: str) -> None:
    storage = LocalStorage(tmp_path / "out", layout.SCRATCH)
    committed(storage)
    (key,) = snapshots(storage)
    wanted, data = read(storage)[:2], storage.read(key)
    middle = len(data) // 2
    broken = {"altered": data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :], "cut": data[:middle],
              "empty": b"", "no database": b"x" * 4096}  # fmt: skip
    storage.delete(key) if damage == "gone" else storage.put(key, broken[damage])
    found, totals, notes = read(storage)
    assert (found, totals) == wanted
    assert len(notes) == (damage != "gone")
    assert all(key in note and "SHA-256 differs" in note for note in notes)
    with hold_lease(storage) as lease, Index() as index:
        ledger, told = Ledger.load(storage, index.records, lease, 1)
        assert told == notes
        ledger.keep_snapshot()
    assert (read(storage)[:2], read(storage)[2]) == (wanted, [])
    assert snapshots(storage) != [key]


def test_a_snapshot_is_read_in_place_of_its_segments_and_is_of_one_run() -> None:
    storage = MemoryStorage()
    committed(storage)
    wanted = read(storage)[0]
    for key in storage.keys(layout.LEDGER):
        storage.put(key, b"damaged, and not read")
    assert read(storage)[0] == wanted
    assert read(storage, since=2)[0] == ([], []), "of a run that began later nothing is committed"


def test_a_snapshot_of_another_output_is_not_used() -> None:
    storage, other = MemoryStorage(), MemoryStorage()
    committed(storage)
    committed(other)
    wanted = read(storage)[0]
    for key in snapshots(storage):
        storage.delete_objects([key])
    with hold_lease(other) as lease, Index() as index:
        Ledger.load(other, index.records, lease, 1)[0].commit([record(90, 1, random.Random(0))] * 9)
    for key in snapshots(other):
        storage.put(key, b"".join(iter(other.open(key).read, b"")))
    assert snapshots(storage)
    assert read(storage)[0] == wanted


def test_a_writer_that_lost_its_lease_puts_no_snapshot() -> None:
    storage = MemoryStorage()
    with hold_lease(storage) as lease, Index() as index:
        ledger, _ = Ledger.load(storage, index.records, lease, 1)
        expire_leases(storage)
        with hold_lease(storage), pytest.raises(LeaseLostError):
            ledger.commit([record(number, 1, random.Random(0)) for number in range(20)])
    assert snapshots(storage) == []


def test_a_store_that_takes_no_snapshot_fails_no_commit(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*given: object) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(MemoryStorage, "create", full)
    storage = MemoryStorage()
    committed(storage)
    assert len(read(storage)[0][0]) == 20
    assert "no snapshot of the ledger could be made (no space left on device)" in caplog.text


def test_the_plan_is_taken_from_the_snapshot_until_the_input_changes(
    make_job: Callable[[], SmallJob], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger_module, "_SNAPSHOT_ENTRIES", 3)
    job, drawn, plan_units = make_job(), [], small_files.plan_units

    def counted(*given: Any) -> Iterator[Unit]:
        for unit in plan_units(*given):
            drawn.append(unit)
            yield unit

    monkeypatch.setattr(small_files, "plan_units", counted)
    job.stop_after(3)

    def units() -> tuple[list[Any], list[Any]]:
        with hold_lease(job.storage) as lease, Index() as index:
            begin(job.config, job.storage, lease, index, prepare_output(job.config, job.storage, lease))
            index.units.mark_work(retry_failed=False)
            return list(index.units), list(index.units.work())

    drawn.clear()
    again = units()
    assert (len(again[0]), len(again[1]), drawn) == (6, 3, [])
    assert units() == again
    storage, path = job.storage, Path(str(job.config.input))
    storage.delete(layout.SNAPSHOTS)
    assert units() == again
    assert drawn == again[0], "without a snapshot the plan is made"
    drawn.clear()
    os.utime(path, (1, 1))
    assert units() == again
    assert drawn == again[0], "a file that was touched is planned again"
