"""The store: one of several changes wins, lists have pages, and no name of a client becomes a path."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.serving.api_objects import ApiError, Batch, Status, StoredFile, new_batch, new_id
from pipeline.serving.store import Store, page
from testing.pipeline.s3 import S3Server

NOWHERE = ("batch_" + "a" * 24, "batch_../../x", "../x", "", "file-" + "a" * 24)


@pytest.fixture(params=["folder", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    if request.param == "folder":
        return Store(str(tmp_path / "store"), {})
    server: S3Server = request.getfixturevalue("s3")
    return Store(f"{server.bucket('endpoint' + tmp_path.name.replace('_', '').lower())}/store", server.options)


def new(store: Store, **fields: str) -> Batch:
    body = {"input_file_id": "file-1", "endpoint": "/v1/completions", "completion_window": "24h", **fields}
    batch = new_batch(body)
    store.create(batch)
    return batch


def put(store: Store, data: bytes, batch: str | None = None) -> StoredFile:
    file = StoredFile(id=new_id("file-"), bytes=len(data), created_at=0, filename="f", purpose="batch", batch=batch)
    with store.storage.create(store.content(file.id)) as content:
        content.write(data)
    store.put_file(file)
    return file


def test_no_change_of_several_at_once_is_lost(store: Store) -> None:
    batch = new(store)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: store.change(batch.id, lambda own: replace(own, total=own.total + 1)), range(12)))
    assert store.batch(batch.id).total == 12
    assert [own.total for own in store.open_batches()] == [12]


def test_a_batch_that_has_ended_leaves_the_queue_and_does_not_change(store: Store) -> None:
    batch = new(store)
    store.put_counts(batch.id, 3, 1)
    assert (store.batch(batch.id).completed, store.batch(batch.id).failed) == (3, 1)
    store.change(batch.id, lambda own: own.moved(Status.COMPLETED, completed=5))
    assert store.batch(batch.id).completed == 5, "not the counts of a moment before"
    assert store.change(batch.id, lambda own: own.moved(Status.EXPIRED)).status is Status.COMPLETED
    store.settle(batch.id)
    assert store.open_batches() == []
    assert store.batch(batch.id).completed == 5
    assert store.change(batch.id, lambda own: own.moved(Status.EXPIRED)).status is Status.COMPLETED
    assert store.open_batches() == []
    # A slow process that took it for running puts a record after that.
    assert store._put_record(batch.moved(Status.CANCELLING), 2)
    assert store.batch(batch.id).status is Status.COMPLETED
    store.settle(batch.id)
    assert store.open_batches() == []
    assert store.storage.keys(".") == [f"batches/{batch.id}.json"]


def test_lists_have_pages(store: Store) -> None:
    ids = [new(store).id for _ in range(5)]
    store.change(ids[2], lambda own: own.moved(Status.FAILED))
    store.settle(ids[2])
    newest_first = sorted(ids, reverse=True)
    found, limit = store.batches({"limit": "2"}, 100)
    assert [own.id for own in found] == newest_first
    assert limit == 2
    found, _ = store.batches({"after": newest_first[1]}, 100)
    assert [own.id for own in found] == newest_first[2:]
    files = [put(store, b"x").id for _ in range(3)]
    assert [own.id for own in store.files({"order": "asc"}, 10)[0]] == sorted(files)
    assert [own.id for own in store.files({"order": "asc", "after": sorted(files)[0]}, 10)[0]] == sorted(files)[1:]
    assert list(store.files({"purpose": "batch_output"}, 10)[0]) == []


@pytest.mark.parametrize(
    "query", [{"limit": "0"}, {"limit": "101"}, {"limit": "x"}, {"after": "../x"}, {"order": "up"}]
)
def test_a_bad_page_is_refused(query: dict[str, str]) -> None:
    with pytest.raises(ApiError):
        page(set(), query, 100)


def test_a_name_that_is_no_id_is_not_found(store: Store) -> None:
    for name in NOWHERE:
        for look in (store.batch, store.file, lambda one: store.change(one, lambda own: own)):
            with pytest.raises(ApiError, match="has the id") as missing:
                look(name)
            assert missing.value.status == 404


def test_a_file_that_an_open_batch_reads_stays(store: Store) -> None:
    file = put(store, b"lines")
    assert store.storage.open(store.content(file.id)).read() == b"lines"
    batch = new(store, input_file_id=file.id)
    with pytest.raises(ApiError, match=batch.id):
        store.delete_file(file)
    store.change(batch.id, lambda own: own.moved(Status.FAILED))
    store.settle(batch.id)
    store.delete_file(file)
    with pytest.raises(ApiError):
        store.file(file.id)


def test_a_damaged_record_is_named_and_keeps_no_other_batch_from_its_turn(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = Store(str(tmp_path), {})
    damaged, whole = new(store), new(store)
    record = tmp_path / "queue" / damaged.id / "000001.json"
    kept = record.read_bytes()
    for content in (
        b"",
        b"\x00\xff",
        b"[]",
        b"{}",
        kept[:40],
        kept.replace(b"validating", b"unheard"),
        kept[:-3] + b"]}",
    ):
        record.write_bytes(content)
        assert [own.id for own in store.open_batches()] == [whole.id]
        with pytest.raises(ApiError, match=f"queue/{damaged.id}/000001.json: a damaged record"):
            store.batch(damaged.id)
    assert capsys.readouterr().err.count("damaged record") == 1, "said once"
    record.write_bytes(kept)
    assert {own.id for own in store.open_batches()} == {damaged.id, whole.id}


def test_results_go_with_the_rows_of_their_run(store: Store) -> None:
    batch = new(store)
    store.storage.put(f"runs/{batch.id}/data-000000/part.parquet", b"rows")
    store.delete_file(put(store, b"lines", batch.id))
    assert store.storage.keys("runs") == []


def test_unfinished_uploads_are_swept(tmp_path: Path) -> None:
    store = Store(str(tmp_path), {})
    (tmp_path / "tmp").mkdir()
    (tmp_path / "tmp" / "content.jsonl.abc").write_text("half")
    store.sweep()
    assert store.storage.keys(".") == []
