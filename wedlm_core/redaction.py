"""Secrets out of texts: whatever is put in a message, log or record goes through :func:`redact`.

Two ways find them: the forms that credentials have in URLs, headers and settings, and the very values that were given
to file systems as credentials, which libraries like to quote in their errors.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping
from typing import Any

__all__ = ["MASK", "is_secret_name", "keep_secret", "masked", "redact", "redact_forms"]

MASK = "***"

_PARTS = (
    "secret|passw|pwd|credential|signature|authorization|account_?key|api_?key|access_?key|private_?key|connection_?string|"
    "(?:access|session|security|auth|sas|refresh|bearer|id|hf)[_-]?token"
)
_CLEAR = rf"[\w.\-]*(?:{_PARTS})[\w.\-]*"
"""Names that hold credentials wherever they are."""
_SHORT = "key|keyid|accessid|googleaccessid|sig|auth|sas|token|pass"
"""Names that do so in URLs and settings; elsewhere they are columns, and counts."""
_SECRET_NAME = re.compile(rf"{_CLEAR}|{_SHORT}", re.IGNORECASE)
_VALUE = r"\"[^\"]*\"?|'[^']*'?|[^\s,;&}\])'\"]+"
_FORMS = (
    # scheme://user:password@host, also where the password has an @ or / of its own; a port is no password.
    (re.compile(r"(?<=://)[^\s/@:'\"<>]*:(?![0-9]+/)[^\s'\"<>]*@"), f"{MASK}@"),
    # scheme://token@host
    (re.compile(r"(?<=://)[^\s/@'\"<>]+@"), f"{MASK}@"),
    # ?token=..., &X-Amz-Signature=..., ;AccountKey=...
    (re.compile(rf"(?<=[?&;#])({_CLEAR}|{_SHORT})(=|%3D)[^&;#\s'\"<>]+", re.IGNORECASE), rf"\1\2{MASK}"),
    # {"key": "...", as settings are written
    (
        re.compile(rf"([{{,(]\s*)(['\"]?)({_CLEAR}|{_SHORT})\2(\s*[:=]\s*)({_VALUE})", re.IGNORECASE),
        rf"\1\2\3\2\4{MASK}",
    ),
    # password=..., but not a folder of that name
    (re.compile(rf"(?<![\w.\-/])({_CLEAR})=({_VALUE})", re.IGNORECASE), rf"\1={MASK}"),
    (re.compile(r"\b(Bearer|Basic)\s+[A-Za-z0-9._~+/=\-]{8,}"), rf"\1 {MASK}"),
    # Credentials that are known by their form.
    (re.compile(r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b|\bhf_[A-Za-z0-9]{20,}|\bgh[pousr]_[A-Za-z0-9]{20,}"), MASK),
)
_SHORTEST = 4
"""Shorter values are not kept: they stand in other words."""
_LONG = 12
"""Values of this length stand in no other words; shorter ones are masked only where they are words of their own."""
_MOST_KEPT = 1000

_kept: dict[str, None] = {}
_lock = threading.Lock()


def is_secret_name(name: object) -> bool:
    """Whether a setting or parameter of this name holds a credential."""
    return isinstance(name, str) and _SECRET_NAME.fullmatch(name) is not None


def redact(text: str) -> str:
    """The text with credentials masked; a text without any is the same."""
    for secret in sorted(_kept, key=len, reverse=True):
        if secret not in text:
            continue
        if len(secret) >= _LONG:
            text = text.replace(secret, MASK)
        else:
            text = re.sub(rf"(?<![^\W_]){re.escape(secret)}(?![^\W_])", MASK, text)
    return redact_forms(text)


def redact_forms(text: str) -> str:
    """The same by the forms of credentials alone: the same text gives the same, whatever this process was told.

    For what is stored and compared later, such as the name of a model.
    """
    # Most texts have none of these signs, and the forms take time.
    if "://" in text or "=" in text or ":" in text or "_" in text or "er " in text or "ic " in text or "IA" in text:
        for form, mask in _FORMS:
            text = form.sub(mask, text)
    return text


def keep_secret(options: Any) -> None:
    """Remember the credentials among keyword arguments of a file system, at any depth, for :func:`redact`."""
    if isinstance(options, Mapping):
        for name, value in options.items():
            if is_secret_name(name):
                _keep(value)
            keep_secret(value)
    elif isinstance(options, (list, tuple)):
        for value in options:
            keep_secret(value)


def _keep(value: Any) -> None:
    if isinstance(value, (list, tuple)):
        for item in value:
            _keep(item)
    elif isinstance(value, (str, bytes)):
        text = value if isinstance(value, str) else value.decode("utf-8", "backslashreplace")
        with _lock:
            if len(text) >= _SHORTEST and len(_kept) < _MOST_KEPT:
                _kept[text] = None


def masked(value: Any) -> Any:
    """Settings to show: credentials masked by their names, and texts redacted."""
    if isinstance(value, Mapping):
        return {name: MASK if is_secret_name(name) else masked(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [masked(item) for item in value]
    return redact(value) if isinstance(value, str) else value
