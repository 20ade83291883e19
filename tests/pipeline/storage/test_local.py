"""The storage seam: objects appear whole or not at all."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from pipeline.storage.local import LocalStorage
from pipeline.storage.protocol import Storage
from testing.pipeline.fakes import MemoryStorage


@pytest.fixture(params=["local", "memory"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    return LocalStorage(tmp_path / "out", "scratch") if request.param == "local" else MemoryStorage()


def put(storage: Storage, key: str, data: bytes) -> None:
    with storage.create(key) as file:
        file.write(data)


def test_an_object_reads_back_and_is_replaced_whole(storage: Storage) -> None:
    put(storage, "a/b", b"one")
    put(storage, "a/b", b"two")
    assert storage.read("a/b") == b"two"
    assert storage.open("a/b").read(2) == b"tw"
    assert storage.keys("a") == ["a/b"]
    assert storage.exists("a/b")
    assert storage.exists("a")
    assert not storage.exists("b")


def test_a_walk_gives_every_key_once_page_by_page_while_they_are_removed(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.storage.local._PAGE", 3)
    assert [key for page in storage.walk("a") for key in page] == []
    for i in range(20):
        put(storage, f"a/{i % 2}/{i}", b"x")
    put(storage, "ab", b"a name that begins like the folder's")
    for prefix in ("a", "a/1", "."):
        pages = list(storage.walk(prefix))
        assert sorted(key for page in pages for key in page) == storage.keys(prefix)
        assert max(map(len, pages)) <= 3
    for page in storage.walk("a"):
        storage.delete_objects(page)
    assert storage.keys(".") == ["ab"]


def test_a_failed_write_leaves_the_old_object_and_no_other(storage: Storage) -> None:
    put(storage, "a/b", b"old")

    def write_and_fail() -> None:
        with storage.create("a/b") as file:
            file.write(b"half")
            raise RuntimeError("no space")

    with pytest.raises(RuntimeError):
        write_and_fail()
    assert storage.read("a/b") == b"old"
    assert storage.keys(".") == ["a/b"]


def test_promoting_moves_a_folder_and_is_fine_when_done_before(storage: Storage) -> None:
    put(storage, "aside/x/one", b"1")
    put(storage, "aside/x/two", b"2")
    storage.promote("aside/x", "shown")
    storage.promote("aside/x", "shown")
    assert storage.keys("shown") == ["shown/one", "shown/two"]
    assert storage.keys("aside") == []
    with pytest.raises(FileNotFoundError):
        storage.promote("never", "there")


def test_a_new_object_is_put_once(storage: Storage) -> None:
    assert storage.put_new("a/b", b"one")
    assert not storage.put_new("a/b", b"two")
    assert storage.read("a/b") == b"one"
    assert storage.keys(".") == ["a/b"]


def test_a_file_system_without_hard_links_puts_a_new_object_once_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(*paths: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr("os.link", refuses)
    storage = LocalStorage(tmp_path, "scratch")
    assert storage.put_new("a/b", b"one")
    assert not storage.put_new("a/b", b"two")
    assert storage.read("a/b") == b"one"
