"""Whether an input file is still the one that was planned, without reading it.

A *stamp* is what the file system says of a file: of a local one its size, times and inode, of an object its ETag or
version (where a store has neither, its size and time). The same stamp is the same content. Another stamp may be: a
copy, a checkout or a ``touch`` changes it too; then the content decides, unit by unit, by what was read of it (see
:mod:`pipeline.plan.input_check`).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from pipeline.storage.urls import as_os_errors, is_url, local_path, open_filesystem

__all__ = ["RESTORE_INPUT", "stamp_now", "stamp_of_info"]

RESTORE_INPUT = "Restore the file as it was and run again; or begin anew with mode='new'."
"""What to do about an input that is not what it was."""

_MARKS = ("ETag", "etag", "md5Hash", "content_md5", "VersionId", "generation")
_TIMES = ("LastModified", "last_modified", "mtime", "updated", "created")


def stamp_now(path: str, options: Mapping[str, Any]) -> str:
    """The stamp of a path or URL at this moment.

    Raises:
        OSError: it is not there, or cannot be asked for.
    """
    if not is_url(path):
        found = os.stat(local_path(path))
        # The time of the last change of the inode too: an edit that puts the other times back does not get past it.
        return f"{found.st_size}-{found.st_mtime_ns}-{found.st_ctime_ns}-{found.st_ino}"
    fs, inner = open_filesystem(path, options)
    with as_os_errors():
        return stamp_of_info(fs.info(inner))


def stamp_of_info(info: Mapping[str, Any]) -> str:
    """The stamp that a store's listing of a file makes."""
    marks = [f"{name}={info[name]}" for name in _MARKS if info.get(name)]
    if not marks:
        marks = [f"{name}={info[name]}" for name in _TIMES if info.get(name)]
    return "-".join([str(info.get("size")), *marks])
