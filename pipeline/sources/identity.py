"""Stamps: tell without reading a file whether it may have changed since it was planned.

A *stamp* is a file's metadata: for a local file its size, times and inode, for an object its ETag or version (if the
store has neither, its size and time). An equal stamp means equal content. A different stamp does not mean different
content: a copy, a checkout or a ``touch`` changes it too. Then the rows are compared, unit by unit, with the checksums
    of the rows read before (see :mod:`pipeline.plan.input_check`).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from typing import Any

from pipeline.storage.urls import as_os_errors, is_url, local_path, open_filesystem

RESTORE_INPUT = "Restore the file as it was and run again; or start again with mode='new'."
"""The remedy for an input that has changed."""

_MARKS = ("ETag", "etag", "md5Hash", "content_md5", "VersionId", "generation")
_TIMES = ("LastModified", "last_modified", "mtime", "updated", "created")


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
