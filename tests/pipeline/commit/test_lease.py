"""One writer: who holds a lease is known by more than a number, and a woken writer changes nothing."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import jobs.generate
import pipeline
from pipeline import layout
from pipeline.commit import lease
from pipeline.commit.lease import Holder, Lease, ProcessIdentity
from pipeline.commit.recover import recover
from pipeline.errors import LeaseError, LeaseLostError
from pipeline.storage.local import LocalStorage
from pipeline.storage.protocol import Storage
from testing.pipeline.damage import FAULTS
from testing.pipeline.exactly_once import SmallJob
from testing.pipeline.fakes import InlineExecutor
from testing.pipeline.faults import FaultyStorage, Moment
from testing.pipeline.leases import expire_leases
from testing.repository import ROOT

Rows = list[dict[str, Any]]


@pytest.fixture
def job(tmp_path: Path, qwen3_folder: Path) -> SmallJob:
    return SmallJob(tmp_path, qwen3_folder)


# --- who holds it ---------------------------------------------------------------------------------


def ended_process() -> ProcessIdentity:
    own = ProcessIdentity.own()
    child = subprocess.Popen([sys.executable, "-c", ""])
    started = int(Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()[19])
    child.wait()
    return replace(own, pid=child.pid, started=started)


def put_lease(storage: Storage, process: ProcessIdentity) -> None:
    holder = Holder(epoch=1, token="other", process=process, expires=time.time() + 60)
    storage.put(layout.lease(1), holder.to_bytes())


def test_a_process_that_is_known_to_have_ended_is_taken_over_at_once(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path, layout.SCRATCH)
    gone = ended_process()
    assert gone.has_ended()
    put_lease(storage, gone)
    held = Lease(storage)
    assert held.predecessors == (1,)
    held.release()


def test_a_process_id_that_was_given_again_is_another_process(tmp_path: Path) -> None:
    own = ProcessIdentity.own()
    assert not own.has_ended()
    assert replace(own, started=own.started - 1).has_ended(), "this one started later"


@pytest.mark.parametrize(
    "other",
    [{"namespace": "pid:[1]"}, {"boot": "another"}, {"boot": ""}, {"namespace": ""}, {"started": -1}],
    ids=str,
)
def test_of_a_process_elsewhere_nobody_can_tell_so_its_lease_runs_out(tmp_path: Path, other: dict[str, Any]) -> None:
    """The same host name and a process id that is not here: containers of one machine."""
    storage = LocalStorage(tmp_path, layout.SCRATCH)
    away = replace(ended_process(), **other)
    assert not away.has_ended()
    put_lease(storage, away)
    with pytest.raises(LeaseError, match=rf"process {away.pid} on .* is writing there \(its lease ends in \d+ s"):
        Lease(storage)


def test_a_zombie_has_ended() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    stat = Path(f"/proc/{child.pid}/stat")
    started = int(stat.read_text().rpartition(")")[2].split()[19])
    deadline = time.monotonic() + 20
    while stat.read_text().rpartition(")")[2].split()[0] != "Z" and time.monotonic() < deadline:
        time.sleep(0.01)
    assert replace(ProcessIdentity.own(), pid=child.pid, started=started).has_ended()
    child.wait()


def test_a_run_in_another_pid_namespace_does_not_take_over_a_live_lease(tmp_path: Path) -> None:
    """A real namespace: there, this process's id is nobody's."""
    storage = LocalStorage(tmp_path, layout.SCRATCH)
    code = (
        "import sys; from pipeline import layout; from pipeline.commit.lease import Lease; "
        "from pipeline.storage.open import LocalStorage; Lease(LocalStorage(sys.argv[1], layout.SCRATCH))"
    )
    privileged = ["unshare", "--pid", "--fork", "--mount-proc"]
    as_user = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc"]
    command = privileged if os.geteuid() == 0 else as_user
    with lease.hold_lease(storage):
        found = subprocess.run(
            [*command, sys.executable, "-c", code, str(tmp_path)], cwd=ROOT, capture_output=True, text=True,
            check=False, timeout=60,
        )  # fmt: skip
    assert found.returncode == 1, found.stderr
    assert "is writing there" in found.stderr, found.stderr


# --- writers that wake up -------------------------------------------------------------------------


class Sleeper:
    """Stops the process (its thread) before the first operation on a folder of the output, until it is woken."""

    def __init__(self, prefix: str, skip: int = 0) -> None:
        self._prefix, self._skip = prefix, skip
        self.asleep, self.wake = threading.Event(), threading.Event()

    def __call__(self, moment: Moment) -> None:
        if moment.after or not moment.key.startswith(self._prefix) or self.asleep.is_set():
            return
        if self._skip:
            self._skip -= 1
            return
        self.asleep.set()
        assert self.wake.wait(60)


class Writer(threading.Thread):
    """A run whose storage stops it at some point."""

    def __init__(self, job: SmallJob, sleeper: Sleeper, **fields: Any) -> None:
        super().__init__(daemon=True)
        self._job, self._sleeper, self._fields = job, sleeper, fields
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self._job.run(storage=FaultyStorage(self._job.storage, self._sleeper), **self._fields)
        except BaseException as error:
            self.error = error


Freeze = Callable[..., tuple[Sleeper, Writer]]
POINTS = {
    "in the put of a ledger segment": (layout.LEDGER, 2),
    "in the put of its last ledger segment": (layout.LEDGER, 5),
    "while it stages a unit": (layout.STAGED, 3),
    "while it writes a part": (layout.PUBLISH, 1),
    "before it decides": (layout.PUBLICATIONS, 0),
    "before it makes the decided publication visible": ("data-", 0),
    "before the manifest": (layout.MANIFEST, 0),
    "in the record of the run": (layout.RUN, 0),
    "while it removes its staged units": (layout.STAGED, 9),
}


@pytest.fixture
def frozen(job: SmallJob) -> Freeze:
    def freeze(prefix: str, skip: int, **fields: Any) -> tuple[Sleeper, Writer]:
        sleeper = Sleeper(prefix, skip)
        writer = Writer(job, sleeper, **fields)
        writer.start()
        assert sleeper.asleep.wait(60), "it never came there"
        expire_leases(job.storage)
        return sleeper, writer

    return freeze


def woken(sleeper: Sleeper, writer: Writer) -> BaseException | None:
    sleeper.wake.set()
    writer.join(60)
    assert not writer.is_alive()
    return writer.error


@pytest.mark.sweep(9)
@pytest.mark.parametrize("second", ["the same run", "a new run", "a new run with other settings", "two runs"])
@pytest.mark.parametrize("point", POINTS)
def test_a_writer_that_wakes_up_after_another_has_finished_changes_nothing(
    job: SmallJob, frozen: Freeze, undisturbed_rows: Rows, point: str, second: str
) -> None:
    sleeper, writer = frozen(*POINTS[point])
    fields: dict[str, Any] = {} if second == "the same run" else {"mode": "new"}
    if second == "a new run with other settings":
        fields["seed"] = 5
    if second == "two runs":  # the first fences the sleeper off, the second discards the fences
        with contextlib.suppress(AssertionError):
            job.stop_after(1)
    job.run(**fields)
    finished = job.data()
    error = woken(sleeper, writer)
    assert error is None or isinstance(error, pipeline.PipelineError | OSError)
    assert job.data() == finished
    assert job.problems() == ()
    if "seed" not in fields:
        assert finished == undisturbed_rows
    executor = InlineExecutor()
    job.run(executor, **{name: value for name, value in fields.items() if name != "mode"})
    assert executor.units_done == 0, "and nothing is left to do"
    assert job.data() == finished
    assert job.problems() == ()


@pytest.mark.sweep(7)
@pytest.mark.parametrize("second", ["the same run", "a new run", "a new run that is cut short"])
@pytest.mark.parametrize(
    ("prefix", "skip", "fields"),
    [
        (layout.DISCARDED, 0, {"mode": "new"}),
        ("data-", 0, {"mode": "new"}),
        (layout.LEDGER, 0, {"mode": "new"}),
        (layout.DISCARDED, 1, {"mode": "new"}),
        (layout.PUBLICATIONS, 0, {"retry_failed": True}),
        ("data-", 0, {"retry_failed": True}),
        (layout.MANIFEST, 0, {"retry_failed": True}),
        (layout.UNITS, 0, {"repair": True}),
        ("data-", 0, {"repair": True}),
    ],
    ids=str,
)
def test_one_that_discards_retries_or_repairs_and_wakes_up_later_changes_nothing(
    job: SmallJob, frozen: Freeze, undisturbed_rows: Rows, prefix: str, skip: int, fields: dict[str, Any], second: str
) -> None:
    """The names that it is about to remove, or to give, are those of its own run alone."""
    job.run()
    if "repair" in fields:
        job.storage.delete(sorted(job.storage.keys("data-000000"))[0])
    sleeper, writer = frozen(prefix, skip, **fields)
    if second == "a new run that is cut short":
        job.stop_after(3, mode="new")
    else:
        job.run(mode="new" if second == "a new run" or "repair" in fields else "resume")
        finished = job.data()
    woken(sleeper, writer)
    if second != "a new run that is cut short":
        assert job.data() == finished
        assert job.problems() == ()
    executor = InlineExecutor()
    job.run(executor)
    assert executor.units_done == (3 if second == "a new run that is cut short" else 0)
    assert [row["row_id"] for row in job.data()] == [row["row_id"] for row in undisturbed_rows]
    assert job.problems() == ()


def test_a_segment_that_comes_late_is_named_and_removed(
    job: SmallJob, frozen: Freeze, caplog: pytest.LogCaptureFixture
) -> None:
    sleeper, writer = frozen(layout.LEDGER, 2)
    job.run()
    assert isinstance(woken(sleeper, writer), LeaseLostError)
    (late,) = [key for key in job.storage.keys(layout.LEDGER) if "/00000001-00000002-" in key]
    found = pipeline.verify(job.config.output, input=job.config.input)
    assert found.ok
    assert all("put by a writer that had lost its lease" in note for note in found.notes)
    assert sum(late in note for note in found.notes) == 1
    job.run()
    assert late in caplog.text
    assert late not in job.storage.keys(layout.LEDGER)
    assert pipeline.verify(job.config.output, input=job.config.input).notes == ()


@pytest.mark.parametrize("skip", [0, 1], ids=["before the merged segment is put", "before the first is removed"])
def test_a_compaction_that_wakes_up_removes_no_segment_of_its_successor(
    job: SmallJob, frozen: Freeze, monkeypatch: pytest.MonkeyPatch, skip: int
) -> None:
    job.stop_after(4)
    monkeypatch.setattr("pipeline.commit.ledger._COMPACT_SEGMENTS", 2)
    sleeper, writer = frozen(layout.LEDGER, skip)
    monkeypatch.setattr("pipeline.commit.ledger._COMPACT_SEGMENTS", 64)
    job.stop_after(1)
    segments = set(job.storage.keys(layout.LEDGER))
    assert any(layout.epoch_of(key) > 2 for key in segments)
    assert isinstance(woken(sleeper, writer), LeaseLostError)
    left = set(job.storage.keys(layout.LEDGER))
    assert segments - left <= {key for key in segments if layout.epoch_of(key) < 2}
    if skip == 0:
        assert segments <= left, "the lease was looked at before anything was removed"
    job.run()
    assert job.problems() == ()


def test_a_lost_lease_is_status_1_and_a_held_one_2(
    job: SmallJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["--input", job.config.input, "--output", job.config.output, "--model", job.config.model]
    with lease.hold_lease(job.storage):
        assert jobs.generate.main(argv) == 2
    assert "is writing there" in capsys.readouterr().err

    def lost(*given: Any, **named: Any) -> None:
        raise LeaseLostError("another run took over this output")

    monkeypatch.setattr(pipeline, "run", lost)
    assert jobs.generate.main(argv) == 1
    assert "took over" in capsys.readouterr().err


def test_epochs_of_one_output_never_come_again(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path, layout.SCRATCH)

    def epochs() -> Iterator[int]:
        for _ in range(4):
            with lease.hold_lease(storage) as held:
                held.forget_predecessors()
                yield held.epoch

    found: Sequence[int] = list(epochs())
    assert found == [1, 2, 3, 4]
    assert storage.keys(layout.LEASES) == [layout.lease(4)]
    assert lease.current_holder(storage) is None


@pytest.mark.parametrize("fault", ["empty", "zeros", "a bit is flipped", "another file's content"])
def test_a_fence_that_is_damaged_still_holds_off_the_writer_that_sleeps(
    job: SmallJob, frozen: Freeze, fault: str
) -> None:
    sleeper, writer = frozen(layout.PUBLICATIONS, 0)
    for _ in range(2):  # the first takes over and fences it off; the second finds the fences damaged
        with lease.hold_lease(job.storage) as held:
            recover(job.storage, held)
            held.forget_predecessors()
        for key in (fences := job.storage.keys(layout.PUBLICATIONS)):
            FAULTS[fault](job.storage, key)
        assert fences
    with lease.hold_lease(job.storage) as held:
        recover(job.storage, held)
    assert isinstance(woken(sleeper, writer), LeaseLostError)
    assert not list(Path(job.config.output).glob("data-*"))
    job.run()
    assert job.problems() == ()
