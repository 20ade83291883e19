"""Opens the storage of an output's path or URL: a folder or an object store, with retries.

:class:`LocalStorage` implements :class:`~pipeline.storage.protocol.Storage` with temporary files and renames,
:class:`ObjectStorage` with the atomic puts of an object store; :class:`RetryingStorage` wraps either.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from pipeline.errors import ConfigError, OutputError
from pipeline.storage.first_contact import check_reachable
from pipeline.storage.local import LocalStorage
from pipeline.storage.object_store import ObjectStorage
from pipeline.storage.retry import RetryingStorage, without_credentials
from pipeline.storage.urls import CredentialsError, as_os_errors, is_url, local_path, open_filesystem, plain_name

__all__ = ["check_output_url", "open_storage"]

_NAME_A_FOLDER = "Name a folder: a new one, or that of an earlier run."


def open_storage(
    url: str | os.PathLike[str], scratch: str, options: Mapping[str, Any] | None = None
) -> RetryingStorage:
    """The storage of an output path or URL, with retries of errors that may pass.

    Args:
        url: a local (or mounted) folder, or any fsspec URL.
        scratch: key of the folder for unfinished files, if the store needs one.
        options: keyword arguments of the URL's file system.

    Raises:
        ConfigError: nothing can be written to such a URL, or it is a file.
        OutputError: its store does not answer.
    """
    name = plain_name(url)
    if not is_url(name):
        path = local_path(name)
        file = next((part for part in (path, *path.parents) if part.is_file()), None)
        if file is not None:
            below = "" if file == path else f" lies below {str(file)!r}, which"
            raise ConfigError(f"output={name!r}{below} is a file. {_NAME_A_FOLDER}")
        return RetryingStorage(LocalStorage(name, scratch))
    storage = ObjectStorage(name, scratch, options or {})
    try:
        storage.connect()
        check_reachable(name, options or {}, "output", OutputError)
    except OSError as error:
        raise ConfigError(
            f"output={name!r}: no file system for it ({error}). Check the scheme, that its fsspec package is "
            "installed, and storage_options."
        ) from error
    return RetryingStorage(storage)


def check_output_url(url: str, options: Mapping[str, Any]) -> None:
    """Check, by one request, that there are credentials for an output's URL and that it is no object.

    Raises:
        ConfigError: there are none, or it is one. Other errors are left to whoever writes first.
    """
    if not is_url(url):
        return
    try:
        with as_os_errors():
            fs, path = open_filesystem(url, options)
            fs.invalidate_cache()
            found = fs.info(path.rstrip("/"))
    except CredentialsError as error:
        raise ConfigError(without_credentials(f"output={url!r}", error)) from error
    except OSError:
        return
    else:
        if found["type"] == "file":
            raise ConfigError(f"output={url!r} is an object. {_NAME_A_FOLDER}")
