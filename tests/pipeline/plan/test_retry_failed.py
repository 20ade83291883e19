"""Failed rows done again: their new rows take the place of the old ones, wherever a kill falls."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import s3fs
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline import layout
from pipeline.codec import SamplingParams
from pipeline.commands.read import read
from pipeline.commands.run import run_on
from pipeline.commands.summary import RunSummary
from pipeline.commands.verify import verify
from pipeline.config import RunConfig
from pipeline.errors import TooManyFailuresError
from pipeline.plan.retry_failed import failed_rows, merge_retried
from pipeline.schema import DATA_COLUMNS
from pipeline.storage.local import LocalStorage
from pipeline.storage.open import open_storage
from pipeline.storage.protocol import Storage
from testing.pipeline.fakes import BANNED_TOKEN, FakeEngine, InlineExecutor
from testing.pipeline.faults import CrashAt, FaultyStorage, Killed, Moment, Recorder, crash_points
from testing.pipeline.leases import expire_leases
from testing.pipeline.s3 import S3Server
from testing.sweeps import AT_EVERY

BANNED = (2, 3, 9, 17)
HOPELESS = 11
ROWS = 19
LENIENT = partial(FakeEngine, bans=False)


def rows(first: int, stop: int) -> pa.Table:
    ids = [[20 + i] + ([BANNED_TOKEN] if i in BANNED else []) if i != HOPELESS else [] for i in range(first, stop)]
    return pa.table({"prompt_token_ids": pa.array(ids, pa.list_(pa.int64())), "k": list(range(first, stop))})


@pytest.fixture(scope="module")
def source_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("input") / "in.parquet"
    pq.write_table(rows(0, ROWS), path)
    return path


def config_for(model: Path, source: Path, output: Path, **fields: Any) -> RunConfig:
    own = {"unit_rows": 3, "target_part_bytes": 9000, "sampling": SamplingParams(max_tokens=4, n=2), **fields}
    return RunConfig(input=str(source), output=str(output), model=str(model), **own)


def go(
    config: RunConfig, engine: Any = FakeEngine, storage: Storage | None = None, **fields: Any
) -> tuple[RunSummary, InlineExecutor]:
    executor = InlineExecutor(engine=engine)
    storage = storage or LocalStorage(config.output, layout.SCRATCH)
    return run_on(executor, replace(config, **fields), storage, lambda progress: None), executor


def data_of(output: str) -> list[dict[str, Any]]:
    return read(output, format="arrow").select(["k", *DATA_COLUMNS]).to_pylist()


def plain(output: str) -> list[int]:
    """The view of a plain reader: sample 0 rows' ``k`` in the order of names."""
    table = pq.read_table(output)
    return [k for k, s in zip(table["k"].to_pylist(), table["sample_index"].to_pylist(), strict=True) if s == 0]


