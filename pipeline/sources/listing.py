"""Lists the files below a folder or URL without opening them; leaves out whole folders of partitions out of range.

:mod:`pipeline.sources.finding` finds the files of any input, and :mod:`pipeline.sources.identity` reads the identity of
each. This module serves inputs that grow: files are yielded as they are listed, and folders outside of a range of
partitions are not entered.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from pipeline.errors import ConfigError, SourceError
from pipeline.sources.finding import check_name
from pipeline.sources.identity import Found, known_of_info, modified_of_info, stamp_of_info, stamp_of_stat
from pipeline.sources.source import FileSource
from pipeline.sources.source_opening import ROWS, open_files
from pipeline.sources.types import partitions_in
from pipeline.sources.walking import Folder, folders, is_hidden
from pipeline.storage.retry import BEFORE_THE_RUN, map_ahead, with_retries
from pipeline.storage.urls import as_os_errors, is_url, local_path, open_filesystem, plain_name
from pipeline.types import ListedFile


@dataclass(frozen=True, kw_only=True)
class PartitionRange:
    """The partitions to look at, by the value of a ``key=value`` folder. Both bounds belong to the range.

    Values are compared as numbers if both are whole numbers, else as text, as ISO dates sort. A last value that is the
    beginning of others includes them: up to ``2026-11`` is all of November.

    Attributes:
        key: name of the partition.
        first, last: bounds; None is none.

    Raises:
        ConfigError: the first value is after the last.
    """

    key: str
    first: str | None = None
    last: str | None = None

    def __post_init__(self) -> None:
        """Check that the range is not empty."""
        first, last = self.first, self.last
        if first is not None and last is not None and not self._up_to(first, last):
            raise ConfigError(
                f"partitions {self.key}={first} to {self.key}={last}: the first is after the last. Give the earlier "
                "one first; both belong to the range."
            )

    @property
    def is_everything(self) -> bool:
        """Whether there is no bound."""
        return self.first is None and self.last is None

    def holds(self, folders: str) -> bool | None:
        """Whether files in these folders (``/``-separated) are in the range; None if no folder has the key."""
        found = dict(partitions_in(folders))
        if self.key not in found:
            return True if self.is_everything else None
        value = found[self.key]
        if value is None:
            return self.is_everything
        return (self.first is None or _before(self.first, value)) and (
            self.last is None or self._up_to(value, self.last)
        )

    @staticmethod
    def _up_to(value: str, last: str) -> bool:
        return _before(value, last) or (not (_is_whole(value) and _is_whole(last)) and value.startswith(last))


def _is_whole(text: str) -> bool:
    return text.isascii() and text.isdecimal()


def _before(one: str, other: str) -> bool:
    """Whether ``one`` comes before ``other``, or is it."""
    if _is_whole(one) and _is_whole(other):
        return int(one) <= int(other)
    return one <= other


def list_files(
    root: str | os.PathLike[str],
    options: Mapping[str, Any],
    within: PartitionRange,
    left_out: Callable[[str], None] = lambda key: None,
    unread: Callable[[str], None] = lambda key: None,
) -> Iterator[ListedFile]:
    """The files below a folder or URL, folder by folder, in no order; memory holds some folders.

    Links are followed, and names that begin with ``_`` or ``.`` are left out, as in
    :func:`pipeline.sources.finding.find_files`.

    With a range, files that lie in no folder of its key are left out; ``left_out`` is called with their keys, and
    ``unread`` with the key of each hidden file or folder and of each entry that is no file.

    Raises:
        SourceError: there is no such folder, it cannot be listed, or a name in it is no text.
    """

    def takes(folders: str, key: str) -> bool:
        if (inside := within.holds(folders)) is None:
            left_out(key)
        return bool(inside)

    name = plain_name(root)
    if is_url(name):
        yield from _remote(name, options, within, takes, unread)
        return
    base = os.fspath(local_path(name))
    if not os.path.isdir(base):
        raise SourceError(f"input={name!r}: no such folder. Check the path; scheduled runs read a folder or prefix.")
    yield from _local(base, within, takes, unread)


_Takes = Callable[[str, str], bool]
"""Whether the range has files in these folders; the file's key is for those that it can say nothing of."""


