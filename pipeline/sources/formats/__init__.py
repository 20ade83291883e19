"""Formats of input files: a module each, with one :class:`~pipeline.sources.base.FileSource`, which is found here.

A new format is a new file in this folder.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil

from pipeline.errors import SourceError
from pipeline.sources.base import FileSource

__all__ = ["all_formats", "all_suffixes", "dialects_of", "is_dialect"]


@functools.cache
def all_formats() -> tuple[type[FileSource], ...]:
    """The formats, in the order in which messages name them.

    Raises:
        SourceError: a module holds no format or several, or two formats claim one suffix.
    """
    found = [_format_of(f"{__name__}.{module.name}") for module in pkgutil.iter_modules(__path__)]
    suffixes = [suffix for one in found if not is_dialect(one) for suffix in one.suffixes]
    if len(set(suffixes)) < len(suffixes):
        raise SourceError(f"formats {[one.label for one in found]} claim a suffix twice. Give each suffix to one.")
    return tuple(sorted(found, key=lambda one: one.label, reverse=True))


def all_suffixes() -> tuple[str, ...]:
    """The suffixes of all formats."""
    return tuple(suffix for one in all_formats() if not is_dialect(one) for suffix in one.suffixes)


def is_dialect(one: type[FileSource]) -> bool:
    """Whether a format is a dialect of another, which has its suffixes."""
    return one.input_format != FileSource.input_format


def dialects_of(one: type[FileSource]) -> tuple[type[FileSource], ...]:
    """The dialects of a format."""
    return tuple(other for other in all_formats() if is_dialect(other) and issubclass(other, one))


def _format_of(name: str) -> type[FileSource]:
    own = [
        value
        for value in vars(importlib.import_module(name)).values()
        if isinstance(value, type) and issubclass(value, FileSource) and value.__module__ == name
    ]
    if len(own) != 1:
        raise SourceError(f"{name}: has {len(own)} subclasses of FileSource. Give each format a module of its own.")
    return own[0]
