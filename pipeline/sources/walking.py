"""Walks local folders, the same way for folders, patterns and scheduled runs.

Links to files and folders are followed. A link to a folder that it lies in is not entered, as there would be no end.
"""

from __future__ import annotations

import fnmatch
import os
import posixpath
import stat
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from pipeline.errors import SourceError

_ANY_DEPTH = "**"


@dataclass(frozen=True, kw_only=True)
class Entry:
    """An entry of a folder.

    Attributes:
        key: its path below the folder where the walk began.
        path: where it is.
        stat: of its target, if it is a link; None if a link has no target.
    """

    key: str
    path: str
    stat: os.stat_result | None

    @property
    def is_file(self) -> bool:
        """Whether it is a regular file, which can be read."""
        return self.stat is not None and stat.S_ISREG(self.stat.st_mode)

    @property
    def is_folder(self) -> bool:
        """Whether it is a folder."""
        return self.stat is not None and stat.S_ISDIR(self.stat.st_mode)


@dataclass(frozen=True)
class Folder:
    """A folder on the way of a walk.

    Attributes:
        path: where it is.
        key: its path below the folder where the walk began; empty for that one.
        way: device and inode of it and of the folders on the way to it.
    """

    path: str
    key: str = ""
    way: frozenset[tuple[int, int]] = frozenset()

    @classmethod
    def at(cls, path: str) -> Folder:
        """The folder where a walk begins; it need not exist."""
        try:
            found = os.stat(path)
        except OSError:
            return cls(path)
        return cls(path, way=frozenset([(found.st_dev, found.st_ino)]))

    def entries(self) -> list[Entry]:
        """Its entries by name; empty if it is gone.

        Raises:
            SourceError: it cannot be listed.
        """
        try:
            names = sorted(os.listdir(self.path))
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise SourceError(f"{self.path}: cannot be listed ({error}). Check it and run again.") from error
        return [self.entry(name) for name in names]

    def entry(self, name: str) -> Entry:
        """The entry of a name."""
        path = os.path.join(self.path, name)
        try:
            found = os.stat(path)
        except OSError:
            found = None
        return Entry(key=posixpath.normpath(posixpath.join(self.key, name)), path=path, stat=found)

    def enter(self, entry: Entry) -> Folder | None:
        """The folder that an entry is; None for a link to a folder on the way to it."""
        assert entry.stat is not None
        own = (entry.stat.st_dev, entry.stat.st_ino)
        return None if own in self.way else Folder(entry.path, entry.key, self.way | {own})


def folders(folder: Folder, enters: Callable[[Entry], bool]) -> Iterator[tuple[Folder, list[Entry]]]:
    """A folder and those below it, each with its entries that are not entered.

    ``enters``: whether an entry that is a folder is to be entered.

    Raises:
        SourceError: a folder cannot be listed.
    """
    waiting = [folder]
    while waiting:
        here, others = waiting.pop(), []
        for entry in here.entries():
            inner = here.enter(entry) if entry.is_folder and enters(entry) else None
            if inner is None:
                others.append(entry)
            else:
                waiting.append(inner)
        yield here, others


def matching(folder: Folder, parts: Sequence[str]) -> Iterator[Entry]:
    """The entries below a folder that match a pattern, given by its parts; ``**`` stands for folders of any depth.

    As in :mod:`glob`, a wildcard does not match names that begin with a dot. An entry may occur twice.

    Raises:
        SourceError: a folder cannot be listed.
    """
    first, rest = parts[0], parts[1:]
    if first == _ANY_DEPTH:
        for inner, _ in folders(folder, lambda entry: posixpath.basename(entry.key)[0] != "."):
            yield from matching(inner, rest or ["*"])
        return
    if has_wildcards(first):
        entries = [entry for entry in folder.entries() if _fits(posixpath.basename(entry.key), first)]
    else:
        entries = [entry for entry in [folder.entry(first)] if os.path.lexists(entry.path)]
    for entry in entries:
        if not rest:
            yield entry
        elif entry.is_folder:
            yield from matching(folder.enter(entry) or Folder(entry.path, entry.key, folder.way), rest)


def matches(parts: Sequence[str], names: Sequence[str]) -> bool:
    """Whether a path, given by the names in it, matches a pattern as of :func:`matching`."""
    if not parts or not names:
        return not parts and not names
    first, rest = parts[0], parts[1:]
    if first == _ANY_DEPTH:
        return matches(rest or ["*"], names) or (_fits(names[0], first) and matches(parts, names[1:]))
    return _fits(names[0], first) and matches(rest, names[1:])


def _fits(name: str, part: str) -> bool:
    return fnmatch.fnmatchcase(name, part) and (name[0] != "." or part[0] == ".")


def has_wildcards(name: str) -> bool:
    """Whether a name is a glob pattern."""
    return any(c in name for c in "*?[")


def is_hidden(key: str) -> bool:
    """Whether a file lies under a name that folders leave out."""
    return any(part[0] in "_." for part in key.split("/"))
