"""The exception tree of ``wedlm_core``.

Every message names the offending value, the rule it breaks and the remedy; :func:`explain` formats such messages.
``ConfigError`` and ``RequestError`` are also ``ValueError``, so callers can catch them without importing this package.
"""

from __future__ import annotations

from wedlm_core.redaction import redact

_SHOWN = 100  # characters of a value that is longer than 120
_SECRETS_WITHIN = 10_000  # characters of an URL


def explain(name: str, value: object, rule: str, remedy: str) -> str:
    """One line: the value, the rule it breaks, and the remedy. Long names and values are shortened."""
    if len(name) > 2 * _SHOWN:
        name = f"{name[:_SHOWN]}...{name[-_SHOWN:]}"
    return f"{name}={_shown(value)}: {rule}. {remedy}"


def _shown(value: object) -> str:
    """Any value as one short line, in bounded time."""
    if isinstance(value, str) and "://" in value[:_SECRETS_WITHIN]:
        value = redact(value[:_SECRETS_WITHIN])  # before cutting: the patterns do not match half a secret
    if isinstance(value, int) and value.bit_length() > 1000:
        return f"(an integer of {value.bit_length()} bits)"  # Python refuses to print more than 4300 digits
    if isinstance(value, (str, bytes)) and len(value) > _SHOWN + 20:
        return f"{value[:_SHOWN]!r}... ({len(value)} characters)"
    try:
        # Only the first items of a list: printing a million would take seconds.
        part = value[:_SHOWN] if isinstance(value, (list, tuple)) else value
        shown = " ".join(repr(part).splitlines()).encode("utf-8", "backslashreplace").decode()
    except Exception:  # repr() of a foreign object may raise anything
        return f"(a {type(value).__name__} that cannot be shown)"
    if part is not value and len(part) < len(value):  # type: ignore[arg-type]
        return f"{shown[:_SHOWN]}... ({len(value)} values)"  # type: ignore[arg-type]
    return f"{shown[:_SHOWN]}... ({len(shown)} characters)" if len(shown) > _SHOWN + 20 else shown


def first_line(error: BaseException) -> str:
    """The first line of an error's message, at most 200 characters, to quote in another message."""
    line = redact(next(iter(str(error).strip().splitlines()), "no message")[:_SECRETS_WITHIN])[:200]
    return line.encode("utf-8", "backslashreplace").decode()  # it may contain lone surrogates


class WeDLMError(Exception):
    """Root of every error this package raises on purpose."""


class ConfigError(WeDLMError, ValueError):
    """A configuration value is out of range, or two values contradict each other. Credentials are masked."""

    def __init__(self, message: object = "", *rest: object) -> None:
        super().__init__(redact(str(message)), *rest)


class RequestError(WeDLMError, ValueError):
    """A prompt or its sampling parameters cannot be served; other requests are unaffected."""


class CapacityError(WeDLMError):
    """The request does not fit in the KV pool, even if it runs alone."""


class WeightsError(WeDLMError):
    """A checkpoint is missing, incomplete or does not match its configuration. Credentials are masked."""

    def __init__(self, message: object = "", *rest: object) -> None:
        super().__init__(redact(str(message)), *rest)


class IntegrityError(WeDLMError, AssertionError):
    """An internal invariant is broken: a bug in this package, never the caller's fault."""
