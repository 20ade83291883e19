"""Two things that are lost at once, and odd ones: each is repaired, or one error says how to repair it."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline import layout
from pipeline.commit.index import Index
from pipeline.commit.ledger import read_ledger
from pipeline.errors import DamagedError, PipelineError
from pipeline.storage.local import LocalStorage
from testing.pipeline.damage import FAULTS, make_unreadable, message_of
from testing.pipeline.exactly_once import SmallJob
from testing.pipeline.fakes import InlineExecutor

MakeJob = Callable[..., SmallJob]


def growing(job: SmallJob, **fields: Any) -> Path:
    """Let the input be a folder; the path of a file that it may gain."""
    folder = job.source.parent / "in"
    folder.mkdir()
    job.source = job.source.rename(folder / job.source.name)
    job.config = replace(job.config, input=str(folder), **fields)
    return folder / "b.parquet"


def add(path: Path, rows: int = 5) -> None:
    pq.write_table(pa.table({"prompt": [f"Count to {i}." for i in range(rows)], "topic": ["later"] * rows}), path)


def test_epochs_do_not_come_again_where_the_leases_are_lost(make_job: MakeJob) -> None:
    """The run's record is older than the manifest: rows that a run adds then must not sort below the present ones."""
    job = make_job()
    later = growing(job)
    job.run()
    job.retry()
    for _ in range(2):
        job.run(retry_failed=True)
    job.storage.delete(layout.LEASES)
    add(later)
    job.run()
    assert [row["topic"] for row in job.data() if row["sample_index"] == 0].count("later") == 5
    assert job.problems() == ()


def test_a_lost_record_and_ledger_let_no_other_settings_in(make_job_that_ran: MakeJob) -> None:
    job = make_job_that_ran()
    before = job.data()
    for kind in (layout.RUN, layout.LEDGER):
        job.storage.delete(kind)
    with pytest.raises(DamagedError, match=r"were made with other settings.*mode='new'"):
        job.run(seed=7)
    assert job.data() == before
    job.run()
    assert job.data() == before
    assert job.problems() == ()


@pytest.mark.parametrize("fault", ["deleted", "empty"])
def test_the_ledger_of_a_retry_is_lost(make_job_that_ran: MakeJob, fault: str) -> None:
    job = make_job_that_ran()
    job.retry()
    before = job.data()
    for key in job.storage.keys(layout.LEDGER):
        if layout.epoch_of(key) == 2:
            FAULTS[fault](job.storage, key)
    assert any("run again to publish it" in problem for problem in job.problems())
    job.run(executor := InlineExecutor())
    assert executor.units_done == 2
    assert len(job.data()) == len(before)
    assert job.problems() == ()


def test_rows_of_an_input_that_is_gone_cannot_be_made_again_and_the_error_says_so(make_job: MakeJob) -> None:
    job = make_job()
    later = growing(job)
    job.run()
    add(later)
    job.run()
    later.unlink()
    job.run()
    job.storage.delete("data-000001/part-000000.parquet")
    for _ in range(2):
        with pytest.raises(
            DamagedError, match=r"rows of 'b\.parquet', which is not in the input any more.*put the input"
        ):
            job.run(repair=True)
    add(later)
    job.run(repair=True)
    assert job.problems() == ()


