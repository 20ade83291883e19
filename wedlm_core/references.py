"""Secrets by reference: ``{"env": "NAME"}`` or ``{"file": "/path"}`` in place of a value in keyword arguments.

A reference says where a secret is, so it may be stored, sent and shown. :func:`resolved` puts the value in its place,
in the process that uses it and for that use only; the value is then known to :func:`~wedlm_core.redaction.redact`.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from wedlm_core.errors import ConfigError, explain
from wedlm_core.redaction import MASK, has_url_credentials, is_secret_name, keep_secret, keep_value, reference_kind

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PLATFORM = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "HF_TOKEN", "AZURE_STORAGE_ACCOUNT_KEY",
             "AZURE_STORAGE_SAS_TOKEN", "AZURE_STORAGE_CONNECTION_STRING", "AZURE_CLIENT_SECRET")  # fmt: skip
_PLATFORM_SHORTEST = 16
"""Shorter values are stand-ins, and words that occur elsewhere."""
_MOST_BYTES = 64 * 1024
_EVERYWHERE = "The driver and every worker need it: set it where their processes start, not in the configuration."


def check_references(options: Any, name: str) -> None:
    """Check the form of the references in keyword arguments; their values may be elsewhere.

    Raises:
        ConfigError: a reference has no usable name or path, or a value is a mask.
    """
    for place in _malformed(options, name):
        raise ConfigError(f"{place}: no reference to a secret. Write {{env: NAME}} or {{file: /path}}, as text.")
    for place, value in _leaves(options, name):
        kind = reference_kind(value)
        if kind == "env" and not _VARIABLE.fullmatch(value["env"]):
            raise ConfigError(f"{place}: env is the name of an environment variable. Write {{env: MY_SECRET}}.")
        if kind == "file" and not os.path.isabs(value["file"]):
            raise ConfigError(f"{place}: file is an absolute path, as each process has a working folder of its own. "
                              "Write {file: /run/secrets/my_secret}.")  # fmt: skip
        if value == MASK:
            raise ConfigError(f"{place}: {MASK} stands for a secret that was left out. Write {{env: NAME}} or "
                              "{file: /path}, which are printed as they are.")  # fmt: skip


def _malformed(value: Any, place: str) -> Iterator[str]:
    """Where there is something like a reference, with a name or path that is no text, or with both."""
    if isinstance(value, Mapping) and reference_kind(value) is None:
        if value and set(value) <= {"env", "file"}:
            yield place
        for key, item in value.items():
            yield from _malformed(item, f"{place}.{key}")
    elif isinstance(value, (list, tuple)):
        for i, item in enumerate(value):
            yield from _malformed(item, f"{place}[{i}]")


def literal_secrets(options: Any, name: str) -> list[str]:
    """Where keyword arguments hold credentials themselves instead of references to them; dotted names."""
    return [
        place
        for place, value in _leaves(options, name)
        if reference_kind(value) is None
        and isinstance(value, (str, bytes))
        and value
        and (is_secret_name(place.rpartition(".")[2].partition("[")[0]) or has_url_credentials(value))
    ]


def remember(options: Any) -> None:
    """Let this process mask values in keyword arguments, and values that they refer to, if they are there."""
    keep_secret(options)
    for place, value in _leaves(options, ""):
        if reference_kind(value) is not None:
            with suppress(ConfigError):
                _resolved(value, place)


def resolved(options: Mapping[str, Any], name: str = "storage_options") -> dict[str, Any]:
    """Keyword arguments with the values of their references, in new containers.

    Raises:
        ConfigError: the target of a reference is missing or empty; the message names the process.
    """
    if not isinstance(options, Mapping):
        raise ConfigError(explain(name, type(options), "a mapping", "Write {name: value}."))
    keep_secret(options)
    for variable in _PLATFORM:  # which clients find by themselves
        if len(value := os.environ.get(variable, "")) >= _PLATFORM_SHORTEST:
            keep_value(value)
    return {key: _resolved(value, f"{name}.{key}") for key, value in options.items()}


def _resolved(value: Any, place: str) -> Any:
    kind = reference_kind(value)
    if kind == "env":
        # As of a file, and as secrets that were made by echo have it: no store takes a line end.
        return _kept(
            os.environ.get(value["env"], "").rstrip("\r\n"),
            f"{place} refers to {{env: {value['env']}}}, which is not set, or empty,",
        )
    if kind == "file":
        return _kept(_content(value["file"], place), f"{place} refers to {{file: {value['file']}}}, which is empty")
    if isinstance(value, Mapping):
        return {key: _resolved(item, f"{place}.{key}") for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_resolved(item, f"{place}[{i}]") for i, item in enumerate(value))
    return value


def _kept(secret: str, otherwise: str) -> str:
    if not secret:
        raise ConfigError(f"{otherwise} {_here()}. {_EVERYWHERE}")
    keep_value(secret)
    return secret


def _content(path: str, place: str) -> str:
    """The text of a file without the line end after it."""
    try:
        if Path(path).exists() and not Path(path).is_dir() and not Path(path).is_file():
            raise ValueError("no regular file")  # waiting for a pipe, or reading it once, does not help
        with Path(path).open("rb") as file:
            data = file.read(_MOST_BYTES + 1)
        if len(data) > _MOST_BYTES:
            raise ValueError(f"longer than {_MOST_BYTES} bytes")
        return data.decode().rstrip("\r\n")
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "no text" if isinstance(error, UnicodeError) else error
        raise ConfigError(
            f"{place} refers to {{file: {path}}}, which cannot be read {_here()} ({why}). {_EVERYWHERE}"
        ) from None


def _here() -> str:
    return f"in process {os.getpid()} on {socket.gethostname()}"


def _leaves(value: Any, place: str) -> Iterator[tuple[str, Any]]:
    """Every value that is no container, and every reference, with its dotted name."""
    if isinstance(value, Mapping) and reference_kind(value) is None:
        for key, item in value.items():
            yield from _leaves(item, f"{place}.{key}")
    elif isinstance(value, (list, tuple)):
        for i, item in enumerate(value):
            yield from _leaves(item, f"{place}[{i}]")
    else:
        yield place, value
