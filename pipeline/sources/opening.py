"""Opens the source that ``RunConfig.input`` describes, whatever kind of input it is."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from pipeline.config import PROMPT_PLACES, RunConfig
from pipeline.errors import SourceError
from pipeline.sources.base import FileSource, SlicedSource
from pipeline.sources.finding import Found, find_files, has_wildcards, source_file
from pipeline.sources.formats import all_formats, all_suffixes, dialects_of, is_dialect
from pipeline.sources.hub import is_dataset_name, is_saved, load_named, load_saved
from pipeline.sources.spool import spool
from pipeline.storage.concurrent import map_ahead
from pipeline.storage.protocol import Storage
from pipeline.storage.urls import is_url, lies_inside, local_path, plain_name
from pipeline.types import SourceFile

__all__ = ["ROWS", "check_apart", "open_files", "open_source", "source_of"]

ROWS = FileSource.input_format
"""Input format of tables that are nothing but rows."""


def source_of(config: RunConfig, storage: Storage, *, partitioned: bool = True) -> SlicedSource:
    """The source of a configuration; in-memory input is first written to ``storage``.

    Args:
        config: names the input.
        storage: the output.
        partitioned: see :func:`open_source`.

    Raises:
        SourceError: see :func:`open_source`.
    """
    # A source in memory is read from where it was written, which need not be the output (see ``preview``).
    return open_source(
        config.input,
        storage,
        options=config.input_options,
        storage_options=config.output_options if is_url(storage.url) else {},
        dataset_options=config.dataset_options,
        partitioned=partitioned,
        input_format=_wanted_format(config),
    )


def _wanted_format(config: RunConfig) -> str:
    """The format to look for: settings that name the prompts are about columns of rows."""
    named = any(getattr(config, place) is not None for place in PROMPT_PLACES)
    return ROWS if named and config.input_format == "auto" else config.input_format


def open_source(
    data: Any,
    storage: Storage,
    *,
    options: Mapping[str, Any] | None = None,
    storage_options: Mapping[str, Any] | None = None,
    dataset_options: Mapping[str, Any] | None = None,
    partitioned: bool = True,
    input_format: str = "auto",
) -> SlicedSource:
    """The source of what ``RunConfig.input`` may be.

    Args:
        data: a location, a name, or rows in memory.
        storage: where rows in memory are written to.
        options: keyword arguments of the file system of ``data``, if that is a URL.
        storage_options: keyword arguments of the file system of ``storage``.
        dataset_options: keyword arguments of ``datasets.load_dataset``.
        partitioned: whether folders named ``name=value`` are columns of the files in them.
        input_format: as in ``RunConfig``.

    Raises:
        SourceError: unknown kind, nothing there, or unreadable.
    """
    if isinstance(data, (str, os.PathLike)):
        name = plain_name(data)
        found = [] if dataset_options and not _is_folder(name) else find_files(name, options or {})
        if is_saved(f.key for f in found):
            data = load_saved(name, dataset_options or {}, options or {})
        elif found and not dataset_options:
            return open_files(name, found, options or {}, partitioned=partitioned, input_format=input_format)
        elif dataset_options or _may_be_a_dataset(name):
            data = load_named(name, dataset_options or {})
        else:
            _say_what_is_missing(name)
    if input_format not in ("auto", ROWS):
        raise SourceError(f"input_format={input_format!r}: of files only, and this input is none. Name a file.")
    return spool(data, storage, storage_options or {})


def _is_folder(name: str) -> bool:
    return is_url(name) or local_path(name).is_dir()


def _may_be_a_dataset(name: str) -> bool:
    return is_dataset_name(name) and not name.endswith(all_suffixes()) and not local_path(name).exists()


def _say_what_is_missing(name: str) -> None:
    if has_wildcards(name) or name.endswith(all_suffixes()) or _is_folder(name):
        raise SourceError(
            f"input={name!r}: no file is there. Check the path or pattern; known suffixes: {', '.join(all_suffixes())}."
        )
    raise SourceError(f"input={name!r}: no such file or folder. Check the path (relative to the working folder).")


def open_files(
    name: str,
    found: Sequence[Found],
    options: Mapping[str, Any],
    *,
    partitioned: bool = True,
    versions: Mapping[str, int] | None = None,
    input_format: str = ROWS,
) -> FileSource:
    """The source of files that were found.

    Args:
        name: of the input, for messages.
        found: the files; those of unknown suffix are left out.
        options: keyword arguments of their file system.
        partitioned: see :func:`open_source`.
        versions: file key -> version of its rows, where that is not 0.
        input_format: as in ``RunConfig``; "auto" goes by the first file.

    Raises:
        SourceError: they are of several formats, or of none; or one cannot be read.
    """
    by_format = {
        one: [f for f in found if f.path.endswith(one.suffixes)] for one in all_formats() if not is_dialect(one)
    }
    present = [one for one, files in by_format.items() if files]
    if len(present) > 1:
        labels = " and ".join(one.label for one in present)
        raise SourceError(f"input={name!r}: holds {labels} files. Name one by a glob.")
    if not present:
        known = ", ".join(all_suffixes())
        raise SourceError(
            f"input={name!r}: unknown suffix of {found[0].key!r}. Rename or convert it; known are {known}."
        )
    (one,) = present
    files = list(map_ahead(lambda file: source_file(file, options, partitioned=partitioned), by_format[one]))
    later = versions or {}
    return _dialect(one, files[0], options, input_format).over(
        [replace(file, version=later.get(file.key, 0)) for file in files], options
    )


def _dialect(
    one: type[FileSource], first: SourceFile, options: Mapping[str, Any], input_format: str
) -> type[FileSource]:
    """The format of files with the suffixes of ``one``: itself, or a dialect that is wanted or recognised.

    Raises:
        SourceError: ``input_format`` is not one of theirs.
    """
    if input_format == "auto":
        return next((other for other in dialects_of(one) if other.recognises(first, options)), one)
    fits = next((other for other in (one, *dialects_of(one)) if other.input_format == input_format), None)
    if fits is None:
        raise SourceError(
            f"input_format={input_format!r}: {first.path} is a {one.label} file, which has no such form. Give files of "
            "that format, or leave input_format out."
        )
    return fits


def check_apart(data: Any, output: str) -> None:
    """Refuse an output inside the input folder, which the next run would read as input.

    Raises:
        SourceError: the output lies there.
    """
    if isinstance(data, (str, os.PathLike)):
        folder = plain_name(data).split("**", 1)[0].rstrip("/") if "**" in plain_name(data) else data
        if lies_inside(output, folder):
            raise SourceError(f"output={output!r} lies inside input={os.fspath(data)!r}. Write elsewhere.")
