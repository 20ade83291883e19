"""The exception tree of ``wedlm_core``.

Every message names the offending value, the rule it breaks and the remedy; :func:`explain` is the one
place that lays such a message out. ``ConfigError`` and ``RequestError`` are also ``ValueError`` so that
callers who know nothing of this package catch them where they expect to.
"""

from __future__ import annotations

__all__ = [
    "CapacityError",
    "ConfigError",
    "IntegrityError",
    "RequestError",
    "WeDLMError",
    "WeightsError",
    "explain",
]


def explain(name: str, value: object, rule: str, remedy: str) -> str:
    """One line: what was given, the rule it breaks, and what to do. Long values are shortened."""
    shown = repr(value)
    if len(shown) > 120:
        shown = f"{shown[:100]}... ({len(shown)} characters)"
    return f"{name}={shown}: {rule}. {remedy}"


class WeDLMError(Exception):
    """Root of every error this package raises on purpose."""


class ConfigError(WeDLMError, ValueError):
    """A configuration value is out of its range, or values contradict each other."""


class RequestError(WeDLMError, ValueError):
    """A prompt or its sampling parameters cannot be served; other requests are unaffected."""


class CapacityError(WeDLMError):
    """The KV pool cannot ever hold the request, even alone."""


class WeightsError(WeDLMError):
    """A checkpoint is missing, incomplete or of other shapes than its configuration says."""


class IntegrityError(WeDLMError, AssertionError):
    """An internal invariant is broken: a bug in this package, never the caller's fault."""