def _local(base: str, within: PartitionRange, takes: _Takes, unread: Callable[[str], None]) -> Iterator[ListedFile]:
    for _, entries in folders(
        Folder.at(base), lambda entry: not is_hidden(entry.key) and within.holds(entry.key) is not False
    ):  # fmt: skip
        for entry in entries:
            if is_hidden(entry.key) or not entry.is_file:
                if within.holds(entry.key) is not False:
                    unread(entry.key)
            elif takes(posixpath.dirname(entry.key), entry.key):
                check_name(entry.path)
                assert entry.stat is not None
                yield ListedFile(
                    key=entry.key, path=entry.path, stamp=stamp_of_stat(entry.stat), size=entry.stat.st_size,
                    modified=entry.stat.st_mtime,
                )  # fmt: skip


def _remote(
    url: str, options: Mapping[str, Any], within: PartitionRange, takes: _Takes, unread: Callable[[str], None]
) -> Iterator[ListedFile]:
    fs, root = open_filesystem(url, options)
    root = root.rstrip("/")

    def listed(folder: str, *, deep: bool) -> list[tuple[str, dict[str, Any]]]:
        def ask() -> list[tuple[str, dict[str, Any]]]:
            with as_os_errors():
                fs.invalidate_cache()
                if deep:
                    return list(fs.find(folder, detail=True).items())
                found = ((info["name"].rstrip("/"), info) for info in fs.ls(folder, detail=True))
                return [(path, info) for path, info in found if path != folder]  # an object may mark a folder

        return with_retries(ask, f"listing input={url!r}", failure=SourceError, remedy=BEFORE_THE_RUN)

    level = [root]
    while level:
        # One request for each folder of this level; below it, one for a thousand files, unless the range can exclude
        # folders further down.
        whole: list[str] = []
        ahead: list[str] = []
        for entries in map_ahead(lambda folder: listed(folder, deep=False), level):
            for path, info in entries:
                key = posixpath.relpath(path, root)
                if is_hidden(key):
                    unread(key)
                elif info["type"] != "directory":
                    if takes(posixpath.dirname(key), key):
                        yield _remote_file(fs, root, path, info)
                elif (inside := within.holds(key)) is not False:
                    (whole if inside else ahead).append(path)
        for entries in map_ahead(lambda folder: listed(folder, deep=True), whole):
            for path, info in entries:
                if is_hidden(key := posixpath.relpath(path, root)):
                    unread(key)
                elif info["type"] == "file":
                    yield _remote_file(fs, root, path, info)
        level = ahead


def _remote_file(fs: Any, root: str, path: str, info: Mapping[str, Any]) -> ListedFile:
    return ListedFile(
        key=posixpath.relpath(path, root),
        path=fs.unstrip_protocol(path),
        stamp=stamp_of_info(info),
        size=int(info.get("size") or 0),
        modified=modified_of_info(info),
        info=known_of_info(info),
    )


def found_of(file: ListedFile) -> Found:
    """A listed file as :func:`pipeline.sources.identity.source_file` takes it."""
    info = {**file.info, "size": file.size} if is_url(file.path) else {}
    return Found(key=file.key, path=file.path, info=info, folders=posixpath.dirname(file.key))


def open_added_files(
    name: str,
    found: Sequence[Found],
    options: Mapping[str, Any],
    *,
    table: pa.Schema | None,
    versions: Mapping[str, int] | None = None,
    input_format: str = ROWS,
) -> FileSource:
    """The source of files that are added to a table.

    ``table``: input columns that the table has; None for a new table. ``input_format``: but for "auto".

    Raises:
        SourceError: a file cannot be read, or has a column of a type that the table's, or another file's, cannot hold;
            the message names file, column, both types and the remedy.
    """

    def opened(files: Sequence[Found]) -> FileSource:
        return open_files(name, files, options, versions=versions, input_format=input_format)

    try:
        source = opened(found)
    except SourceError:
        for file in found:  # one that does not fit the table is at fault, not the other files
            _check_fits(opened([file]), table)
        raise
    if table is not None and _misfit(source, table) is not None:
        for file in found:
            _check_fits(opened([file]), table)
        _check_fits(source, table)
    return source


def _misfit(source: FileSource, table: pa.Schema) -> tuple[pa.Field, pa.Field] | None:
    """The first column of a source that does not fit that of a table, and the table's."""
    both = ((field, table.field(field.name)) for field in source.schema if field.name in table.names)
    return next(((own, there) for own, there in both if not source.fits(own.type, there.type)), None)


def _check_fits(source: FileSource, table: pa.Schema | None) -> None:
    """Refuse a column that does not fit the table."""
    if table is None or (found := _misfit(source, table)) is None:
        return
    own, there = found
    raise SourceError(
        f"input file {source.files[0].path!r}: column {own.name!r} is {own.type}, and {there.type} in the table. "
        f"Columns may be added, their types cannot change: write the file with {there.type} (or leave the column out), "
        "or write to another output."
    )
