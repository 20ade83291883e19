"""State files with a checksum inside (JSON documents and JSON lines), so that damage is noticed when they are read.

A power loss, a full disk or a damaged sector can leave a file empty, cut or altered. Reading such a file raises
DamagedError, wherever it is read.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any

from pipeline.errors import DamagedError, SinkError
from pipeline.storage.damage import is_unreadable
from pipeline.storage.protocol import Storage

_SEAL = "sha256"


def seal(document: Mapping[str, Any]) -> bytes:
    """A JSON document as bytes, with the checksum of the rest under ``sha256``."""
    plain = json.loads(json.dumps(document))  # tuples become lists, so the hash is of the values as they are read
    # A line for each key: for people, and as json's own indenting takes ten times as long.
    lines = (f"{json.dumps(key)}: {json.dumps(value)}" for key, value in {**plain, _SEAL: _digest(plain)}.items())
    return ("{\n" + ",\n".join(lines) + "\n}").encode()


def unseal(data: bytes) -> dict[str, Any]:
    """Inverse of :func:`seal`.

    Raises:
        DamagedError: the bytes are not a whole document. The message says how; the caller adds the file's name.
    """
    if not data.strip(b"\0 \n"):
        raise DamagedError("empty" if not data else f"{len(data)} bytes of nothing")
    try:
        document = json.loads(data)
        found = document.pop(_SEAL)
    except (ValueError, KeyError, AttributeError, RecursionError) as error:
        raise DamagedError(f"cut or overwritten ({len(data)} bytes are not a whole document)") from error
    if found != _digest(document):
        raise DamagedError("altered (its checksum differs)")
    whole: dict[str, Any] = document
    return whole


def _digest(document: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()


def read_state(storage: Storage, key: str) -> bytes:
    """A state object's bytes.

    Raises:
        DamagedError: it exists and cannot be read.
        FileNotFoundError: it does not exist.
    """
    try:
        return storage.read(key)
    except FileNotFoundError:
        raise
    except (OSError, SinkError) as error:
        if is_unreadable(error):
            raise DamagedError(f"unreadable ({error.__cause__ or error})") from error
        raise


def seal_lines(lines: Iterable[str]) -> bytes:
    """Lines as bytes; a last line holds their number and checksum."""
    held = list(lines)
    text = "".join(f"{line}\n" for line in held)
    end = {"lines": len(held), _SEAL: hashlib.sha256(text.encode()).hexdigest()}
    return f"{text}{json.dumps(end)}\n".encode()


def unseal_lines(data: bytes) -> list[str]:
    """Inverse of :func:`seal_lines`.

    Raises:
        DamagedError: the bytes are not whole; describes the damage without the file's name.
    """
    if not data.strip(b"\0 \n"):
        raise DamagedError("empty" if not data else f"{len(data)} bytes of nothing")
    body, newline, _ = data.rpartition(b"\n")
    text, _, last = body.rpartition(b"\n")
    text += b"\n" if text else b""
    try:
        if not newline or not data.endswith(b"\n"):
            raise ValueError("the end is missing")
        end = json.loads(last)
        wanted, count = end[_SEAL], end["lines"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise DamagedError(f"cut ({len(data)} bytes without their last line)") from error
    lines = text.decode("utf-8", "replace").splitlines()
    if hashlib.sha256(text).hexdigest() != wanted or len(lines) != count:
        raise DamagedError("altered (its checksum differs)")
    return lines
