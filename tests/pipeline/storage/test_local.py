"""A folder as storage: file systems without links. ``test_object_store.py`` tests the contract of all storages."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from pipeline.storage.local import LocalStorage


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
