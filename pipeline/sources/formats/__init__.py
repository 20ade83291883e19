"""Formats of input files: a module each, with one :class:`~pipeline.sources.source.FileSource`, which is found here.

A new format is a new file in this folder.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil

from pipeline.errors import SourceError
from pipeline.sources.source import FileSource

__all__ = ["all_formats", "all_suffixes", "dialects_of", "formats_of"]


@functools.cache
def all_formats() -> tuple[type[FileSource], ...]:
    """The formats, in the order of messages.

    Raises:
        SourceError: a module holds no format or several, or two formats claim one suffix.
    """
    found = [_format_of(f"{__name__}.{module.name}") for module in pkgutil.iter_modules(__path__)]
    whole = [one for one in found if not any(issubclass(one, other) for other in found if other is not one)]
    suffixes = [suffix for one in whole for suffix in one.suffixes]
    if len(set(suffixes)) < len(suffixes):
        raise SourceError(f"formats {[one.label for one in found]} claim a suffix twice. Give each suffix to one.")
    return tuple(sorted(found, key=lambda one: one.label, reverse=True))


def formats_of(input_format: str) -> tuple[type[FileSource], ...]:
    """The formats that files may have: one that has to be asked for, if it is; else all others. Without dialects."""
    whole = [one for one in all_formats() if not _is_dialect(one)]
    asked = [one for one in whole if one.input_format == input_format != FileSource.input_format]
    return tuple(asked or (one for one in whole if one.input_format == FileSource.input_format))


def all_suffixes(input_format: str = FileSource.input_format) -> tuple[str, ...]:
    """The suffixes of :func:`formats_of`."""
    return tuple(suffix for one in formats_of(input_format) for suffix in one.suffixes)


def dialects_of(one: type[FileSource]) -> tuple[type[FileSource], ...]:
    """The dialects of a format: its subclasses, which have its suffixes."""
    return tuple(other for other in all_formats() if issubclass(other, one) and other is not one)


def _is_dialect(one: type[FileSource]) -> bool:
    return any(issubclass(one, other) and one is not other for other in all_formats())


def _format_of(name: str) -> type[FileSource]:
    own = [
        value
        for value in vars(importlib.import_module(name)).values()
        if isinstance(value, type) and issubclass(value, FileSource) and value.__module__ == name
    ]
    if len(own) != 1:
        raise SourceError(f"{name}: has {len(own)} subclasses of FileSource. Give each format a module of its own.")
    return own[0]