@pytest.mark.parametrize("lost", ["the parts before they are visible", "the record of a revision and the manifest"])
def test_decided_publications_whose_files_are_gone_take_a_repair(
    make_job: MakeJob, undisturbed_rows: list[dict[str, Any]], lost: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = make_job()
    if lost.startswith("the parts"):
        with monkeypatch.context() as patch:
            patch.setattr(LocalStorage, "promote", lambda *given: (_ for _ in ()).throw(KeyboardInterrupt))
            with pytest.raises(KeyboardInterrupt):
                job.run()
        job.storage.delete(layout.PUBLISH)
    else:
        job.run()
        job.run(retry_failed=True)
        job.storage.delete(layout.MANIFEST)
        job.storage.delete(max(job.storage.keys(layout.PUBLICATIONS)))
    with pytest.raises(DamagedError, match=r"the files of this publication are gone.*--repair"):
        job.run()
    job.run(repair=True)
    assert job.data() == undisturbed_rows
    assert job.problems() == ()


def test_a_list_of_units_that_cannot_be_made_again_takes_a_repair(make_job_that_ran: MakeJob) -> None:
    """Killed in the middle of a retry: the ledger is ahead of the publications."""
    job = make_job_that_ran()
    job.stop_after(1, retry_failed=True)
    job.storage.delete(layout.UNITS)
    with pytest.raises(DamagedError, match=r"list of the units of data-000000 is missing.*--repair"):
        job.run()
    job.run(repair=True)
    assert job.problems() == ()


@pytest.mark.parametrize("name", ["_SUCCESS", ".part-000000.parquet.crc", "notes.txt"])
def test_a_new_run_begins_beside_files_that_others_left_in_a_published_folder(
    make_job_that_ran: MakeJob, undisturbed_rows: list[dict[str, Any]], name: str
) -> None:
    job = make_job_that_ran()
    out = Path(job.config.output)
    (out / "data-000000" / name).write_text("")
    job.run(mode="new")
    assert (out / "data-000000" / name).exists()
    assert job.data() == undisturbed_rows
    assert sum(pq.read_metadata(part).num_rows for part in out.glob("data-*/*.parquet")) == len(undisturbed_rows)


@pytest.mark.parametrize("format", ["parquet", "ipc", "jsonl"])
def test_damage_that_keeps_the_size_never_ends_in_an_error_that_is_not_ours(make_job: MakeJob, format: str) -> None:
    job = make_job()
    job.config = replace(job.config, output_format=format)
    job.run()
    whole = make_job()
    whole.config = replace(whole.config, output_format=format)
    whole.run()
    whole.run(retry_failed=True)
    kept = Path(job.config.output).with_name("kept")
    shutil.copytree(job.config.output, kept)
    draw = random.Random(3)
    for _ in range(3):
        shutil.rmtree(job.config.output)
        shutil.copytree(kept, job.config.output)
        key = draw.choice(job.storage.keys("data-000000"))
        data = bytearray(job.storage.read(key))
        for _ in range(draw.choice((1, 3, 40))):
            data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
        job.storage.put(key, bytes(data))
        said = message_of(job.data)
        assert said is None or (key in said and "--repair" in said)
        job.run(retry_failed=True)
        assert job.data() == whole.data()
        assert job.problems() == ()


@pytest.mark.parametrize("kind", [layout.LEASES, layout.RUN, layout.MANIFEST, layout.PUBLICATIONS, layout.LEDGER])
def test_state_that_cannot_be_given_back_is_damage_and_not_the_stores_trouble(
    make_job_that_ran: MakeJob, kind: str
) -> None:
    job = make_job_that_ran()
    make_unreadable(job.storage.inner, job.storage.keys(kind)[-1])
    try:
        job.run()
    except PipelineError:
        job.storage.delete(job.storage.keys(kind)[-1] if job.storage.keys(kind) else kind)
    job.run(mode="new")
    assert job.problems() == ()


def test_a_ledger_that_is_written_anew_while_it_is_read_is_read_again(
    make_job_that_ran: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = make_job_that_ran(5)
    storage = job.storage.inner
    keys = storage.keys(layout.LEDGER)
    merged = storage.read(keys[0])
    real, looks = type(storage).read, []

    def meanwhile(self: LocalStorage, wanted: str) -> bytes:
        if not looks and wanted.startswith(layout.LEDGER):
            looks.append(wanted)
            storage.put(layout.segment(9, 0, "other"), merged)
            storage.delete(keys[0])
        return real(self, wanted)

    monkeypatch.setattr(type(storage), "read", meanwhile)
    with Index() as index:
        reading = read_ledger(job.storage, index.records)
        assert (len(index.records), reading.segments, reading.damaged) == (5, 5, [])


def test_a_sweep_of_somebody_who_was_asleep_costs_an_attempt_and_no_run(
    make_job: MakeJob, undisturbed_rows: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    job = make_job()
    real, swept = LocalStorage._aside, []

    def sweeping(self: LocalStorage, target: Path) -> Any:
        name = real(self, target)
        if target.name.endswith(".rows.arrow") and len(swept) < 3:
            swept.append(target)
            shutil.rmtree(self._scratch, ignore_errors=True)
            aside = name.__enter__()
            shutil.rmtree(aside.parent)
            name.__exit__(None, None, None)
            return _Given(aside)
        return name

    monkeypatch.setattr(LocalStorage, "_aside", sweeping)
    job.run()
    assert len(swept) == 3
    assert job.data() == undisturbed_rows


class _Given:
    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> Path:
        return self._path

    def __exit__(self, *error: object) -> None:
        return None


@pytest.mark.parametrize("lost", ["its record and the manifest", "its list of units, so that it cannot be made again"])
def test_a_repair_removes_nothing_that_it_cannot_make_again(make_job: MakeJob, lost: str) -> None:
    """Of an input that is drained: the published rows are all that is left of it."""
    job = make_job()
    later = growing(job)
    job.run()
    add(later)
    job.run()
    kept = later.read_bytes()
    later.unlink()
    if lost.startswith("its record"):
        job.storage.delete(layout.MANIFEST)
        job.storage.delete(max(job.storage.keys(layout.PUBLICATIONS)))
    else:
        job.storage.delete(max(job.storage.keys(layout.UNITS)))
        job.storage.delete("data-000001/part-000000.parquet")
    before = job.storage.keys("data-000001")
    for _ in range(2):
        with pytest.raises(DamagedError, match=r"data-000001 .*rows of 'b\.parquet', which is not in the input"):
            job.run(repair=True)
    assert job.storage.keys("data-000001") == before, "nothing was removed"
    later.write_bytes(kept)
    job.run(repair=True)
    assert [row["topic"] for row in job.data() if row["sample_index"] == 0].count("later") == 5
    assert job.problems() == ()
