"""Finds the files of an input path, folder, glob or URL."""

from __future__ import annotations

import itertools
import os
import posixpath
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pipeline.codec import redact
from pipeline.errors import SourceError
from pipeline.sources.identity import Found
from pipeline.sources.walking import Folder, folders, has_wildcards, is_hidden, matching
from pipeline.storage.open import check_reachable
from pipeline.storage.retry import BEFORE_THE_RUN, with_retries
from pipeline.storage.urls import as_os_errors, is_url, local_path, open_filesystem, plain_name


@dataclass(frozen=True, kw_only=True)
class Listing:
    """The files of an input.

    Attributes:
        base: the folder that keys are relative to, without credentials. It follows from the input's name alone, never
            from the files that are there: the input folder, the folder of a file, the folders of a pattern before its
            first wildcard.
        files: sorted by key.
        unread: keys of entries that are left out: hidden ones, links without a target, pipes and the like; also, with
            ``/`` at the end, folders that a pattern names, since it reads no file there.
    """

    base: str
    files: Sequence[Found] = ()
    unread: Sequence[str] = ()

    def named_as(self, base: str) -> Listing:
        """The same files under the keys that a run gives them which was begun with this base.

        If neither base lies in the other, the input was moved, and its files keep their keys.
        """
        if base == self.base or not (_is_below(base, self.base) or _is_below(self.base, base)):
            return self
        paths = [posixpath.join(self.base, file.key) for file in self.files]
        renamed = [
            replace(file, key=posixpath.relpath(path, base)) for file, path in zip(self.files, paths, strict=True)
        ]
        return replace(self, base=base, files=sorted(renamed, key=lambda file: file.key))


def _is_below(one: str, other: str) -> bool:
    return one.startswith(f"{other.rstrip('/')}/")


def find_files(path: str | os.PathLike[str], options: Mapping[str, Any]) -> Listing:
    """The files of a path, folder (recursively), glob or URL of one of these.

    In folders everything under names that begin with ``_`` or ``.`` is left out; a file or glob is taken
    literally. Links are followed. No files if nothing is found.

    Raises:
        SourceError: the URL's file system cannot be asked, or a folder cannot be listed.
    """
    name = plain_name(path)
    if not is_url(name):
        try:
            return _find_local(local_path(name))
        except OSError as error:  # a name that is too long, or in a folder that may not be read
            reason = error.strerror or error
            raise SourceError(f"input={name!r}: cannot be looked up ({reason}). Check the path.") from error

    def find() -> Listing:
        check_reachable(name, options, "input", SourceError)
        return _find_remote(name, options)

    return with_retries(
        find,
        f"looking up input={name!r}",
        failure=SourceError,
        remedy=BEFORE_THE_RUN,
    )


def _find_local(root: Path) -> Listing:
    base, named = str(root), list[str]()
    if root.is_file():
        check_name(base)
        return Listing(base=str(root.parent), files=[Found(key=root.name, path=base, info={})])
    if root.is_dir():
        walk = folders(Folder.at(base), lambda entry: not is_hidden(entry.key))
        found = [entry for _, entries in walk for entry in entries]
        read = [entry for entry in found if entry.is_file and not is_hidden(entry.key)]
    else:
        base, parts = split_pattern(base)
        matched = {entry.key: entry for entry in matching(Folder.at(base), parts)} if parts else {}
        found = [entry for entry in matched.values() if not entry.is_folder]
        read = [entry for entry in found if entry.is_file]
        named = _named_folders(str(root), (key for key, entry in matched.items() if entry.is_folder))
    for entry in read:
        check_name(entry.path)
    files = [
        Found(key=entry.key, path=str(local_path(entry.path)), info={}, folders=posixpath.dirname(entry.key))
        for entry in sorted(read, key=lambda entry: entry.key)
    ]
    names = {entry.key for entry in read}
    unread = [entry.key for entry in found if entry.key not in names]
    return Listing(base=os.path.abspath(base), files=files, unread=unread + named)


def _named_folders(pattern: str, keys: Iterable[str]) -> list[str]:
    """Folders that a pattern matches and reads nothing of: one with ``**`` goes into them."""
    return [] if "**" in pattern else [f"{key}/" for key in keys]


def check_name(path: str | os.PathLike[str]) -> None:
    """Refuse a local name that is not UTF-8: names of files become row ids, which are text.

    Raises:
        SourceError: it is none.
    """
    try:
        os.fspath(path).encode()
    except UnicodeEncodeError:
        shown = os.fsencode(path).decode("utf-8", "backslashreplace")
        raise SourceError(f"input file {shown!r}: its name is not UTF-8. Rename it, or leave it out.") from None


def split_pattern(pattern: str) -> tuple[str, list[str]]:
    """The folders of a pattern before its first part with a wildcard, and the parts from there on; none: no pattern."""
    parts = pattern.split("/")
    fixed = list(itertools.takewhile(lambda part: not has_wildcards(part), parts))
    return "/".join(fixed) or ("/" if pattern.startswith("/") else ""), [p for p in parts[len(fixed) :] if p]


def _find_remote(url: str, options: Mapping[str, Any]) -> Listing:
    fs, root = open_filesystem(url, options)
    unread: list[str] = []
    with as_os_errors():
        fs.invalidate_cache()
        # A name with brackets is a pattern only if nothing has this very name.
        if fs.isfile(root):
            files, base = {root: fs.info(root)}, posixpath.dirname(root)
        elif has_wildcards(root) and not fs.isdir(root):
            matched = fs.glob(root, detail=True)
            files = {path: info for path, info in matched.items() if info["type"] == "file"}
            base = split_pattern(root)[0]
            unread = _named_folders(root, (posixpath.relpath(p, base or ".") for p in matched if p not in files))
        else:
            base = root.rstrip("/")
            listed = fs.find(base, detail=True)
            there = {p: i for p, i in listed.items() if i["type"] == "file" and not p.endswith("/")}
            files = {p: i for p, i in there.items() if not is_hidden(posixpath.relpath(p, base))}
            unread = [posixpath.relpath(path, base) for path in there if path not in files]
    found = []
    for path, info in files.items():
        key = posixpath.relpath(path, base) if base else path
        found.append(
            Found(key=key, path=fs.unstrip_protocol(path), info=info, folders=posixpath.dirname(key))
        )  # fmt: skip
    return Listing(
        base=redact(fs.unstrip_protocol(base)), files=sorted(found, key=lambda f: f.key), unread=unread,
    )  # fmt: skip


def suffix_of(path: str, suffixes: Iterable[str]) -> str | None:
    """The one of these suffixes (in lower case) that a name ends with; None if it has none of them."""
    name = path.lower()
    return next((suffix for suffix in suffixes if name.endswith(suffix)), None)


def has_suffix(path: str, suffixes: Iterable[str]) -> bool:
    """Whether a name ends with one of these suffixes."""
    return suffix_of(path, suffixes) is not None
