"""The one seam to the output: whole objects appear at once, or not at all.

Everything that the exactly-once protocol relies on is the handful of operations of :class:`Storage`.
:class:`LocalStorage` implements them with temporary files and renames, :class:`ObjectStorage` with the atomic
puts of an object store; :class:`RetryingStorage` goes around either. Keys are relative, ``/``-separated.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, BinaryIO, Protocol

from pipeline.errors import ConfigError
from pipeline.filesystem import is_url, plain_name
from pipeline.storage_local import LocalStorage
from pipeline.storage_object import ObjectStorage
from pipeline.storage_retrying import RetryingStorage

__all__ = ["LocalStorage", "ObjectStorage", "RetryingStorage", "Storage", "open_storage"]


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


def open_storage(
    url: str | os.PathLike[str], scratch: str, options: Mapping[str, Any] | None = None
) -> RetryingStorage:
    """The storage of an output path or URL, with retries of what may pass.

    Args:
        url: a local (or mounted) folder, or any fsspec URL.
        scratch: key of the folder for unfinished files, where the store needs one.
        options: keyword arguments of the URL's file system.

    Raises:
        ConfigError: nothing can be written to such an URL.
    """
    name = plain_name(url)
    if not is_url(name):
        return RetryingStorage(LocalStorage(name, scratch))
    storage = ObjectStorage(name, scratch, options or {})
    try:
        storage.connect()
    except OSError as error:
        raise ConfigError(
            f"output={name!r}: no file system for it ({error}). Check the scheme, that its fsspec package is "
            "installed, and storage_options."
        ) from error
    return RetryingStorage(storage)
