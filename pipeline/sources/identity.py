"""The identity of a file: its digest, and its stamp, which tells without reading whether it may have changed.

A *stamp* is a file's metadata: for a local file its size, times and inode, for an object its ETag or version (if the
store has neither, its size and time). An equal stamp means equal content. A different stamp does not mean different
content: a copy, a checkout or a ``touch`` changes it too. Then the rows are compared, unit by unit, with the checksums
of the rows read before (see :mod:`pipeline.plan.input_check`).
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pipeline.codec import file_digest, sampled_stretches
from pipeline.errors import SourceError
from pipeline.sources.types import partitions_in
from pipeline.storage.retry import BEFORE_THE_RUN, with_retries
from pipeline.storage.urls import as_os_errors, is_url, local_path, open_filesystem
from pipeline.types import SourceFile

RESTORE_INPUT = "Restore the file as it was and run again; or start again with mode='new'."
"""The remedy for an input that has changed."""

_MARKS = ("ETag", "etag", "md5Hash", "content_md5", "VersionId", "generation")
_TIMES = ("LastModified", "last_modified", "mtime", "updated", "created")
_STORE_DIGESTS = ("ETag", "etag", "md5Hash", "content_md5")
"""Names of object stores for the hash of an object's content."""


@dataclass(frozen=True, kw_only=True)
class Found:
    """A file that was found.

    Attributes:
        key: name inside the input.
        path: where to open it: an absolute path or an URL.
        info: the file system's metadata; empty for local files.
        folders: the folders it lies in, below the input folder or the part of a pattern before its first wildcard.
    """

    key: str
    path: str
    info: Mapping[str, Any]
    folders: str = ""


def stamp_now(path: str, options: Mapping[str, Any]) -> str:
    """The stamp of a path or URL at this moment.

    Raises:
        OSError: it is not there, or cannot be asked for.
    """
    if not is_url(path):
        return stamp_of_stat(os.stat(local_path(path)))
    fs, inner = open_filesystem(path, options)
    with as_os_errors():
        return stamp_of_info(fs.info(inner))


def stamp_of_stat(found: os.stat_result) -> str:
    """The stamp of a local file."""
    # Includes the inode's change time, so that an edit which restores the other times is noticed.
    return f"{found.st_size}-{found.st_mtime_ns}-{found.st_ctime_ns}-{found.st_ino}"


def known_of_info(info: Mapping[str, Any]) -> dict[str, str]:
    """The part of a store's metadata that :func:`stamp_of_info` and digests are made of, as text."""
    return {name: str(info[name]) for name in (*_MARKS, *_TIMES) if info.get(name)}


def modified_of_info(info: Mapping[str, Any]) -> float | None:
    """When a file was written, in seconds since 1970, from a store's metadata; None if that does not say."""
    for name in _TIMES:
        value = info.get(name)
        if isinstance(value, datetime):
            return value.timestamp()
        if isinstance(value, (int, float)):
            return float(value)
        if isinstance(value, str):
            with suppress(ValueError):
                return datetime.fromisoformat(value).timestamp()
    return None


def stamp_of_info(info: Mapping[str, Any]) -> str:
    """The stamp from a store's metadata of a file."""
    marks = [f"{name}={info[name]}" for name in _MARKS if info.get(name)]
    if not marks:
        marks = [f"{name}={info[name]}" for name in _TIMES if info.get(name)]
    return "-".join([str(info.get("size")), *marks])


def source_file(found: Found, options: Mapping[str, Any]) -> SourceFile:
    """The file with its identity.

    Raises:
        SourceError: it cannot be read.
    """

    def identify() -> SourceFile:
        # The stamp first: of a file that is edited meanwhile the digest may be new, but then the stamp is old.
        if is_url(found.path):
            stamp, digest = stamp_of_info(found.info), _remote_digest(found, options)
            size = int(found.info.get("size") or 0)
        else:
            stamp, digest = stamp_now(found.path, options), file_digest(found.path)
            size = os.path.getsize(found.path)
        partitions = partitions_in(found.folders)
        return SourceFile(
            key=found.key, path=found.path, digest=digest, stamp=stamp, size=size, partitions=partitions
        )  # fmt: skip

    return with_retries(identify, f"reading {found.path}", failure=SourceError, remedy=BEFORE_THE_RUN)


def digest_now(path: str, options: Mapping[str, Any]) -> str:
    """The digest of a path or URL at this moment.

    Raises:
        OSError: it cannot be read.
    """
    if not is_url(path):
        return file_digest(local_path(path))
    fs, inner = open_filesystem(path, options)
    with as_os_errors():
        return _remote_digest(Found(key="", path=path, info=fs.info(inner)), options)


def _remote_digest(found: Found, options: Mapping[str, Any]) -> str:
    """From the store's own hash and the size, where the listing has them; else as :func:`file_digest`."""
    size = found.info.get("size")
    own = next((found.info[name] for name in _STORE_DIGESTS if found.info.get(name)), None)
    if own is not None:
        return hashlib.blake2b(f"{own}\x1f{size}".encode(), digest_size=12).hexdigest()
    fs, path = open_filesystem(found.path, options)
    with as_os_errors():
        if size is None:
            pieces, size = [fs.cat_file(path)], 0
        else:
            begins, ends = zip(*sampled_stretches(size), strict=True)
            pieces = fs.cat_ranges([path] * len(begins), list(begins), list(ends), on_error="raise")
    digest = hashlib.blake2b(str(size).encode(), digest_size=12)
    for piece in pieces:
        digest.update(piece)
    return digest.hexdigest()
