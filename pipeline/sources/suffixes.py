"""Suffixes of file names, in upper or lower case."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["has_suffix", "suffix_of"]


def suffix_of(path: str, suffixes: Iterable[str]) -> str | None:
    """The one of these suffixes (in lower case) that a name ends with; None if it has none of them."""
    name = path.lower()
    return next((suffix for suffix in suffixes if name.endswith(suffix)), None)


def has_suffix(path: str, suffixes: Iterable[str]) -> bool:
    """Whether a name ends with one of these suffixes."""
    return suffix_of(path, suffixes) is not None
