"""Opens the source that ``RunConfig.input`` describes, whatever kind of input it is."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from pipeline import layout
from pipeline.config import PROMPT_PLACES, RunConfig
from pipeline.errors import SourceError
from pipeline.sinks import FORMATS
from pipeline.sources.finding import find_files, has_suffix, split_pattern
from pipeline.sources.formats import all_suffixes, dialects_of, formats_of
from pipeline.sources.formats.text_file import TextFileSource
from pipeline.sources.identity import Found, source_file
from pipeline.sources.source import FileSource, SlicedSource, open_input
from pipeline.sources.spool import is_dataset_name, load_named, load_saved, spool
from pipeline.sources.types import ALL_COLUMNS, Wanted, wanted_by
from pipeline.sources.walking import has_wildcards, matches
from pipeline.storage.protocol import Storage
from pipeline.storage.retry import map_ahead
from pipeline.storage.urls import is_url, lies_inside, local_path, plain_name, relative
from pipeline.types import SourceFile, Unread

_MAGIC_BYTES = 8
_SAVED = ("state.json", "dataset_dict.json")
"""Files in the folder of a dataset, or of several splits of one, that was saved to disk."""
ROWS = FileSource.input_format
"""Input format of tables that are nothing but rows."""


def source_of(config: RunConfig, storage: Storage, *, begun: str | None = None) -> SlicedSource:
    """The source of a configuration; in-memory input is first written to ``storage``.

    Raises:
        SourceError: see :func:`open_source`; or a file lies in the output.
    """
    # A source in memory is read from where it was written, which need not be the output (see ``preview``).
    source = open_source(
        config.input,
        storage,
        options=config.input_options,
        storage_options=config.output_options if is_url(storage.url) else {},
        dataset_options=config.dataset_options,
        input_format=_wanted_format(config),
        begun=begun,
        wanted=wanted_by(config),
    )
    if isinstance(config.input, (str, os.PathLike)):
        check_files_apart(source.files, storage.url)
    return source


def check_files_apart(files: Sequence[SourceFile], output: str) -> None:
    """Refuse files in the output folder, where links or a pattern may lead.

    Raises:
        SourceError: a file lies there.
    """
    if is_url(output):
        return
    root = os.path.realpath(local_path(output))
    folders: dict[str, bool] = {}
    for file in files:
        place = file.path if os.path.islink(file.path) else os.path.dirname(file.path)
        if place not in folders:
            folders[place] = not is_url(file.path) and lies_inside(os.path.realpath(place), root)
        if folders[place]:
            raise SourceError(f"input file {file.path!r} lies in output={output!r}. Write elsewhere.")


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
    input_format: str = "auto",
    begun: str | None = None,
    wanted: Wanted = ALL_COLUMNS,
) -> SlicedSource:
    """The source of a ``RunConfig.input``.

    ``begun``: the folder that the files of a run that is continued are relative to; None for a new one. ``wanted``:
    columns that are asked for.

    Raises:
        SourceError: unknown kind, nothing there, or unreadable.
    """
    if isinstance(data, (str, os.PathLike)):
        name = plain_name(data)
        listing = None if dataset_options and not _is_folder(name) else find_files(name, options or {})
        if listing is not None and any(file.key in _SAVED for file in listing.files):
            data = load_saved(name, dataset_options or {}, options or {})
        elif listing is not None and listing.files and not dataset_options:
            named = listing if begun is None else listing.named_as(begun)
            source = open_files(name, named.files, options or {}, input_format=input_format, wanted=wanted)
            source.base, source.unread = named.base, source.unread.plus(*named.unread)
            if source.input_format == ROWS:  # a dialect needs all of its columns
                source.want(wanted)
            return source
        elif dataset_options or _may_be_a_dataset(name):
            data = load_named(name, dataset_options or {})
        else:
            _say_what_is_missing(name)
    if input_format not in ("auto", ROWS):
        raise SourceError(f"input_format={input_format!r}: of files only, and this input is none. Name a file.")
    return spool(data, storage, storage_options or {}, wanted)


def _is_folder(name: str) -> bool:
    return is_url(name) or os.path.isdir(local_path(name))


def _may_be_a_dataset(name: str) -> bool:
    return is_dataset_name(name) and not has_suffix(name, all_suffixes()) and not os.path.exists(local_path(name))


def _say_what_is_missing(name: str) -> None:
    if not is_url(name) and os.path.lexists(place := local_path(name)) and not os.path.isdir(place):
        fault = "a pipe, socket or device. Write it into a file first" if place.exists() else "a link without a target"
        raise SourceError(f"input={name!r}: {fault}. Name a file or a folder.")
    if has_wildcards(name) or has_suffix(name, all_suffixes()) or _is_folder(name):
        raise SourceError(
            f"input={name!r}: no file is there. Check the path or pattern (FOLDER/** names all files below folders); "
            f"known suffixes: {', '.join(all_suffixes())}."
        )
    raise SourceError(f"input={name!r}: no such file or folder. Check the path (relative to the working folder).")


def open_files(
    name: str,
    found: Sequence[Found],
    options: Mapping[str, Any],
    *,
    versions: Mapping[str, int] | None = None,
    input_format: str = ROWS,
    wanted: Wanted = ALL_COLUMNS,
) -> FileSource:
    """The source of files that were found.

    ``versions``: file key -> version of its rows, where that is not 0. The files may contradict each other in
    columns that are not ``wanted``. "auto" goes by the first file.

    Raises:
        SourceError: they are of several formats, or of none; one cannot be read; or they contradict each other.
    """
    by_format = _by_format(found, options, input_format)
    present = [one for one, files in by_format.items() if files]
    if len(present) > 1:
        labels = " and ".join(one.label for one in present)
        raise SourceError(f"input={name!r}: holds {labels} files. Name one by a glob.")
    if not present:
        known = ", ".join(all_suffixes(input_format))
        text = f' With input_format="{TextFileSource.input_format}" each text file is one prompt.'
        raise SourceError(
            f"input={name!r}: unknown suffix of {found[0].key!r}. Rename or convert it; known are {known}."
            f"{text if any(has_suffix(f.path, TextFileSource.suffixes) for f in found) else ''}"
        )
    (one,) = present
    files = list(map_ahead(lambda file: source_file(file, options), by_format[one]))
    later = versions or {}
    first = next((file for file in files if file.size), files[0])  # an empty one shows nothing
    source = _dialect(one, first, options, input_format).over(
        [replace(file, version=later.get(file.key, 0)) for file in files], options
    )
    for column, fault in source.contradictions.items():
        if wanted.has(column):
            raise fault
    read = {file.key for file in files}
    source.unread = Unread().plus(*(file.key for file in found if file.key not in read))
    return source


def _by_format(
    found: Sequence[Found], options: Mapping[str, Any], input_format: str
) -> dict[type[FileSource], list[Found]]:
    """The files of each format, by their suffixes; those of no known suffix by their first bytes."""
    by_format = {one: [f for f in found if has_suffix(f.path, one.suffixes)] for one in formats_of(input_format)}
    present = [one for one, files in by_format.items() if files] or list(by_format)
    known = all_suffixes(input_format)
    unknown = [f for f in found if not has_suffix(f.path, known)] if any(one.magic for one in present) else []
    for file, begin in zip(unknown, map_ahead(lambda f: _begin(f, options), unknown), strict=True):
        for one in present:
            if one.magic and begin.startswith(one.magic):
                by_format[one].append(file)
    return {one: sorted(files, key=lambda file: file.key) for one, files in by_format.items()}


def _begin(file: Found, options: Mapping[str, Any]) -> bytes:
    try:
        with open_input(file.path, options) as stream:
            return stream.read(_MAGIC_BYTES)
    except OSError:  # nothing says that it is input
        return b""


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
    """Refuse an output that lies inside the input, which the next run would read as input, or the other way round.

    Links are followed. Files that a pattern or a link leads to are looked at when the source is opened.

    Raises:
        SourceError: the one lies in the other.
    """
    if not isinstance(data, (str, os.PathLike)):
        return
    name = plain_name(data)
    exists = is_url(name) or os.path.exists(local_path(name))
    # A name may have brackets.
    base, parts = (name, []) if exists and not is_url(name) else split_pattern(name)
    base = base if parts else name
    if lies_inside(output, base) and (not parts or _reads_output(parts, relative(output, base))):
        raise SourceError(f"output={output!r} lies inside input={name!r}. Write elsewhere.")
    if (exists or parts) and lies_inside(base, output):
        raise SourceError(f"input={name!r} lies inside output={output!r}. Write elsewhere.")


def _reads_output(parts: Sequence[str], way: str) -> bool:
    """Whether a pattern matches the published files of an output; ``way``: to it from the folder of the pattern."""
    folder = [*way.split("/"), layout.publication(0)]
    return "**" in parts or any(matches(parts, [*folder, f"part-000000{own.suffix}"]) for own in FORMATS.values())
