"""Whole runs on object stores: exactly once through kills, takeovers and failing requests; the view of readers."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline import layout
from pipeline.commands.read import read
from pipeline.commit import lease
from pipeline.commit.lease import Lease, current_holder, hold_lease
from pipeline.commit.manifest import Manifest
from pipeline.commit.part_files import PartDamage, PartJob, PartRecord
from pipeline.commit.recover import recover
from pipeline.errors import LeaseError, LeaseLostError, OutputError, SinkError
from pipeline.storage.object_store import ObjectStorage
from testing.pipeline.exactly_once import SmallJob
from testing.pipeline.fakes import InlineExecutor
from testing.pipeline.faults import CrashAt, FaultyStorage, Killed, Recorder, crash_points, last_of_each_boundary
from testing.pipeline.leases import expire_leases
from testing.pipeline.s3 import S3Server
from testing.sweeps import AT_EVERY

ROWS = [{"prompt": "" if i == 4 else f"Count from {i} to {i + 4}.", "topic": f"t{i % 3}"} for i in range(8)]
LATER = [{"prompt": f"Count from {i}.", "topic": "late"} for i in range(20, 25)]


class Case(SmallJob):
    """A job with its output on a store, and ways to look at it."""

    def __init__(self, folder: Path, place: str, options: dict[str, Any], model: Path) -> None:
        super().__init__(folder, model, f"{place}/out", options, rows=ROWS)
        self.config = replace(
            self.config, input=f"{folder}/*.parquet", unit_rows=3, target_part_bytes=5000, report=False
        )
        self.fs, self.root = fsspec.core.url_to_fs(place, use_listings_cache=False, **options)

    def glob(self) -> list[str]:
        """The files that a plain reader of the folder would open."""
        return sorted(path for path in self.fs.find(f"{self.root}/out") if "/__" not in path)

    def globbed_keys(self) -> list[tuple[str, int]]:
        found = []
        for path in self.glob():
            with self.fs.open(path, "rb") as file:
                rows = pq.read_table(file).select(["row_id", "sample_index"]).to_pylist()
            found += [(row["row_id"], row["sample_index"]) for row in rows]
        return found

    def check(self, expected: list[dict[str, Any]]) -> None:
        assert self.data() == expected
        assert self.globbed_keys() == [(row["row_id"], row["sample_index"]) for row in expected]
        dead = read(self.config.output, table="dead_letters", format="arrow", storage_options=self.options)
        assert dead.num_rows == sum(row["finish_reason"] == "error" for row in expected)
        for left in (layout.STAGED, layout.PUBLISH, layout.SCRATCH):
            assert self.storage.keys(left) == []
        assert current_holder(self.storage) is None


@pytest.fixture(scope="module")
def in_memory(qwen3_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], Case]]:
    name = f"b{uuid.uuid4().hex[:12]}"
    numbers = iter(range(10_000))
    yield lambda: Case(tmp_path_factory.mktemp("memory"), f"memory://{name}/{next(numbers)}", {}, qwen3_folder)
    fsspec.filesystem("memory").rm(f"/{name}", recursive=True)


@pytest.fixture
def on_s3(s3: S3Server, qwen3_folder: Path, tmp_path: Path) -> Callable[[], Case]:
    place = f"{s3.bucket(f'b{uuid.uuid4().hex[:12]}')}/0"
    return lambda: Case(tmp_path, place, s3.options, qwen3_folder)


@pytest.fixture(scope="module")
def expected(in_memory: Callable[[], Case]) -> list[dict[str, Any]]:
    case = in_memory()
    case.run()
    assert len(case.glob()) > 2, "several parts"
    return case.data()


def test_a_run_on_s3_is_the_run_on_any_other_storage(on_s3: Callable[[], Case], expected: list[dict[str, Any]]) -> None:
    case = on_s3()
    case.run()
    case.check(expected)
    executor = InlineExecutor()
    case.run(executor=executor)
    assert executor.units_done == 0
    pq.write_table(pa.Table.from_pylist(LATER), case.source.with_name("b.parquet"))
    case.run(executor=executor)
    assert executor.units_done == 2
    assert case.data()[: len(expected)] == expected
    assert len(case.data()) == len(expected) + 2 * len(LATER)
    assert case.globbed_keys() == [(row["row_id"], row["sample_index"]) for row in case.data()]
    with pytest.raises(OutputError, match="begun"):
        case.run(mode="error_if_exists")
    case.run(mode="new", input=str(case.source))
    case.check(expected)


@AT_EVERY
def test_a_run_that_dies_at_any_operation_is_completed_by_the_next_which_takes_over(
    in_memory: Callable[[], Case], expected: list[dict[str, Any]], every: bool
) -> None:
    whole = in_memory()
    recorder = Recorder()
    whole.run(storage=FaultyStorage(whole.storage, recorder))
    for at in crash_points(recorder.moments) if every else last_of_each_boundary(recorder.moments):
        case = in_memory()
        with pytest.raises(Killed):
            case.run(storage=FaultyStorage(case.storage, CrashAt(at)))
        expire_leases(case.storage)
        case.run()
        case.check(expected)
        case.fs.rm(case.root, recursive=True)  # a listing of this file system looks at all that it holds


@pytest.mark.sweep(1)
@pytest.mark.parametrize("copies", range(3))
def test_until_the_last_part_is_copied_a_plain_listing_shows_whole_parts_and_readers_of_ours_nothing(
    on_s3: Callable[[], Case], expected: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch, copies: int
) -> None:
    case = on_s3()
    real, left = type(case.fs)._cp_file, iter(range(copies))

    async def fails(self: Any, *given: Any, **named: Any) -> None:
        if next(left, None) is None:
            raise OSError("connection reset")
        await real(self, *given, **named)

    with monkeypatch.context() as patch:
        patch.setattr(type(case.fs), "_cp_file", fails)
        with pytest.raises(SinkError, match=r"moving .* failed 5 times"):
            case.run()
    keys = [(row["row_id"], row["sample_index"]) for row in expected]
    seen = case.globbed_keys()
    assert len(seen) == len(set(seen))
    assert set(seen) < set(keys)
    with pytest.raises(OutputError, match="not finished"):
        case.data()
    case.run()
    case.check(expected)


# --- one writer -----------------------------------------------------------------------------------


class Sleeper(InlineExecutor):
    """Does something else when its parts are written, as if the process had been stopped there."""

    def __init__(self, meanwhile: Callable[[], None]) -> None:
        super().__init__()
        self._meanwhile = meanwhile

    def write_parts(self, jobs: Iterable[PartJob]) -> Iterator[PartRecord | PartDamage]:
        yield from super().write_parts(jobs)
        self._meanwhile()


@pytest.mark.sweep(2)
@pytest.mark.parametrize("looks", [True, False], ids=["looks first", "woken between look and put"])
@pytest.mark.parametrize("finishes", [True, False], ids=["successor publishes", "successor dies"])
def test_a_writer_that_lost_its_lease_publishes_nothing(
    on_s3: Callable[[], Case], expected: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch, looks: bool,
    finishes: bool,
) -> None:  # fmt: skip
    case = on_s3()
    slept: list[bool] = []

    def meanwhile() -> None:
        slept.append(True)
        expire_leases(case.storage)
        if finishes:
            case.run()
        else:
            successor = Lease(case.storage)
            recover(case.storage, successor)
            successor._stop.set()  # dead: it renews nothing and gives nothing back

    executor = Sleeper(meanwhile) if looks else InlineExecutor()
    with monkeypatch.context() as patch:
        if not looks:
            real = Lease.verify

            def looks_and_sleeps(self: Lease) -> None:
                real(self)
                if executor.units_done == 3 and not slept:
                    meanwhile()

            patch.setattr(Lease, "verify", looks_and_sleeps)
        with pytest.raises(LeaseLostError, match="took over"):
            case.run(executor=executor)
    assert slept
    if finishes:
        assert case.data() == expected
    else:
        assert case.glob() == []
        assert Manifest.load(case.storage).publications == ()
    expire_leases(case.storage)
    case.run()
    case.check(expected)


def test_a_publication_that_was_decided_before_the_takeover_is_finished_by_the_successor(
    on_s3: Callable[[], Case], expected: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    case = on_s3()
    with monkeypatch.context() as patch:
        patch.setattr(ObjectStorage, "promote", lambda *given: (_ for _ in ()).throw(Killed()))
        with pytest.raises(Killed):
            case.run()
    assert case.glob() == []
    expire_leases(case.storage)
    executor = InlineExecutor()
    case.run(executor=executor)
    assert executor.units_done == 0
    case.check(expected)


def test_of_two_that_come_at_once_one_writes(on_s3: Callable[[], Case], monkeypatch: pytest.MonkeyPatch) -> None:
    case = on_s3()
    storage = case.storage
    with hold_lease(storage) as held:
        assert current_holder(storage) is not None
        with pytest.raises(LeaseError, match="is writing there"):
            Lease(case.storage)
        # Another that looked before the first had put its lease:
        with monkeypatch.context() as patch:
            patch.setattr(lease, "_holders", lambda storage: [])
            with pytest.raises(LeaseError, match="just now"):
                Lease(case.storage)
        held.verify()
    assert current_holder(storage) is None


def test_a_lease_is_renewed_and_a_check_asks_nothing_meanwhile(
    on_s3: Callable[[], Case], monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = on_s3().storage
    held = Lease(storage, ttl=1.0)
    asked: list[str] = []
    monkeypatch.setattr(held, "verify", lambda: asked.append("?"))
    for _ in range(75):
        held.check()
        held._stop.wait(0.02)
    assert not asked, "the term never ran out"
    assert current_holder(storage) is not None
    held.release()


def test_requests_that_fail_at_random_are_tried_again(
    on_s3: Callable[[], Case], expected: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = random.Random(4)
    case = on_s3()
    real, failed = type(case.fs)._call_s3, []

    async def flaky(self: Any, method: str, *given: Any, **named: Any) -> Any:
        fails = draw.random() < 0.04  # an operation of several requests gets through in five attempts
        after = draw.random() < 0.5
        if fails and not after:
            failed.append(method)
            raise OSError("connection reset")
        result = await real(self, method, *given, **named)
        if fails:
            failed.append(method)
            raise OSError("connection reset")
        return result

    with monkeypatch.context() as patch:
        patch.setattr(type(case.fs), "_call_s3", flaky)
        case.run()
    assert len(failed) >= 3
    case.check(expected)


def test_an_output_that_cannot_be_written_is_said_at_once(on_s3: Callable[[], Case]) -> None:
    case = on_s3()
    case.config = replace(case.config, output="s3://no-such-bucket-here/out")
    with pytest.raises(SinkError, match=r"no-such-bucket-here.*FileNotFoundError"):
        case.run()
