"""Opens the storage of an output's path or URL: a folder or an object store, with retries.

:class:`LocalStorage` implements :class:`~pipeline.storage.protocol.Storage` with temporary files and renames,
:class:`ObjectStorage` with the atomic puts of an object store; :class:`RetryingStorage` wraps either.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from pipeline.errors import ConfigError
from pipeline.storage.local import LocalStorage
from pipeline.storage.object_store import ObjectStorage
from pipeline.storage.retry import RetryingStorage
from pipeline.storage.urls import is_url, plain_name

__all__ = ["open_storage"]


def open_storage(
    url: str | os.PathLike[str], scratch: str, options: Mapping[str, Any] | None = None
) -> RetryingStorage:
    """The storage of an output path or URL, with retries of errors that may pass.

    Args:
        url: a local (or mounted) folder, or any fsspec URL.
        scratch: key of the folder for unfinished files, if the store needs one.
        options: keyword arguments of the URL's file system.

    Raises:
        ConfigError: nothing can be written to such a URL.
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
