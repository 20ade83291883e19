"""Storage on an object store, through fsspec: puts are atomic, there are no renames, and listings are not cached."""

from __future__ import annotations

import errno
import functools
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any, BinaryIO

from pipeline.storage.urls import as_os_errors, open_filesystem, open_remote

_STREAMING = {"s3", "s3a", "gs", "gcs"}
"""Stores whose open files are invisible until they are closed, and can be discarded; others need a temporary file."""
_BLOCK_BYTES = 16 * 2**20
"""Block size of multipart uploads. S3 allows 10,000 blocks per object."""
_LIST_KEYS = 1000
"""Keys per page of a listing; the most that S3 gives."""


class ObjectStorage:
    """A prefix of an object store (or any fsspec file system whose copies and moves are atomic)."""

    def __init__(self, url: str, scratch: str, options: Mapping[str, Any]) -> None:
        """``url``: the output; ``scratch``: key for unfinished files; ``options``: of the file system."""
        self._url = url.rstrip("/")
        self._scratch = scratch
        self._options = dict(options)

    @property
    def url(self) -> str:
        """The URL."""
        return self._url

    def __getstate__(self) -> dict[str, Any]:
        """Drop the connection: each process makes its own."""
        return {name: value for name, value in self.__dict__.items() if name != "_connection"}

    @functools.cached_property
    def _connection(self) -> tuple[Any, str]:
        fs, root = open_filesystem(self._url, self._options)
        return fs, root.rstrip("/")

    @property
    def _fs(self) -> Any:
        return self._connection[0]

    @property
    def _root(self) -> str:
        return self._connection[1]

    @property
    def _streams(self) -> bool:
        return self._url.split("://", 1)[0] in _STREAMING

    def connect(self) -> None:
        """Make the file system object without any request. Raises OSError if there is none for this URL."""
        _ = self._connection

    def _path(self, key: str) -> str:
        return self._root if key == "." else f"{self._root}/{key}"

    def put(self, key: str, data: bytes) -> None:
        """In one request."""
        if self._streams:
            with as_os_errors():
                self._fs.pipe_file(self._path(key), data)
        else:
            with self.create(key) as file:
                file.write(data)

    def put_new(self, key: str, data: bytes) -> bool:
        """A conditional put (``If-None-Match: *`` on S3). If the store has none: check for the object, then put."""
        path = self._path(key)
        try:
            with as_os_errors():
                self._fs.pipe_file(path, data, mode="create")
        except FileExistsError:
            return False
        except OSError as error:
            if error.errno != errno.ENOSYS:
                raise
            if self.exists(key):
                return False
            self.put(key, data)
        return True

    def create(self, key: str) -> AbstractContextManager[BinaryIO]:
        """A multipart upload, completed when the block ends normally and aborted when it raises."""
        return self._stream(self._path(key)) if self._streams else self._move_into_place(self._path(key))

    @contextmanager
    def _stream(self, path: str) -> Iterator[BinaryIO]:
        with as_os_errors():
            file = self._fs.open(path, "wb", block_size=_BLOCK_BYTES)
        try:
            yield file
            with as_os_errors():
                file.close()
        except BaseException:
            _discard(file)
            raise

    @contextmanager
    def _move_into_place(self, path: str) -> Iterator[BinaryIO]:
        aside = f"{self._path(self._scratch)}/{uuid.uuid4().hex}"
        with as_os_errors():
            self._fs.makedirs(self._path(self._scratch), exist_ok=True)
        try:
            with self._fs.open(aside, "wb") as file:
                yield file
            with as_os_errors():
                self._fs.makedirs(self._fs._parent(path), exist_ok=True)
                self._fs.mv(aside, path)
        except BaseException:
            with as_os_errors():
                if self._fs.exists(aside):
                    self._fs.rm_file(aside)
            raise

    def read(self, key: str) -> bytes:
        """In one request."""
        with as_os_errors():
            return self._fs.cat_file(self._path(key))

    def open(self, key: str) -> BinaryIO:
        """Random access by ranged requests."""
        return open_remote(self._fs, self._path(key))

    def exists(self, key: str) -> bool:
        """Whether the object, or one below it, exists."""
        try:
            with as_os_errors():
                self._fs.info(self._path(key))
        except FileNotFoundError:
            return False
        return True

    def keys(self, prefix: str) -> list[str]:
        """Sorted keys below ``prefix``."""
        folder = f"{self._path(prefix)}/"
        return sorted(path[len(self._root) + 1 :] for path in self._found(prefix) if path.startswith(folder))

    def _found(self, key: str) -> list[str]:
        """Paths of the object ``key`` and of those below it."""
        return list(self._found_objects(key))

    def _found_objects(self, key: str) -> dict[str, Any]:
        """:meth:`_found` with the listing's metadata of each path."""
        with as_os_errors():
            self._fs.invalidate_cache()
            found = self._fs.find(self._path(key), detail=True)
        return {path: info for path, info in found.items() if info["type"] == "file" and not path.endswith("/")}

    def sizes(self, prefix: str) -> dict[str, int]:
        """Sizes below ``prefix``, from the listing."""
        folder, beyond = f"{self._path(prefix)}/", len(self._root) + 1
        found = self._found_objects(prefix)
        return {path[beyond:]: int(info["size"]) for path, info in found.items() if path.startswith(folder)}

    def folders(self) -> list[str]:
        """Names of the folders in the root."""
        try:
            with as_os_errors():
                self._fs.invalidate_cache()
                found = self._fs.ls(self._root, detail=True)
        except FileNotFoundError:
            return []
        return sorted(info["name"].rstrip("/").rsplit("/", 1)[-1] for info in found if info["type"] == "directory")

    def walk(self, prefix: str) -> Iterator[list[str]]:
        """Keys below ``prefix``: on S3 page by page; on other stores, which list all at once, in one page."""
        if not self._is_s3:
            yield self.keys(prefix)
            return
        bucket, folder, _ = self._fs.split_path(f"{self._path(prefix)}/")
        beyond = len(self._fs.split_path(f"{self._root}/")[1])
        more: dict[str, str] = {}
        while True:
            with as_os_errors():
                listed = self._fs.call_s3("list_objects_v2", Bucket=bucket, Prefix=folder, MaxKeys=_LIST_KEYS, **more)
            yield [item["Key"][beyond:] for item in listed.get("Contents", []) if not item["Key"].endswith("/")]
            if not listed.get("IsTruncated"):
                return
            more = {"ContinuationToken": listed["NextContinuationToken"]}

    @property
    def _is_s3(self) -> bool:
        return hasattr(self._fs, "abort_mpu")

    def delete(self, key: str) -> None:
        """Remove the object and all objects below it."""
        self._remove(self._found(key))

    def delete_objects(self, keys: Sequence[str]) -> None:
        """Remove objects, on S3 a thousand per request."""
        self._remove([self._path(key) for key in keys])

    def _remove(self, paths: list[str]) -> None:
        if not paths:
            return
        with as_os_errors():
            if self._is_s3:
                self._fs.rm(paths)
                return
            for path in paths:
                with suppress(FileNotFoundError):
                    self._fs.rm_file(path)

    def promote(self, source: str, target: str) -> None:
        """Copy inside the store, all objects concurrently, then remove the sources.

        Each object appears complete under its new name. Until all do, a plain listing of ``target`` shows some of them.
        The sources are removed last, so an interrupted promotion can be repeated.
        """
        moved = self._found(source)
        if not moved:
            if not self._found(target):
                raise FileNotFoundError(f"neither {source} nor {target} exists in {self._url}")
            return
        here, there = self._path(source), self._path(target)
        with as_os_errors():
            self._fs.copy(moved, [there + path[len(here) :] for path in moved], on_error="raise")
        self._remove(moved)

    def sweep(self, before: float) -> None:
        """Remove unfinished files; abort multipart uploads begun before then, if that is permitted.

        The store's clock says when an upload began, the caller's is ``before``. A successor begins its uploads a lease
        period (a minute) after the caller took its lease, at the earliest, so clocks that differ by less do no harm.
        """
        self.delete(self._scratch)
        if not self._is_s3:
            return
        bucket, prefix, _ = self._fs.split_path(self._root)
        # Uploads that stay open are invisible and only cost money; a lifecycle rule of the bucket can abort them too.
        with suppress(OSError), as_os_errors():
            listed = self._fs.call_s3("list_multipart_uploads", Bucket=bucket, Prefix=f"{prefix}/" if prefix else "")
            for upload in listed.get("Uploads", []):
                if upload["Initiated"].timestamp() >= before:
                    continue  # of a successor
                self._fs.abort_mpu(bucket, upload["Key"], upload["UploadId"])


def _discard(file: Any) -> None:
    """Abort an upload, and keep the file object from completing it when it is garbage-collected."""
    try:
        with as_os_errors():
            file.discard()
    except OSError:
        pass  # an upload that stays open is invisible; a later sweep aborts it
    finally:
        file.closed = True
