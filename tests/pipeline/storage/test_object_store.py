"""The storage contract: a folder, an object store over the real S3 protocol, and fsspec's memory file system."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest

from pipeline.errors import SinkError
from pipeline.storage import local, object_store, retry
from pipeline.storage.local import LocalStorage
from pipeline.storage.object_store import ObjectStorage
from pipeline.storage.retry import RetryingStorage
from testing.pipeline.s3 import S3Server
from testing.repository import ROOT


@pytest.fixture(params=["local", "s3", "memory"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    name = f"b{uuid.uuid4().hex[:12]}"
    if request.param == "local":
        yield LocalStorage(tmp_path / "out", "scratch")
    elif request.param == "s3":
        server: S3Server = request.getfixturevalue("s3")
        yield ObjectStorage(f"{server.bucket(name)}/some/where", "scratch", server.options)
    else:
        yield ObjectStorage(f"memory://{name}/out", "scratch", {})
        fsspec.filesystem("memory").rm(f"/{name}", recursive=True)


@pytest.fixture
def on_s3(s3: S3Server) -> ObjectStorage:
    return ObjectStorage(f"{s3.bucket(f'b{uuid.uuid4().hex[:12]}')}/out", "scratch", s3.options)


def test_objects_read_back_are_replaced_listed_and_deleted(storage: Any) -> None:
    assert storage.keys(".") == []
    storage.put("a/b", b"one")
    storage.put("a/b", b"two")
    with storage.create("a/d/e") as file:
        file.write(b"streamed")
    storage.put("ab", b"a name that begins like the folder's")
    assert storage.read("a/b") == b"two"
    assert storage.read("a/d/e") == b"streamed"
    with storage.open("a/d/e") as file:
        file.seek(2)
        assert file.read(3) == b"rea"
    assert storage.keys("a") == ["a/b", "a/d/e"]
    assert storage.keys(".") == ["a/b", "a/d/e", "ab"]
    assert [storage.exists(k) for k in ("a", "a/b", "a/d", "b", "a/b/c")] == [True, True, True, False, False]
    storage.delete("a/d")
    storage.delete("nowhere")
    assert storage.keys("a") == ["a/b"]
    storage.delete_objects(["a/b", "a/absent", "ab"])
    assert storage.keys(".") == []
    for absent in (lambda: storage.read("a/b"), lambda: storage.open("a/b")):
        with pytest.raises(FileNotFoundError):
            absent()


def test_a_walk_gives_every_key_once_page_by_page_while_they_are_removed(
    storage: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(object_store, "_LIST_KEYS", 3)
    monkeypatch.setattr(local, "_PAGE", 3)
    assert [key for page in storage.walk("a") for key in page] == []
    for i in range(10):
        storage.put(f"a/{i % 2}/{i}", b"x")
    storage.put("ab", b"a name that begins like the folder's")
    for prefix in ("a", "a/1", "."):
        pages = list(storage.walk(prefix))
        assert sorted(key for page in pages for key in page) == storage.keys(prefix)
        assert len(pages) > 1 or storage.url.startswith("memory")
    for page in storage.walk("a"):
        storage.delete_objects(page)
    assert storage.keys(".") == ["ab"]


def test_a_walk_that_breaks_off_begins_again(storage: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_store, "_LIST_KEYS", 3)
    monkeypatch.setattr(local, "_PAGE", 3)
    for i in range(8):
        storage.put(f"a/{i}", b"x")
    real, broken = type(storage).walk, iter([True, True])

    def breaks_off(self: ObjectStorage, prefix: str) -> Iterator[list[str]]:
        for page in real(self, prefix):
            yield page
            if next(broken, False):
                raise OSError("connection reset")

    monkeypatch.setattr(type(storage), "walk", breaks_off)
    assert {key for page in RetryingStorage(storage).walk("a") for key in page} == set(storage.keys("a"))
    assert next(broken, None) is None


@pytest.mark.parametrize("size", [4, 11 * 2**20], ids=["one put", "multipart"])
def test_a_stream_that_breaks_off_leaves_the_old_object_and_no_other(
    storage: Any, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    monkeypatch.setattr(object_store, "_BLOCK_BYTES", 5 * 2**20)
    storage.put("a/b", b"old")

    def write_and_fail() -> None:
        with storage.create("a/b") as file:
            file.write(bytes(size))
            assert storage.read("a/b") == b"old"
            raise RuntimeError("no space")

    with pytest.raises(RuntimeError):
        write_and_fail()
    assert storage.read("a/b") == b"old"
    assert storage.keys(".") == ["a/b"]
    with storage.create("a/b") as file:
        file.write(bytes(size))
        assert storage.keys("a") == ["a/b"]
    assert storage.read("a/b") == bytes(size)


def test_of_many_that_put_a_new_object_one_succeeds(storage: Any) -> None:
    won: list[int] = []
    start = threading.Barrier(6)

    def attempt(number: int) -> None:
        start.wait()
        if storage.put_new("lock", str(number).encode()):
            won.append(number)

    threads = [threading.Thread(target=attempt, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not storage.put_new("lock", b"late")
    assert storage.read("lock") in [str(number).encode() for number in won]
    if not storage.url.startswith("memory"):
        assert len(won) == 1


def test_promoting_moves_a_folder_and_can_be_done_again_when_cut_short(storage: Any) -> None:
    storage.put("aside/x/one", b"1")
    storage.put("aside/x/two", b"2")
    if isinstance(storage, ObjectStorage):
        storage.put("shown/one", b"1")  # as a promotion leaves it that was killed after its first copy
    storage.promote("aside/x", "shown")
    storage.promote("aside/x", "shown")
    assert storage.keys("shown") == ["shown/one", "shown/two"]
    assert [storage.read(key) for key in ("shown/one", "shown/two")] == [b"1", b"2"]
    assert storage.keys("aside") == []
    with pytest.raises(FileNotFoundError):
        storage.promote("never", "there")


def test_a_killed_upload_is_invisible_and_swept_away(on_s3: ObjectStorage, s3: S3Server) -> None:
    code = textwrap.dedent(f"""
        import os, signal
        from pipeline.storage import object_store
        object_store._BLOCK_BYTES = 5 * 2**20
        storage = object_store.ObjectStorage({on_s3.url!r}, "scratch", {s3.options!r})
        with storage.create("part") as file:
            file.write(bytes(11 * 2**20))
            os.kill(os.getpid(), signal.SIGKILL)
    """)
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False)
    assert done.returncode == -9
    assert on_s3.keys(".") == []
    fs, bucket = on_s3._fs, on_s3.url.split("/")[2]
    assert len(fs.list_multipart_uploads(bucket)) == 1, "the test is about an upload that had begun"
    ObjectStorage(f"s3://{bucket}/other", "scratch", s3.options).sweep(time.time())
    assert len(fs.list_multipart_uploads(bucket)) == 1, "uploads of other outputs are left alone"
    on_s3.sweep(time.time())
    assert fs.list_multipart_uploads(bucket) == []


def test_uploads_begun_after_the_lease_was_taken_are_left_to_the_successor(on_s3: ObjectStorage) -> None:
    fs, bucket = on_s3._fs, on_s3.url.split("/")[2]
    fs.call_s3("create_multipart_upload", Bucket=bucket, Key="out/part")
    [upload] = fs.list_multipart_uploads(bucket)
    begun = upload["Initiated"].timestamp()  # by the server's clock
    on_s3.sweep(before=begun - 60)
    assert len(fs.list_multipart_uploads(bucket)) == 1
    on_s3.sweep(before=begun + 60)
    assert fs.list_multipart_uploads(bucket) == []


def test_a_store_that_lets_nobody_list_uploads_is_no_failure(
    on_s3: ObjectStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(*given: Any, **named: Any) -> None:
        raise PermissionError("Access Denied")

    monkeypatch.setattr(on_s3._fs, "call_s3", refuses)
    on_s3.put("scratch/x", b"1")
    on_s3.sweep(time.time())
    assert on_s3.keys(".") == []


def test_a_store_without_conditional_puts_is_looked_at_first(
    on_s3: ObjectStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = on_s3._fs.pipe_file

    def refuses(path: str, data: bytes, mode: str = "overwrite") -> None:
        if mode == "create":
            raise OSError(38, "A header you provided implies functionality that is not implemented")
        real(path, data)

    monkeypatch.setattr(on_s3._fs, "pipe_file", refuses)
    assert on_s3.put_new("a", b"1")
    assert not on_s3.put_new("a", b"2")
    assert on_s3.read("a") == b"1"


class Flaky:
    """Fails each call once before (or after) it takes effect."""

    def __init__(self, inner: Any, *, after: bool, error: Exception) -> None:
        self._inner, self._after, self._error = inner, after, error
        self._seen: set[Any] = set()

    def __getattr__(self, name: str) -> Any:
        real = getattr(self._inner, name)
        if not callable(real):
            return real

        def call(*given: Any) -> Any:
            fails = (name, str(given)) not in self._seen
            self._seen.add((name, str(given)))
            if fails and not self._after:
                raise self._error
            result = real(*given)
            if fails:
                raise self._error
            return result

        return call


@pytest.mark.parametrize("after", [False, True])
def test_every_call_survives_an_error_that_passes(storage: Any, monkeypatch: pytest.MonkeyPatch, after: bool) -> None:
    patient = RetryingStorage(Flaky(storage, after=after, error=OSError("connection reset")))
    patient.put("a/b", b"1")
    assert patient.put_new("a/c", b"2")
    assert not patient.put_new("a/b", b"3")
    assert patient.read("a/b") == b"1"
    assert patient.read("a/c") == b"2"
    assert patient.open("a/c").read() == b"2"
    assert patient.keys("a") == ["a/b", "a/c"]
    assert patient.exists("a")
    patient.promote("a", "d")
    assert patient.keys("d") == ["d/b", "d/c"]
    patient.delete_objects(["d/b"])
    patient.delete("d")
    patient.sweep(time.time())
    assert storage.keys(".") == []


def test_lasting_errors_are_said_at_once_and_absence_is_no_failure(
    on_s3: ObjectStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retry, "_FIRST_WAIT_SECONDS", 60.0)
    with pytest.raises(FileNotFoundError):
        RetryingStorage(on_s3).read("nothing")
    nowhere = ObjectStorage("s3://no-such-bucket-here/x", "scratch", on_s3._options)
    with pytest.raises(SinkError, match="no-such-bucket-here/x/key failed with FileNotFoundError"):
        RetryingStorage(nowhere).put("key", b"1")
