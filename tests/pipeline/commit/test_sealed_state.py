"""State files that are empty, cut, altered or gone: made again where that is provable, else one clear error."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import pipeline
from pipeline import layout
from pipeline.commit import lease
from pipeline.errors import DamagedError
from pipeline.layout import STATE
from pipeline.storage.local import LocalStorage
from pipeline.storage.protocol import Storage
from testing.pipeline.damage import FAULTS, message_of
from testing.pipeline.exactly_once import SmallJob
from testing.pipeline.fakes import InlineExecutor

MakeJob = Callable[..., SmallJob]

KINDS = {
    "lease": layout.LEASES,
    "run record": layout.RUN,
    "manifest": layout.MANIFEST,
    "publication record": layout.PUBLICATIONS,
    "list of units": layout.UNITS,
    "ledger": layout.LEDGER,
}

Rows = list[dict[str, Any]]


def damage_all(storage: Storage, kind: str, fault: str) -> list[str]:
    keys = storage.keys(KINDS[kind])
    for key in keys:
        FAULTS[fault](storage, key)
    return keys


@pytest.mark.sweep(14)
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_finished_output_survives_the_loss_of_any_one_kind_of_state(
    make_job_that_ran: MakeJob, undisturbed_rows: Rows, kind: str, fault: str, caplog: pytest.LogCaptureFixture
) -> None:
    job = make_job_that_ran()
    damage_all(job.storage, kind, fault)
    executor = InlineExecutor()
    with caplog.at_level(logging.WARNING):
        job.run(executor)
    assert job.data() == undisturbed_rows
    assert job.problems() == ()
    assert executor.units_done == (6 if kind == "ledger" else 0), "without a ledger nothing proves the published rows"
    lines = [record.getMessage() for record in caplog.records]
    assert all("\n" not in line for line in lines)
    silent = {("ledger", "deleted"), ("manifest", "deleted")}  # nothing there says that there was something
    assert bool(lines) == (kind != "lease" and (kind, fault) not in silent), lines
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        job.run(executor := InlineExecutor())
    assert executor.units_done == 0
    assert caplog.records == [], "it is said once, and repaired"


@pytest.mark.sweep(7)
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("kind", ["lease", "run record", "ledger"])
def test_an_interrupted_output_survives_it_too(
    make_job_that_ran: MakeJob, undisturbed_rows: Rows, kind: str, fault: str
) -> None:
    job = make_job_that_ran(4)
    damage_all(job.storage, kind, fault)
    executor = InlineExecutor()
    job.run(executor)
    assert executor.units_done == (6 if kind == "ledger" else 2)
    assert job.data() == undisturbed_rows
    assert job.problems() == ()


@pytest.mark.sweep(3)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_record_that_never_came_to_be_whole_is_published_again(
    make_job: MakeJob, undisturbed_rows: Rows, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a power loss leaves the record: decided, and nothing made visible yet."""
    job = make_job()
    with monkeypatch.context() as patch:
        patch.setattr(LocalStorage, "promote", lambda *given: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            job.run()
    damage_all(job.storage, "publication record", fault)
    executor = InlineExecutor()
    job.run(executor)
    assert executor.units_done == 0
    assert job.data() == undisturbed_rows
    assert job.problems() == ()
    assert job.storage.keys(layout.PUBLISH) == []


@pytest.mark.sweep(3)
@pytest.mark.parametrize("fault", FAULTS)
def test_the_record_and_the_manifest_together_are_an_error_that_says_what_to_do(
    make_job_that_ran: MakeJob, undisturbed_rows: Rows, fault: str
) -> None:
    job = make_job_that_ran()
    for kind in ("manifest", "publication record"):
        damage_all(job.storage, kind, fault)
    with pytest.raises(DamagedError, match=r"data-000000: no record names this publication.*--repair"):
        job.run()
    assert len(list(Path(job.config.output).glob("data-000000/*"))) > 0, "nothing is removed unasked"
    job.run(executor := InlineExecutor(), repair=True)
    assert executor.units_done == 6
    assert job.data() == undisturbed_rows
    assert job.problems() == ()


def test_the_run_record_is_made_anew_only_where_the_ledger_agrees_with_the_settings(make_job_that_ran: MakeJob) -> None:
    job = make_job_that_ran(4)
    damage_all(job.storage, "run record", "empty")
    with pytest.raises(
        DamagedError, match=r"run/00000001\.json: the run's record is empty.*other settings.*mode='new'"
    ):
        job.run(seed=7)
    job.run()
    assert job.problems() == ()


@pytest.mark.sweep(5)
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("mode", ["finished", "interrupted"])
def test_a_new_run_begins_whatever_is_there(make_job: MakeJob, undisturbed_rows: Rows, fault: str, mode: str) -> None:
    job = make_job()
    if mode == "finished":
        job.run()
    else:
        job.stop_after(3)
    for key in job.storage.keys(STATE):
        FAULTS[fault](job.storage, key)
    job.run(executor := InlineExecutor(), mode="new")
    assert executor.units_done == 6
    assert job.data() == undisturbed_rows
    assert job.problems() == ()
    (folder,) = [p.name for p in Path(job.config.output).iterdir() if p.name != STATE]
    # Where a writer may be asleep, publications are counted from a number on that it does not know.
    assert layout.is_publication(folder)


def test_a_new_run_removes_all_folders_it_may_have_made_and_no_others(make_job_that_ran: MakeJob) -> None:
    job = make_job_that_ran()
    out = Path(job.config.output)
    (out / "data-000007-r002").mkdir()
    (out / "data-000007-r002" / "part-000000.parquet").write_bytes(b"left over")
    (out / "data-000008").mkdir()
    (out / "data-000008" / "notes.txt").write_text("a person's own")
    (out / "data-plan").mkdir()
    job.run(mode="new")
    assert sorted(p.name for p in out.iterdir()) == [STATE, "data-000008", "data-000009", "data-plan"]
    assert (out / "data-000008" / "notes.txt").exists()


@pytest.mark.parametrize("fault", ["empty", "a bit is flipped"])
@pytest.mark.parametrize("kind", KINDS)
def test_readers_and_status_and_verify_name_the_file_and_the_remedy(
    make_job_that_ran: MakeJob, kind: str, fault: str
) -> None:
    job = make_job_that_ran()
    (key, *_) = damage_all(job.storage, kind, fault)
    for look in (
        lambda: pipeline.read(job.config.output, format="arrow"),
        lambda: pipeline.status(job.config.output),
        lambda: pipeline.verify(job.config.output),
    ):
        said = message_of(look)
        assert said is None or (key in said and "un the same command" in said and "\n" not in said)


def test_an_unreadable_lease_holds_nobody_off_and_a_live_one_does(make_job: MakeJob) -> None:
    storage = make_job().storage
    with lease.hold_lease(storage) as held:
        with pytest.raises(pipeline.LeaseError, match="is writing there"):
            lease.Lease(storage)
        storage.put(layout.lease(held.epoch), b"")
        held.verify()  # its own damaged lease is no reason to stop
        second = lease.Lease(storage)
        assert second.epoch > held.epoch
        with pytest.raises(pipeline.LeaseLostError, match="took over"):
            held.verify()
        second.release()


# --- after a power loss ---- ------------------------------------------------------------------


def test_what_gets_a_name_is_on_the_disk_before_and_its_name_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every rename and link of a file: the file was flushed, its size not changed since, and then the folder."""
    calls: list[tuple[str, Any]] = []
    fsync, replace, link, rename = os.fsync, os.replace, os.link, os.rename

    def spy_fsync(descriptor: int) -> None:
        calls.append(("fsync", os.fstat(descriptor).st_ino))
        fsync(descriptor)

    def spy(name: str, real: Callable[..., None]) -> Callable[..., None]:
        def named(source: Any, target: Any) -> None:
            folder = os.stat(Path(target).parent).st_ino
            calls.append((name, (os.stat(source).st_ino, folder, os.path.isdir(source))))
            real(source, target)

        return named

    monkeypatch.setattr(os, "fsync", spy_fsync)
    for name, real in (("replace", replace), ("link", link), ("rename", rename)):
        monkeypatch.setattr(os, name, spy(name, real))
    storage = LocalStorage(tmp_path / "a" / "b", layout.SCRATCH)
    storage.put("x/y/one", b"1")
    assert storage.put_new("x/y/two", b"2")
    assert not storage.put_new("x/y/two", b"3")
    with storage.create("z/three") as file:
        file.write(b"3" * 100_000)
    storage.promote("z", "visible")
    named = [i for i, (what, _) in enumerate(calls) if what != "fsync"]
    assert len(named) == 5
    for i in named:
        inode, _, is_folder = calls[i][1]
        assert is_folder or ("fsync", inode) in calls[:i], f"{calls[i]} before its content was on the disk"
    for i in (named[0], named[1], named[3], named[4]):  # the third failed: the name was taken
        following = calls[i + 1 : next((j for j in named if j > i), len(calls))]
        assert ("fsync", calls[i][1][1]) in following, f"the folder was not flushed after {calls[i]}"
    made = {os.stat(p).st_ino for p in (tmp_path, tmp_path / "a", tmp_path / "a" / "b", tmp_path / "a" / "b" / "x")}
    assert made <= {inode for what, inode in calls if what == "fsync"}, "folders made for it are flushed too"


def test_a_file_system_without_links_leaves_no_half_of_a_record_that_counts(
    make_job: MakeJob, monkeypatch: pytest.MonkeyPatch, undisturbed_rows: Rows
) -> None:
    """There a crash in the middle of the put leaves a cut record; it decides nothing."""
    job = make_job()

    def no_links(*given: Any) -> None:
        raise OSError(95, "not supported")

    monkeypatch.setattr(os, "link", no_links)
    job.run()
    assert job.data() == undisturbed_rows
    (key,) = job.storage.keys(layout.PUBLICATIONS)
    assert job.storage.read(key).startswith(b"{")


def test_state_objects_are_whole_or_named_as_damaged() -> None:
    from pipeline.commit.sealed import seal, seal_lines, unseal, unseal_lines

    document = {"a": [1, {"b": None}], "text": "ä\n", "number": 0.1}
    data = seal(document)
    assert unseal(data) == document
    lines = ['{"x": 1}', "ä", ""]
    packed = seal_lines(lines)
    assert unseal_lines(packed) == lines
    assert unseal_lines(seal_lines([])) == []
    for whole, read in ((data, unseal), (packed, unseal_lines)):
        for cut in range(len(whole) - 1):
            with pytest.raises(DamagedError):
                read(whole[:cut])
        for i in range(len(whole)):
            changed = whole[:i] + bytes([whole[i] ^ 0x20]) + whole[i + 1 :]
            try:
                assert read(changed) in (document, lines)  # white space, or the letters of an escape
            except DamagedError:
                continue
    with pytest.raises(DamagedError, match="empty"):
        unseal(b"")
    with pytest.raises(DamagedError, match="12 bytes of nothing"):
        unseal_lines(bytes(12))
