"""Opens the storage of an output's path or URL: a folder or an object store, with retries.

:class:`LocalStorage` implements :class:`~pipeline.storage.protocol.Storage` with temporary files and renames,
:class:`ObjectStorage` with the atomic puts of an object store; :class:`RetryingStorage` wraps either.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from pipeline.codec import redact
from pipeline.errors import ConfigError, OutputError, PipelineError
from pipeline.storage.local import LocalStorage
from pipeline.storage.object_store import ObjectStorage
from pipeline.storage.retry import RetryingStorage, without_credentials
from pipeline.storage.urls import CredentialsError, as_os_errors, is_url, local_path, open_filesystem, plain_name

_SCHEMES = ("s3", "s3a")
_LIMIT_SECONDS = 6.0
_DIRECT_SECONDS = 1.0
_NO_ANSWER = ("ConnectionError", "HTTPClientError")
"""Exceptions of botocore, by name, of requests that no server has answered."""
_reached: set[str] = set()


def check_reachable(url: str, options: Mapping[str, Any], name: str, failure: type[PipelineError]) -> None:
    """Ask the store of an S3 URL for its bucket, once per endpoint and process. Any answer will do, a refusal too.

    Other URLs and paths are not asked. ``name``: of the setting, for the message.

    Raises:
        PipelineError: of type ``failure``: nothing answers; the message names the endpoint.
        ConfigError: there is no secret where a reference says.
        OSError: see :func:`~pipeline.storage.urls.open_filesystem`.
    """
    if not is_url(url) or plain_name(url).split("://", 1)[0] not in _SCHEMES:
        return
    fs, path = open_filesystem(url, options)
    asked = f"{fs.endpoint_url} {fs.client_kwargs}"
    if asked in _reached:
        return
    found: dict[str, Any] = {}
    why = _ask(fs, path.split("/", 1)[0], found)
    if why is None:
        _reached.add(asked)
        return
    endpoint = found.get("endpoint", fs.endpoint_url)
    raise failure(
        f"{name}={redact(plain_name(url))!r}: the store at {endpoint} does not answer ({why}{_direct(endpoint)}). "
        "Check endpoint_url of storage_options (or AWS_ENDPOINT_URL), network and proxies, and that the store runs."
    )


def _ask(fs: Any, bucket: str, found: dict[str, Any]) -> str | None:
    """Why there is no answer; None if there is one. ``found`` gets the endpoint."""
    from fsspec.asyn import FSTimeoutError, sync

    async def ask() -> None:
        client = await fs.set_session()
        found["endpoint"] = client.meta.endpoint_url
        await client.head_bucket(Bucket=bucket)

    try:
        sync(fs.loop, ask, timeout=_LIMIT_SECONDS)
    except FSTimeoutError:
        return f"none within {_LIMIT_SECONDS:g} s"
    except Exception as error:  # a refusal is an answer; credentials are looked at by whoever needs them
        names = {kind.__name__ for kind in type(error).__mro__ if kind.__module__ == "botocore.exceptions"}
        return redact(f"{type(error).__name__}, {error}") if names & set(_NO_ANSWER) else None
    return None


def _direct(endpoint: str | None) -> str:
    """How a connection without the client and without a proxy fails, as the client may not have come to say why."""
    try:
        parts = urlsplit(endpoint or "")
        address = (parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80))
        socket.create_connection(address, timeout=_DIRECT_SECONDS).close()
    except (OSError, ValueError) as error:
        return f"; connecting to it: {error}"
    return ""


_NAME_A_FOLDER = "Name a folder: a new one, or that of an earlier run."


def open_storage(
    url: str | os.PathLike[str], scratch: str, options: Mapping[str, Any] | None = None
) -> RetryingStorage:
    """The storage of an output path or URL, with retries of errors that may pass.

    ``url``: a local (or mounted) folder, or any fsspec URL; ``scratch``: key of the folder for unfinished files.

    Raises:
        ConfigError: it names no folder, nothing can be written to such a URL, or it is a file.
        OutputError: its store does not answer.
    """
    name = plain_name(url) if isinstance(url, (str, os.PathLike)) else ""
    if not name or name.endswith("://") or "\0" in name:
        raise ConfigError(f"output={url!r}: names no folder. {_NAME_A_FOLDER}")
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
