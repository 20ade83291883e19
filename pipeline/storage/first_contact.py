"""The first contact with an S3 store: one request with a time limit, so that a wrong endpoint is told within seconds.

Clients of S3 repeat failed requests for minutes, which is right in the middle of a run, and stays so.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from pipeline.codec import redact
from pipeline.errors import PipelineError
from pipeline.storage.urls import is_url, open_filesystem, plain_name

__all__ = ["check_reachable"]

_SCHEMES = ("s3", "s3a")
_LIMIT_SECONDS = 6.0
_DIRECT_SECONDS = 1.0
_NO_ANSWER = ("ConnectionError", "HTTPClientError")
"""Exceptions of botocore, by name, of requests that no server has answered."""
_reached: set[str] = set()


def check_reachable(url: str, options: Mapping[str, Any], name: str, failure: type[PipelineError]) -> None:
    """Ask the store of an S3 URL for its bucket, once per endpoint and process. Any answer will do, a refusal too.

    Args:
        url: of an input, output or model; other URLs and paths are not asked.
        options: keyword arguments of its file system.
        name: of the setting, for the message.
        failure: type of the error to raise.

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
