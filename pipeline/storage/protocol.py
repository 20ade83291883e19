"""What the exactly-once protocol asks of an output: whole objects appear at once, or not at all.

Everything that it relies on is the handful of operations of :class:`Storage`. Keys are relative, ``/``-separated.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import BinaryIO, Protocol

__all__ = ["Storage"]


class Storage(Protocol):
    """An output folder. Picklable: actors and tasks get a copy. Failures are OSErrors, or SinkErrors after retries."""

    @property
    def url(self) -> str:
        """Where it is, for people and readers."""
        ...

    def put(self, key: str, data: bytes) -> None:
        """A small object, in one piece, replacing what was there. When this returns, it outlives a power loss."""
        ...

    def put_new(self, key: str, data: bytes) -> bool:
        """The same unless ``key`` exists: then False, and nothing has changed. Of several at once one gets True."""
        ...

    def create(self, key: str) -> AbstractContextManager[BinaryIO]:
        """A stream whose content becomes visible under ``key``, replacing what was there, when the block ends well."""
        ...

    def read(self, key: str) -> bytes:
        """Whole content. Raises FileNotFoundError."""
        ...

    def read_many(self, keys: Sequence[str]) -> list[bytes]:
        """:meth:`read` of each; at once where the store is far away."""
        ...

    def open(self, key: str) -> BinaryIO:
        """Random access to an existing object. Raises FileNotFoundError."""
        ...

    def exists(self, key: str) -> bool:
        """Whether an object, or anything below ``key``, is there."""
        ...

    def keys(self, prefix: str) -> list[str]:
        """Sorted keys of all objects below the folder ``prefix``; empty where it does not exist."""
        ...

    def sizes(self, prefix: str) -> dict[str, int]:
        """Bytes of each of :meth:`keys`, by key."""
        ...

    def folders(self) -> list[str]:
        """Sorted names of the folders that lie in the output itself."""
        ...

    def walk(self, prefix: str) -> Iterator[list[str]]:
        """The same keys in no order, some at a time, for folders of any size.

        A key may come twice; one that is put or removed meanwhile may come or not.
        """
        ...

    def delete(self, key: str) -> None:
        """Remove an object or a whole folder; absent is fine."""
        ...

    def delete_objects(self, keys: Sequence[str]) -> None:
        """Remove these objects; absent ones are fine."""
        ...

    def promote(self, source: str, target: str) -> None:
        """Give the folder ``source`` the name ``target``; fine if that was done before, or half done."""
        ...

    def sweep(self) -> None:
        """Remove what writes that never ended have left behind; no write may be under way."""
        ...
