"""The process of a batch, in each status it may find: it goes on, ends, or leaves the batch to another."""

from __future__ import annotations

import json
import multiprocessing
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from pipeline.commit.lease import hold_lease
from pipeline.config import RunConfig
from pipeline.errors import EngineDiedError, LeaseError, SourceError
from pipeline.serving import batch_process
from pipeline.serving.api_objects import Batch, Status, StoredFile, new_batch, new_id
from pipeline.serving.batch_lines import check_lines
from pipeline.serving.batch_process import Order, perform
from pipeline.serving.store import Store
from testing.pipeline.openai_batch import COMPLETIONS, completion_line

LINES = [completion_line(str(i)) for i in range(3)]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(str(tmp_path / "store"), {})


@pytest.fixture
def server() -> Connection:
    """The process's end of a connection whose other end stays open."""
    global _kept
    _kept, theirs = multiprocessing.Pipe()
    return theirs


def new(store: Store, lines: Any = LINES, **changes: Any) -> Batch:
    file = StoredFile(id=new_id("file-"), bytes=1, created_at=0, filename="f", purpose="batch")
    data = lines if isinstance(lines, bytes) else "".join(json.dumps(line) + "\n" for line in lines).encode()
    store.storage.put(store.content(file.id), data)
    store.put_file(file)
    body = {"input_file_id": file.id, "endpoint": COMPLETIONS, "completion_window": "24h"}
    batch = replace(new_batch(body), **changes)
    store.create(batch)
    return batch


def do(store: Store, batch: Batch, server: Connection, *, may_run: bool = False) -> Batch:
    config = RunConfig(input="files", output=store.storage.url, model="tiny")
    perform(Order(config=config, batch=batch.id, may_run=may_run, max_requests=5), server)
    return store.batch(batch.id)


def test_a_checked_batch_waits_for_its_turn(store: Store, server: Connection) -> None:
    found = do(store, new(store), server)
    assert (found.status, found.total, found.in_progress_at) == (Status.IN_PROGRESS, 3, None)
    assert do(store, found, server) == found


@pytest.mark.parametrize(
    ("lines", "code"),
    [(b"{", "invalid_json_line"), (b"", "empty_file"), ([*LINES, LINES[0]], "duplicate_custom_id"),
     ([completion_line(str(i)) for i in range(6)], "too_many_requests"), (b"PK\x03\x04zip", "invalid_file")],
)  # fmt: skip
def test_a_bad_input_fails_its_batch(store: Store, server: Connection, lines: Any, code: str) -> None:
    found = do(store, new(store, lines), server, may_run=True)
    assert (found.status, [own["code"] for own in found.errors]) == (Status.FAILED, [code])
    assert store.storage.url not in str(found.errors), "the place of the store is not for clients"
    assert store.open_batches() == []


def test_a_batch_that_is_cancelled_while_it_is_checked_ends_cancelled(
    store: Store, server: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = new(store, b"{")

    def check(*given: Any) -> Any:
        store.change(batch.id, Batch.cancelled)
        return check_lines(*given)

    monkeypatch.setattr(batch_process, "check_lines", check)
    assert do(store, batch, server, may_run=True).status is Status.CANCELLED


def test_a_batch_whose_file_is_gone_fails(store: Store, server: Connection) -> None:
    batch = new(store)
    store.storage.delete(f"files/{batch.input_file_id}")
    assert do(store, batch, server).errors[0]["code"] == "invalid_file"


@pytest.mark.parametrize(
    ("status", "checked", "expired", "ending", "lines"),
    [
        (Status.CANCELLING, False, False, Status.CANCELLED, 0),
        (Status.CANCELLING, True, False, Status.CANCELLED, 3),
        (Status.CANCELLING, True, True, Status.CANCELLED, 3),
        (Status.VALIDATING, False, True, Status.EXPIRED, 0),
        (Status.IN_PROGRESS, True, True, Status.EXPIRED, 3),
    ],
)
def test_a_batch_is_closed_without_a_run(
    store: Store, server: Connection, status: Status, checked: bool, expired: bool, ending: Status, lines: int
) -> None:
    batch = new(store, status=status, total=3 * checked, **({"expires_at": 0} if expired else {}))
    found = do(store, batch, server, may_run=True)
    assert (found.status, found.failed, found.completed) == (ending, lines, 0)
    assert (found.error_file_id is not None) == (lines > 0)
    assert store.open_batches() == []


def test_one_process_works_on_a_batch(store: Store, server: Connection) -> None:
    batch = new(store)
    with hold_lease(store.lease_of(batch.id)), pytest.raises(LeaseError):
        do(store, batch, server)
    assert store.batch(batch.id).status is Status.VALIDATING


def test_an_ended_batch_is_left_as_it_is(store: Store, server: Connection) -> None:
    batch = new(store)
    store.change(batch.id, lambda own: own.moved(Status.COMPLETED))
    assert do(store, batch, server, may_run=True).status is Status.COMPLETED
    assert store.storage.keys("queue") == []


def _run_that_raises(monkeypatch: pytest.MonkeyPatch, error: BaseException, before: Any = lambda: None) -> None:
    def run(**given: Any) -> None:
        before()
        raise error

    monkeypatch.setattr(batch_process, "run", run)


def test_an_input_that_the_run_refuses_fails_its_batch(
    store: Store, server: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    _run_that_raises(monkeypatch, SourceError("all sampled rows would fail"))
    found = do(store, new(store), server, may_run=True)
    assert (found.status, found.errors[0]["message"]) == (Status.FAILED, "all sampled rows would fail")


@pytest.mark.parametrize(
    "cause", [EngineDiedError("no engine"), SourceError("the store does not answer"), SystemExit(143)]
)
def test_a_batch_goes_on_later_if_its_run_failed_for_another_reason(
    store: Store, server: Connection, monkeypatch: pytest.MonkeyPatch, cause: BaseException
) -> None:
    cause.__cause__ = OSError("reset")
    _run_that_raises(monkeypatch, cause)
    batch = new(store)
    store.change(batch.id, lambda own: own.moved(Status.IN_PROGRESS, in_progress_at=7))
    with pytest.raises(type(cause)):
        do(store, batch, server, may_run=True)
    after = store.batch(batch.id)
    assert (after.status, after.in_progress_at) == (Status.IN_PROGRESS, 7), "it began when its first run did"
    with hold_lease(store.lease_of(batch.id)):
        pass  # it was released


def test_a_run_that_was_stopped_as_its_batch_was_cancelled_closes_it(
    store: Store, server: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = new(store)
    _run_that_raises(monkeypatch, SystemExit(143), lambda: store.change(batch.id, Batch.cancelled))
    assert do(store, batch, server, may_run=True).status is Status.CANCELLED


def test_a_run_is_stopped_when_its_batch_is_cancelled_expires_or_its_server_ends(
    store: Store, server: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_process, "_LOOK_SECONDS", 0.02)
    killed: list[int] = []
    monkeypatch.setattr(batch_process.os, "kill", lambda pid, number: killed.append(number))
    with batch_process._stopped_in_time(store, new(store).id, server):
        batch_process.time.sleep(0.2)
    assert killed == []
    ended, theirs = multiprocessing.Pipe()
    ended.close()
    for name, connection in (
        (new(store, status=Status.CANCELLING).id, server),
        (new(store, expires_at=0).id, server),
        (new(store).id, theirs),
    ):
        with batch_process._stopped_in_time(store, name, connection):
            batch_process.time.sleep(0.2)
        assert killed.pop() == batch_process.signal.SIGTERM
