"""Mask credentials in messages, logs and records: :func:`redact`.

Credentials are found in two ways: by patterns (URLs, headers, settings), and by value. The values are those that were
passed to file systems as credentials; libraries quote them in their error messages.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from urllib.parse import unquote

MASK = "***"

_PARTS = (
    "secret|passw|pwd|credential|signature|authorization|account_?key|api_?key|access_?key|private_?key|connection_?string|"
    "(?:access|session|security|auth|sas|refresh|bearer|id|hf)[_-]?token"
)
_CLEAR = rf"[\w.\-]*(?:{_PARTS})[\w.\-]*"
"""Parts of names that mean a credential in any text."""
_SHORT = "key|keyid|accessid|googleaccessid|sig|auth|sas|token|pass"
"""Names that mean a credential in URLs and settings only; in other texts they are columns and counts."""
_SECRET_NAME = re.compile(rf"{_CLEAR}|{_SHORT}", re.IGNORECASE)
_VALUE = r"(?!\{\s*['\"]?(?:env|file)['\"]?\s*:)(?:\"[^\"]*\"?|'[^']*'?|[^\s,;&}\])'\"]+)"
"""Not a reference to a secret."""
_FORMS = (
    # scheme://user:password@host, also if the password contains @ or /; a port is not a password.
    (re.compile(r"(?<=://)[^\s/@:'\"<>]*:(?![0-9]+/)[^\s'\"<>]*@"), f"{MASK}@"),
    # scheme://token@host
    (re.compile(r"(?<=://)[^\s/@'\"<>]+@"), f"{MASK}@"),
    # ?token=..., &X-Amz-Signature=..., ;AccountKey=...
    (re.compile(rf"(?<=[?&;#])({_CLEAR}|{_SHORT})(=|%3D)[^&;#\s'\"<>]+", re.IGNORECASE), rf"\1\2{MASK}"),
    # {"key": "..."} in settings
    (
        re.compile(rf"([{{,(]\s*)(['\"]?)({_CLEAR}|{_SHORT})\2(\s*[:=]\s*)({_VALUE})", re.IGNORECASE),
        rf"\1\2\3\2\4{MASK}",
    ),
    # password=..., but not a folder with that name
    (re.compile(rf"(?<![\w.\-/])({_CLEAR})=({_VALUE})", re.IGNORECASE), rf"\1={MASK}"),
    (re.compile(r"\b(Bearer|Basic)\s+[A-Za-z0-9._~+/=\-]{8,}"), rf"\1 {MASK}"),
    # Credentials with a fixed format.
    (re.compile(r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b|\bhf_[A-Za-z0-9]{20,}|\bgh[pousr]_[A-Za-z0-9]{20,}"), MASK),
)
_SHORTEST = 4
"""Shorter values are not remembered: they occur inside ordinary words."""
_LONG = 12
"""Values from this length on are masked anywhere; shorter ones only as whole words."""
_MAX_KEPT = 1000

_kept: dict[str, None] = {}
_lock = threading.Lock()


def is_secret_name(name: object) -> bool:
    """Whether a setting or parameter of this name holds a credential."""
    return isinstance(name, str) and _SECRET_NAME.fullmatch(name) is not None


def has_url_credentials(text: object) -> bool:
    """Whether this is a URL with a password, a token or a signature in it.

    A name before an ``@`` alone is none: such are containers (``abfs://container@account``) and users, except of http.
    """
    if not isinstance(text, str) or "://" not in text:
        return False
    password, token, parameter = (form for form, _ in _FORMS[:3])
    web = "http://" in text or "https://" in text
    return any(form.search(text) for form in ((password, token, parameter) if web else (password, parameter)))


def reference_kind(value: object) -> str | None:
    """Of a reference to a secret (:mod:`wedlm_core.references`), "env" or "file"; else None."""
    if isinstance(value, Mapping) and len(value) == 1:
        ((kind, where),) = value.items()
        if kind in ("env", "file") and isinstance(where, str):
            return str(kind)
    return None


def redact(text: str) -> str:
    """The text with credentials masked. A text without credentials is returned unchanged."""
    for secret in sorted(_kept, key=len, reverse=True):
        if secret not in text:
            continue
        if len(secret) >= _LONG:
            text = text.replace(secret, MASK)
        else:
            text = re.sub(rf"(?<![^\W_]){re.escape(secret)}(?![^\W_])", MASK, text)
    return redact_forms(text)


def redact_forms(text: str) -> str:
    """The text with credentials masked by patterns only, not by remembered values.

    The result depends on the text alone. Use it for texts that are stored and compared later, such as a model's name.
    """
    # Most texts contain none of these, and matching the patterns takes time.
    if "://" in text or "=" in text or ":" in text or "_" in text or "er " in text or "ic " in text or "IA" in text:
        for form, mask in _FORMS:
            text = form.sub(mask, text)
    return text


def keep_secret(options: Any) -> None:
    """Remember the credentials in a file system's keyword arguments, at any depth, for :func:`redact`."""
    if isinstance(options, Mapping):
        for name, value in options.items():
            if is_secret_name(name):
                _keep(value)
            keep_secret(value)
    elif isinstance(options, (list, tuple)):
        for value in options:
            keep_secret(value)


def keep_value(secret: str) -> None:
    """Remember a credential, whatever its name, for :func:`redact`."""
    with _lock:
        if len(secret) >= _SHORTEST and len(_kept) < _MAX_KEPT:
            _kept[secret] = None


def keep_url_credentials(url: object) -> None:
    """Remember the password, token or signature in a URL, for :func:`redact`.

    Libraries quote parts of URLs, which no pattern recognises.
    """
    if not isinstance(url, str) or not has_url_credentials(url):
        return
    user, token, parameter = (form for form, _ in _FORMS[:3])
    pairs = [found.group().removesuffix("@") for form in (user, token) for found in form.finditer(url)]
    values = [found.group().removeprefix(found[1]).removeprefix(found[2]) for found in parameter.finditer(url)]
    for value in (*pairs, *(pair.partition(":")[2] for pair in pairs), *values):
        keep_value(value)
        keep_value(unquote(value))


def _keep(value: Any) -> None:
    if isinstance(value, (list, tuple)):
        for item in value:
            _keep(item)
    elif isinstance(value, (str, bytes)):
        keep_value(value if isinstance(value, str) else value.decode("utf-8", "backslashreplace"))


def masked(value: Any) -> Any:
    """A copy of settings that is safe to show: credentials masked by name, texts redacted."""
    if reference_kind(value) is not None:
        return dict(value)
    if isinstance(value, Mapping):
        return {name: _masked_item(name, item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [masked(item) for item in value]
    return redact(value) if isinstance(value, str) else value


def _masked_item(name: object, item: Any) -> Any:
    return MASK if is_secret_name(name) and reference_kind(item) is None else masked(item)


def quotes_secrets(error: BaseException | None) -> bool:
    """Whether an exception, or one of its causes, would show credentials in a traceback."""
    seen: set[int] = set()  # an error that is raised again while its effect is handled is its own cause
    while error is not None and id(error) not in seen:
        if redact(str(error)) != str(error):
            return True
        seen.add(id(error))
        error = error.__cause__ or error.__context__
    return False


@contextmanager
def masked_errors() -> Iterator[None]:
    """A block whose exceptions leave this process, for a log or another process: without credentials.

    An exception that shows none is raised as it is. Of one that only its causes show, the causes are cut off; any
    other becomes a RuntimeError with its name and message, masked.
    """
    try:
        yield
    except Exception as error:
        if not quotes_secrets(error):
            raise
        if redact(str(error)) == str(error):
            raise error from None
        raise RuntimeError(redact(f"{type(error).__name__}: {error}")) from None