@pytest.fixture(scope="module")
def never_failed(qwen3_folder: Path, source_file: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """The output where the banned rows succeed at once."""
    config = config_for(qwen3_folder, source_file, tmp_path_factory.mktemp("never"))
    go(config, LENIENT)
    return data_of(config.output)


def test_retried_rows_take_the_place_of_the_failed_ones_and_attempts_count_up(
    qwen3_folder: Path, source_file: Path, tmp_path: Path, never_failed: list[Any]
) -> None:
    config = config_for(qwen3_folder, source_file, tmp_path)
    first, _ = go(config)
    assert first.total.failures == {"RequestError": 5}
    assert [own.rows for own in first.total.failed_by_cause] == [4, 1]
    assert "Failed rows by cause:" in first.describe()
    second, executor = go(config, LENIENT, retry_failed=True)
    assert executor.units_done == 4, "units without failed rows are left alone"
    assert (second.session.rows, second.session.samples, second.session.failed_rows) == (5, 8, 1)
    assert (second.total.rows, second.total.failures, second.total.samples) == (ROWS, {"RequestError": 1}, 36)
    assert data_of(config.output) == never_failed
    assert second.publications == ("data-000000-r001",)
    assert plain(config.output) == list(range(ROWS))
    letters = read(config.output, table="dead_letters", format="arrow").to_pylist()
    assert [(d["k"], d["attempt"]) for d in letters] == [(HOPELESS, 2)]
    third, executor = go(config, LENIENT, retry_failed=True)
    assert executor.units_done == 1
    assert data_of(config.output) == never_failed
    assert read(config.output, table="dead_letters", format="arrow")["attempt"].to_pylist() == [3]
    assert sorted(p.name for p in tmp_path.glob("data-*")) == ["data-000000-r002"]
    fourth, executor = go(config, LENIENT)
    assert (executor.units_done, fourth.total) == (0, third.total)


def test_a_unit_keeps_what_was_right_and_parts_without_failures_are_copied(
    qwen3_folder: Path, source_file: Path, tmp_path: Path
) -> None:
    config = config_for(qwen3_folder, source_file, tmp_path, target_part_bytes=1)
    go(config)
    before = {p.name: p.read_bytes() for p in tmp_path.glob("data-*/*")}
    stats = pq.read_table(tmp_path).select(["k", "stats", "timings"]).to_pylist()
    go(config, LENIENT, retry_failed=True)
    after = {p.name: p.read_bytes() for p in tmp_path.glob("data-*/*")}
    assert before.keys() == after.keys()
    same = {name for name in before if before[name] == after[name]}
    assert len(same) == 7 - 4
    now = pq.read_table(tmp_path).select(["k", "stats", "timings"]).to_pylist()
    assert [r for r in now if r["k"] not in (*BANNED, HOPELESS)] == [
        r for r in stats if r["k"] not in (*BANNED, HOPELESS)
    ]


@AT_EVERY
def test_a_kill_at_any_storage_operation_of_a_retry_then_a_rerun_equals_the_undisturbed_one(
    qwen3_folder: Path, source_file: Path, tmp_path: Path, never_failed: list[Any], every: bool
) -> None:
    go(config_for(qwen3_folder, source_file, tmp_path / "failed", unit_rows=7))

    def retry_on(name: str, inject: Callable[[Moment], None]) -> tuple[RunConfig, LocalStorage]:
        config = config_for(qwen3_folder, source_file, tmp_path / name, unit_rows=7)
        shutil.copytree(tmp_path / "failed", config.output)
        storage = LocalStorage(config.output, layout.SCRATCH)
        with suppress(Killed):
            go(config, LENIENT, FaultyStorage(storage, inject), retry_failed=True)
        return config, storage

    recorder = Recorder()
    retry_on("whole", recorder)
    assert len(recorder.moments) > 30
    for at in crash_points(recorder.moments, every=every):
        crash = CrashAt(at)
        config, inner = retry_on(f"{at}", crash)
        assert crash.dead
        seen = [row for part in sorted(Path(config.output).glob("data-*/*")) for row in pq.read_table(part).to_pylist()]
        keys = [(row["k"], row["sample_index"]) for row in seen]
        assert len(set(keys)) == len(keys), "never a row of both"
        assert not {row["k"] for row in seen if row["error"]} & {row["k"] for row in seen if row["text"]}
        expire_leases(inner)  # the dead process cannot give its lease back
        go(config, LENIENT, retry_failed=True)
        assert data_of(config.output) == never_failed
        assert plain(config.output) == list(range(ROWS))
        assert inner.keys(layout.STAGED) == inner.keys(layout.PUBLISH) == []
        assert len(read(config.output, table="dead_letters", format="arrow")) == 1


def test_a_plain_rerun_publishes_what_an_interrupted_retry_achieved(
    qwen3_folder: Path, source_file: Path, tmp_path: Path
) -> None:
    class Interrupted(InlineExecutor):
        def run_units(self, job: Any, work: Any) -> Any:
            yield next(iter(super().run_units(job, work)))
            raise KeyboardInterrupt

    config = config_for(qwen3_folder, source_file, tmp_path)
    go(config)
    with pytest.raises(KeyboardInterrupt):
        run_on(Interrupted(engine=LENIENT), replace(config, retry_failed=True),
               LocalStorage(tmp_path, layout.SCRATCH), lambda progress: None)  # fmt: skip
    summary, executor = go(config)
    assert executor.units_done == 0
    assert [r["k"] for r in data_of(config.output) if r["error"]] == [3, 9, 11, 17]
    assert summary.total.failed_rows == 4
    assert summary.publications == ("data-000000-r001",)


def test_rows_of_an_unfinished_output_are_retried_too_and_grown_inputs_keep_their_order(
    qwen3_folder: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    pq.write_table(rows(0, 6), folder / "a.parquet")
    config = config_for(qwen3_folder, folder, tmp_path / "out")
    go(config)
    pq.write_table(rows(6, ROWS), folder / "b.parquet")

    class Interrupted(InlineExecutor):
        def run_units(self, job: Any, work: Any) -> Any:
            for i, record in enumerate(super().run_units(job, work)):
                yield record
                if i == 2:
                    raise KeyboardInterrupt

    storage = LocalStorage(config.output, layout.SCRATCH)
    with pytest.raises(KeyboardInterrupt):
        run_on(Interrupted(), config, storage, lambda progress: None)
    summary, _ = go(config, LENIENT, retry_failed=True)
    assert summary.publications == ("data-000000-r001", "data-000001")
    assert plain(config.output) == list(range(ROWS))
    assert summary.total.failures == {"RequestError": 1}
    assert [d["attempt"] for d in read(config.output, table="dead_letters", format="arrow").to_pylist()] == [2]


@given(
    counts=st.lists(st.integers(0, 3), min_size=1, max_size=12),
    again=st.lists(st.integers(0, 3), min_size=12, max_size=12),
)
@settings(max_examples=60, deadline=None)
def test_merging_replaces_failed_rows_and_keeps_the_order(counts: list[int], again: list[int]) -> None:
    """``counts``: samples of each input row, 0 for a failed one; ``again``: the same of its second attempt."""

    def table(entries: list[tuple[int, int]]) -> pa.Table:
        parts = [(row, s, "error" if n == 0 else "stop") for row, n in entries for s in range(max(1, n))]
        return pa.table(
            {"row": [p[0] for p in parts], "sample_index": pa.array([p[1] for p in parts], pa.int32()),
             "finish_reason": [p[2] for p in parts]}
        )  # fmt: skip

    failed = [row for row, n in enumerate(counts) if n == 0]
    before = table(list(enumerate(counts)))
    assert failed_rows(before, "") == failed
    if failed:
        retried = table([(row, again[i]) for i, row in enumerate(failed)])
        now = {row: again[i] for i, row in enumerate(failed)}
        whole = table([(row, now.get(row, n)) for row, n in enumerate(counts)])
        assert merge_retried(before, retried, "").equals(whole)


def test_too_many_failures_stop_the_run_early_with_the_reasons_and_it_resumes(
    qwen3_folder: Path, tmp_path: Path
) -> None:
    ids = [[20 + i % 50] + [BANNED_TOKEN] * (i % 3 == 0) for i in range(400)]
    pq.write_table(pa.table({"prompt_token_ids": ids, "k": list(range(400))}), tmp_path / "in.parquet")
    config = config_for(qwen3_folder, tmp_path / "in.parquet", tmp_path / "out", unit_rows=20, max_failed_fraction=0.3)
    with pytest.raises(TooManyFailuresError, match=r"3\d of the 100 rows.*: 3\d rows: token 5 is banned"):
        go(config)
    assert not list((tmp_path / "out").glob("data-*"))
    summary, executor = go(config, max_failed_fraction=0.4)
    assert executor.units_done == 15
    assert summary.total.failed_rows == 134


def test_a_retry_on_an_object_store_shows_plain_readers_no_row_twice_and_is_proven(
    qwen3_folder: Path, source_file: Path, tmp_path: Path, s3: S3Server, never_failed: list[Any]
) -> None:
    """There a folder cannot change its name: old parts go singly, then new parts come singly."""
    place = s3.bucket(f"b-{uuid.uuid4().hex[:12]}")
    config = config_for(qwen3_folder, source_file, tmp_path, storage_options=s3.options)
    config = replace(config, output=f"{place}/out")
    open_output = partial(open_storage, config.output, layout.SCRATCH, s3.options)
    go(config, storage=open_output())
    seen: list[list[str]] = []
    fs = s3fs.S3FileSystem(use_listings_cache=False, **s3.options)

    def look(moment: Moment) -> None:
        if moment.key.startswith("data-"):
            seen.append([path.split("/out/")[1] for path in fs.find(config.output) if "/__" not in path])

    go(config, LENIENT, FaultyStorage(open_output(), look), retry_failed=True)
    assert len(seen) > 2
    assert all(len({name.split("/")[0] for name in names}) <= 1 for names in seen), "never parts of both"
    table = read(config.output, format="arrow", storage_options=s3.options)
    assert table.select(["k", *DATA_COLUMNS]).to_pylist() == never_failed
    found = verify(config.output, input=str(source_file), storage_options=s3.options, input_storage_options={})
    assert found.ok, found.problems
