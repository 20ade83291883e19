"""Exactly once: whatever was committed, wherever a kill falls, the published rows equal an undisturbed run's."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline import layout
from pipeline.codec import SamplingParams
from pipeline.commands.read import read
from pipeline.commands.run import run_on
from pipeline.commands.summary import RunSummary
from pipeline.commit import lease
from pipeline.commit import ledger as ledger_module
from pipeline.commit.index import Index
from pipeline.commit.ledger import Ledger, read_ledger
from pipeline.commit.manifest import Manifest
from pipeline.commit.recover import recover
from pipeline.commit.sealed import seal, unseal, unseal_lines
from pipeline.config import RunConfig
from pipeline.errors import FingerprintError, LeaseError, LeaseLostError, OutputError
from pipeline.plan.units import plan_units, read_tasks
from pipeline.schema import DATA_COLUMNS
from pipeline.sources import open_source
from pipeline.storage.local import LocalStorage
from pipeline.storage.protocol import Storage
from pipeline.types import CommitRecord
from testing.pipeline.fakes import InlineExecutor, MemoryStorage

ROWS = [
    *({"prompt": f"Count from {i} to {i + 4}.", "topic": f"t{i % 3}"} for i in range(9)),
    {"prompt": "", "topic": "empty"},
    {"prompt": None, "topic": "null"},
    *({"prompt": f"Count from {i} to {i + 4}.", "topic": "late"} for i in range(20, 24)),
]


@pytest.fixture(scope="module")
def source_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("input") / "prompts.parquet"
    pq.write_table(pa.Table.from_pylist(ROWS), path, row_group_size=4)
    return path


def config_for(model: Path, source: Any, output: Path, **fields: Any) -> RunConfig:
    sampling = fields.pop("sampling", SamplingParams(max_tokens=8, n=2))
    return RunConfig(
        input=source,
        output=str(output),
        model=str(model),
        sampling=sampling,
        **{"unit_rows": 4, "target_part_bytes": 6000, **fields},
    )


def storage_of(config: RunConfig) -> LocalStorage:
    return LocalStorage(config.output, layout.SCRATCH)


def go(config: RunConfig, storage: Storage | None = None, executor: InlineExecutor | None = None) -> RunSummary:
    return run_on(executor or InlineExecutor(), config, storage or storage_of(config), lambda progress: None)


def data_of(config: RunConfig) -> list[dict[str, Any]]:
    table = read(config.output, format="arrow")
    return table.select([n for n in ("prompt", "topic", *DATA_COLUMNS) if n in table.column_names]).to_pylist()


@pytest.fixture(scope="module")
def undisturbed(
    qwen3_folder: Path, source_file: Path, tmp_path_factory: pytest.TempPathFactory
) -> list[dict[str, Any]]:
    config = config_for(qwen3_folder, source_file, tmp_path_factory.mktemp("undisturbed"))
    go(config)
    return data_of(config)


def test_rows_come_in_input_order_then_sample_order_whatever_order_units_finish_in(
    qwen3_folder: Path, source_file: Path, tmp_path: Path, undisturbed: list[dict[str, Any]]
) -> None:
    keys = [(row["row_id"], row["sample_index"]) for row in undisturbed]
    expected = [
        (f"prompts.parquet:{i}", s) for i, row in enumerate(ROWS) for s in range(2 if row["prompt"] else 1)
    ]  # fmt: skip
    assert keys == expected
    assert [row["topic"] for row in undisturbed] == [ROWS[int(k.split(":")[1])]["topic"] for k, _ in keys]
    config = config_for(qwen3_folder, source_file, tmp_path)
    go(config, executor=InlineExecutor(order=lambda units: units[::-1]))
    assert data_of(config) == undisturbed


def test_bad_rows_fail_alone_and_are_kept_whole_in_the_dead_letters(
    qwen3_folder: Path, source_file: Path, tmp_path: Path
) -> None:
    config = config_for(qwen3_folder, source_file, tmp_path)
    summary = go(config)
    rows = read(config.output, format="arrow").to_pylist()
    failed = [row for row in rows if row["finish_reason"] == "error"]
    assert [row["topic"] for row in failed] == ["empty", "null"]
    assert all(row["error"] and row["text"] is None and row["stats"] is None for row in failed)
    assert all(row["error"] is None and row["text"] for row in rows if row not in failed)
    dead = read(config.output, table="dead_letters", format="arrow").to_pylist()
    assert [(d["row_id"], d["prompt"], d["topic"], d["error_class"]) for d in dead] == [
        ("prompts.parquet:9", "", "empty", "RequestError"),
        ("prompts.parquet:10", None, "null", "RequestError"),
    ]
    assert summary.total.failed_rows == 2
    assert summary.total.rows == len(ROWS)
    assert summary.total.samples == 2 * (len(ROWS) - 2)


@given(data=st.data(), unit_rows=st.integers(1, 6), seed=st.integers(0, 99))
@settings(max_examples=4, deadline=None)
def test_every_row_once_whatever_was_committed_before(
    data: st.DataObject,
    unit_rows: int,
    seed: int,
    qwen3_folder: Path,
    source_file: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    config = config_for(qwen3_folder, source_file, tmp_path_factory.mktemp("out"), unit_rows=unit_rows)

    class StopsEarly(InlineExecutor):
        def run_units(self, job: Any, work: Any) -> Any:
            stop = data.draw(st.integers(0, work.units), label="units before the stop")
            for i, record in enumerate(super().run_units(job, work)):
                yield record
                if i + 1 >= stop:
                    raise KeyboardInterrupt

    def shuffled(units: list[Any]) -> list[Any]:
        return random.Random(seed).sample(units, len(units))

    for _ in range(3):
        try:
            go(config, executor=StopsEarly(order=shuffled))
        except KeyboardInterrupt:
            continue
    with Index() as index:
        read_ledger(storage_of(config), index.records)
        before = len(index.records)
    finish = InlineExecutor(order=shuffled)
    go(config, executor=finish)
    ids = [row["row_id"] for row in data_of(config) if row["sample_index"] == 0]
    assert ids == [f"prompts.parquet:{i}" for i in range(len(ROWS))]
    assert finish.units_done == -(-len(ROWS) // unit_rows) - before


def test_a_rerun_of_a_finished_output_does_and_changes_nothing(
    qwen3_folder: Path, source_file: Path, tmp_path: Path
) -> None:
    config = config_for(qwen3_folder, source_file, tmp_path)
    first = go(config)
    leases = Path(config.output) / layout.LEASES
    kept = [p for p in tmp_path.rglob("*") if p.is_file() and leases not in p.parents]
    state = {p: (p.stat().st_mtime_ns, p.read_bytes()) for p in kept}
    executor = InlineExecutor()
    second = go(config, executor=executor)
    assert executor.units_done == 0
    assert second.session.rows == 0
    assert second.total == first.total
    assert {p: (p.stat().st_mtime_ns, p.read_bytes()) for p in kept} == state
    assert set(kept) | set(leases.iterdir()) == {p for p in tmp_path.rglob("*") if p.is_file()}
    assert len(list(leases.iterdir())) == 1, "the mark of the last lease"


def test_new_input_files_are_added_after_what_is_published(qwen3_folder: Path, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    pq.write_table(pa.Table.from_pylist(ROWS[:5]), folder / "b.parquet")
    config = config_for(qwen3_folder, folder, tmp_path / "out")
    go(config)
    before = data_of(config)
    pq.write_table(pa.Table.from_pylist(ROWS[5:9]), folder / "a.parquet")
    executor = InlineExecutor()
    summary = go(config, executor=executor)
    assert summary.publications == ("data-000000", "data-000001")
    after = data_of(config)
    assert after[: len(before)] == before
    assert [r["row_id"] for r in after[len(before) :: 2]] == [f"a.parquet:{i}" for i in range(4)]
    assert pq.read_table(config.output).num_rows == len(after), "a plain reader of the folder sees the same"


def test_a_changed_setting_or_input_is_an_error_that_names_it(
    qwen3_folder: Path, qwen25_folder: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    pq.write_table(pa.Table.from_pylist(ROWS[:5]), folder / "a.parquet")
    out = tmp_path / "out"
    go(config_for(qwen3_folder, folder, out))
    changed = config_for(qwen3_folder, folder, out, sampling=SamplingParams(max_tokens=9, n=2))
    with pytest.raises(FingerprintError, match=r"sampling\.max_tokens: was 8, is 9"):
        go(changed)
    with pytest.raises(FingerprintError, match="model: was"):
        go(config_for(qwen25_folder, folder, out))
    pq.write_table(pa.Table.from_pylist(ROWS[:6]), folder / "a.parquet")
    with pytest.raises(FingerprintError, match=r"'a\.parquet': its content changed"):
        go(config_for(qwen3_folder, folder, out))
    go(config_for(qwen3_folder, folder, out, mode="new"))
    assert len(data_of(config_for(qwen3_folder, folder, out))) == 12


def test_actors_threads_and_unit_size_may_change_between_runs(
    qwen3_folder: Path, source_file: Path, tmp_path: Path, undisturbed: list[dict[str, Any]]
) -> None:
    class Interrupted(InlineExecutor):
        def run_units(self, job: Any, work: Any) -> Any:
            yield next(iter(super().run_units(job, work)))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        go(config_for(qwen3_folder, source_file, tmp_path), executor=Interrupted())
    go(config_for(qwen3_folder, source_file, tmp_path, unit_rows=3, actors=2, num_threads=2, units_in_flight=3))
    assert data_of(config_for(qwen3_folder, source_file, tmp_path)) == undisturbed


def test_modes_refuse_and_discard(qwen3_folder: Path, source_file: Path, tmp_path: Path) -> None:
    go(config_for(qwen3_folder, source_file, tmp_path))
    with pytest.raises(OutputError, match="begun"):
        go(config_for(qwen3_folder, source_file, tmp_path, mode="error_if_exists"))
    executor = InlineExecutor()
    go(config_for(qwen3_folder, source_file, tmp_path, mode="new", seed=1), executor=executor)
    assert executor.units_done > 0


def test_an_output_with_foreign_tables_is_refused(qwen3_folder: Path, source_file: Path, tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": [1]}), tmp_path / "mine.parquet")
    with pytest.raises(OutputError, match=r"mine\.parquet"):
        go(config_for(qwen3_folder, source_file, tmp_path))


def test_one_writer_at_a_time_and_a_lease_expires(monkeypatch: pytest.MonkeyPatch) -> None:
    storage = MemoryStorage()
    first = lease.Lease(storage, ttl=0.3)
    with pytest.raises(LeaseError, match="is writing there"):
        lease.Lease(storage)
    first._stop.set()  # as if the process were dead: nobody renews
    first._thread.join()
    monkeypatch.setattr(lease.time, "time", lambda clock=lease.time.time: clock() + 1.0)
    second = lease.Lease(storage)
    with pytest.raises(LeaseLostError, match="took over"):
        first.check()
    second.release()
    assert lease.current_holder(storage) is None


def test_a_large_ledger_is_compacted_to_segments_of_bounded_size_and_then_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger_module, "_SEGMENT_RECORDS", 8)
    storage = LocalStorage(tmp_path, layout.SCRATCH)
    records = [_record(f"u{i}") for i in range(700)]
    with Index() as index, lease.hold_lease(storage) as held:
        ledger = Ledger(storage, index.records, held)
        for first in range(0, 700, 7):
            ledger.commit(records[first : first + 7])
    monkeypatch.setattr(ledger_module, "_COMPACT_SEGMENTS", 10)
    assert sorted_records(storage) == records
    keys = storage.keys(layout.LEDGER)
    assert [len(unseal_lines(storage.read(key))) for key in keys] == [8] * 87 + [4]
    assert sorted_records(storage) == records
    assert storage.keys(layout.LEDGER) == keys


def sorted_records(storage: Storage) -> list[CommitRecord]:
    """The ledger's records, as of its next load, in the order of units' numbers."""
    with Index() as index, lease.hold_lease(storage) as held:
        ledger, notes = Ledger.load(storage, index.records, held)
        assert notes == []
        return sorted(ledger.records, key=lambda record: int(record.unit_id[1:]))


def _record(unit_id: str) -> CommitRecord:
    counts = dict.fromkeys(
        ("first_row", "num_rows", "failed_rows", "samples", "prompt_tokens", "completion_tokens", "decode_forwards",
         "rows_forwarded", "staged_bytes"), 1)  # fmt: skip
    return CommitRecord(unit_id=unit_id, file_key="f", data_sha256="0", **counts)


def test_memory_sources_resume_and_notice_other_rows(qwen3_folder: Path, tmp_path: Path) -> None:
    rows = [dict(row) for row in ROWS]
    config = config_for(qwen3_folder, rows, tmp_path)
    go(config)
    assert rows == ROWS, "the caller's rows are not changed"
    executor = InlineExecutor()
    go(config, executor=executor)
    assert executor.units_done == 0
    with pytest.raises(FingerprintError, match="content changed"):
        go(config_for(qwen3_folder, [*ROWS, {"prompt": "more", "topic": "x"}], tmp_path))


def test_a_limit_reads_so_many_rows_and_no_more(qwen3_folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_text("".join(f'{{"prompt": "p{i}"}}\n' for i in range(20)))
    config = config_for(qwen3_folder, path, tmp_path / "out", limit=6)
    go(config)
    assert [r["prompt"] for r in data_of(config)[::2]] == [f"p{i}" for i in range(6)]


@given(fingerprint=st.text(max_size=5), unit=st.integers(1, 6))
@settings(max_examples=6, deadline=None)
def test_plans_are_deterministic_and_ids_depend_on_the_fingerprint(
    source_file: Path, fingerprint: str, unit: int
) -> None:
    source = open_source(str(source_file), MemoryStorage())
    units = list(plan_units(source, unit, fingerprint))
    assert units == list(plan_units(source, unit, fingerprint))
    assert len({u.unit_id for u in units}) == len(units)
    others = {u.unit_id for u in plan_units(source, unit, fingerprint + "x")}
    assert not others & {u.unit_id for u in units}
    assert [u for task in read_tasks(units) for u in task.units] == units
    assert list(read_tasks([])) == []


def test_recovering_a_decided_publication_is_idempotent(qwen3_folder: Path, source_file: Path, tmp_path: Path) -> None:
    config = config_for(qwen3_folder, source_file, tmp_path)
    go(config)
    storage = storage_of(config)
    storage.delete(layout.MANIFEST)  # as after a kill between making visible and listing
    assert Manifest.load(storage).publications == ()
    with lease.hold_lease(storage) as held:
        first = recover(storage, held)
        assert recover(storage, held).manifest == first.manifest
        assert first.notes == []
        assert len(first.manifest.publications) == 1


def test_records_of_an_earlier_version_are_named(qwen3_folder: Path, source_file: Path, tmp_path: Path) -> None:
    config = config_for(qwen3_folder, source_file, tmp_path)
    go(config)
    storage = storage_of(config)
    (key,) = storage.keys(layout.MANIFEST)
    raw = unseal(storage.read(key))
    raw["publications"][0]["version"] = 2
    storage.put(key, seal(raw))
    with pytest.raises(OutputError, match="is of version 2"):
        go(config)
    go(replace(config, mode="new"))
    assert len(Manifest.load(storage).publications) == 1
