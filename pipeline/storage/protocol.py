"""The storage protocol: the few operations on an output that exactly-once relies on.

Objects become visible as a whole or not at all. Keys are relative and ``/``-separated.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import BinaryIO, Protocol


class Storage(Protocol):
    """An output folder. Picklable: actors and tasks get a copy. Failures are OSErrors, or SinkErrors after retries."""

    @property
    def url(self) -> str:
        """Path or URL of the output."""
        ...

    def put(self, key: str, data: bytes) -> None:
        """Write a small object in one piece, replacing an existing one. Durable once this returns."""
        ...

    def put_new(self, key: str, data: bytes) -> bool:
        """:meth:`put` unless ``key`` exists: then False, and nothing changes. Of concurrent callers one gets True."""
        ...

    def create(self, key: str) -> AbstractContextManager[BinaryIO]:
        """A stream whose content replaces the object ``key`` when the block ends normally; else nothing changes."""
        ...

    def read(self, key: str) -> bytes:
        """The whole content. Raises FileNotFoundError."""
        ...

    def open(self, key: str) -> BinaryIO:
        """Random access to an existing object. Raises FileNotFoundError."""
        ...

    def exists(self, key: str) -> bool:
        """Whether the object ``key``, or any object below it, exists."""
        ...

    def keys(self, prefix: str) -> list[str]:
        """Sorted keys of all objects below the folder ``prefix``; empty if it does not exist."""
        ...

    def sizes(self, prefix: str) -> dict[str, int]:
        """Key -> size in bytes, for all of :meth:`keys`."""
        ...

    def folders(self) -> list[str]:
        """Sorted names of the folders directly in the output."""
        ...

    def walk(self, prefix: str) -> Iterator[list[str]]:
        """The keys of :meth:`keys`, unordered and page by page, for folders of any size.

        A key may occur twice. One that is put or removed meanwhile may be included or not.
        """
        ...

    def delete(self, key: str) -> None:
        """Remove an object or a whole folder; no error if it does not exist."""
        ...

    def delete_objects(self, keys: Sequence[str]) -> None:
        """Remove these objects; no error if some do not exist."""
        ...

    def promote(self, source: str, target: str) -> None:
        """Rename the folder ``source`` to ``target``; may be repeated after an interrupted or a completed call."""
        ...

    def sweep(self, before: float) -> None:
        """Remove the leftovers of writes that never ended.

        Args:
            before: when the caller took its lease, seconds since 1970; uploads begun later are a successor's, and are
                left alone.
        """
        ...
