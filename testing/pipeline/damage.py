"""Damages single objects of an output through its storage, as disks and stores do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from pipeline.errors import OutputError
from pipeline.storage.local import LocalStorage
from pipeline.storage.protocol import Storage


def _flipped(data: bytes) -> bytes:
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 0x10]) + data[middle + 1 :]


ALTERED: dict[str, Callable[[bytes], bytes]] = {
    "a bit is flipped": _flipped,
    "cut in the middle": lambda data: data[: len(data) // 2],
    "the last byte is gone": lambda data: data[:-1],
    "empty": lambda data: b"",
    "zeros": lambda data: bytes(len(data)),
    "another file's content": lambda data: b'{"this": "is something else"}\n',
}
"""The damage to an object's bytes."""


def _alter(change: Callable[[bytes], bytes]) -> Callable[[Storage, str], None]:
    return lambda storage, key: storage.put(key, change(storage.read(key)))


FAULTS: dict[str, Callable[[Storage, str], None]] = {
    **{name: _alter(change) for name, change in ALTERED.items()},
    "deleted": lambda storage, key: storage.delete(key),
}


def make_unreadable(storage: LocalStorage, key: str) -> None:
    """Put a folder in the place of a file: reading it fails as on a medium that cannot give it back."""
    path = Path(storage.url) / key
    path.unlink()
    path.mkdir()


def swap(storage: Storage, one: str, other: str) -> None:
    """Put each object's content in the place of the other's."""
    first, second = storage.read(one), storage.read(other)
    storage.put(one, second)
    storage.put(other, first)


def message_of(look: Callable[[], Any]) -> str | None:
    """Of the error of this package that it ends with; None where it does not."""
    try:
        look()
    except OutputError as error:
        return str(error)
    return None
