"""Finds the files of an input path, folder, glob or URL, and computes the identity of each."""

from __future__ import annotations

import glob
import hashlib
import itertools
import os
import posixpath
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.codec import file_digest, sampled_stretches
from pipeline.errors import SourceError
from pipeline.sources.identity import stamp_now, stamp_of_info
from pipeline.sources.partitions import partitions_in
from pipeline.storage.first_contact import check_reachable
from pipeline.storage.retry import BEFORE_THE_RUN, with_retries
from pipeline.storage.urls import as_os_errors, is_url, local_path, open_filesystem, plain_name
from pipeline.types import SourceFile

__all__ = ["Found", "check_name", "digest_now", "find_files", "has_wildcards", "is_hidden",
           "source_file"]  # fmt: skip

_STORE_DIGESTS = ("ETag", "etag", "md5Hash", "content_md5")
"""Names under which object stores report the hash of an object's content."""


@dataclass(frozen=True, kw_only=True)
class Found:
    """A file that was found.

    Attributes:
        key: name inside the input.
        path: where to open it: an absolute path or an URL.
        info: the file system's metadata; empty for local files.
        folders: the folders it lies in, below the input folder or the part of a pattern before its first wildcard.
    """

    key: str
    path: str
    info: Mapping[str, Any]
    folders: str = ""


def has_wildcards(name: str) -> bool:
    """Whether a name is a glob pattern."""
    return any(c in name for c in "*?[")


def find_files(path: str | os.PathLike[str], options: Mapping[str, Any]) -> list[Found]:
    """The files of a path, folder (recursively), glob or URL of one of these, sorted by key.

    In folders everything under names that begin with ``_`` or ``.`` is left out; a file or glob is taken
    literally. Empty if nothing is found.

    Raises:
        SourceError: the URL's file system cannot be asked.
    """
    name = plain_name(path)
    if not is_url(name):
        return _find_local(Path(name).expanduser())

    def find() -> list[Found]:
        check_reachable(name, options, "input", SourceError)
        return _find_remote(name, options)

    return with_retries(
        find,
        f"looking up input={name!r}",
        failure=SourceError,
        remedy=BEFORE_THE_RUN,
    )


def _find_local(root: Path) -> list[Found]:
    if root.is_dir():
        paths, base = [p for p in root.rglob("*") if p.is_file()], root
        paths = [p for p in paths if not is_hidden(p.relative_to(root).as_posix())]
        fixed = root
    elif root.is_file():
        paths, base, fixed = [root], root.parent, root.parent
    else:
        paths = [Path(p) for p in glob.glob(str(root), recursive=True) if os.path.isfile(p)]
        base = Path(os.path.commonpath([p.parent for p in paths])) if paths else root
        fixed = Path(_before_wildcards(str(root)))
    for path in paths:
        check_name(path)
    found = [
        Found(
            key=p.relative_to(base).as_posix(),
            path=str(local_path(p)),
            info={},
            folders=p.parent.relative_to(fixed).as_posix(),
        )
        for p in paths
    ]
    return sorted(found, key=lambda f: f.key)


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


def _before_wildcards(pattern: str) -> str:
    """The folders of a pattern that are in front of the first one with a wildcard."""
    folders = "/".join(itertools.takewhile(lambda part: not has_wildcards(part), pattern.split("/")))
    return folders or ("/" if pattern.startswith("/") else "")


def _find_remote(url: str, options: Mapping[str, Any]) -> list[Found]:
    fs, root = open_filesystem(url, options)
    with as_os_errors():
        fs.invalidate_cache()
        if has_wildcards(root):
            files = {path: info for path, info in fs.glob(root, detail=True).items() if info["type"] == "file"}
            base = posixpath.commonpath([posixpath.dirname(path) for path in files]) if files else root
            fixed = _before_wildcards(root)
        elif fs.isfile(root):
            files, base = {root: fs.info(root)}, posixpath.dirname(root)
            fixed = base
        else:
            base = fixed = root.rstrip("/")
            listed = fs.find(base, detail=True)
            files = {p: i for p, i in listed.items() if i["type"] == "file" and not p.endswith("/")}
            files = {p: i for p, i in files.items() if not is_hidden(posixpath.relpath(p, base))}
    found = [
        Found(
            key=posixpath.relpath(path, base),
            path=fs.unstrip_protocol(path),
            info=info,
            folders=posixpath.relpath(posixpath.dirname(path), fixed) if fixed else posixpath.dirname(path),
        )
        for path, info in files.items()
    ]
    return sorted(found, key=lambda f: f.key)


def is_hidden(key: str) -> bool:
    """Whether a file lies under a name that folders leave out."""
    return any(part[0] in "_." for part in key.split("/"))


def source_file(found: Found, options: Mapping[str, Any], *, partitioned: bool = True) -> SourceFile:
    """The file with its identity; ``partitioned``: whether folders named ``name=value`` are columns.

    Raises:
        SourceError: it cannot be read.
    """

    def identify() -> SourceFile:
        # The stamp first: of a file that is edited meanwhile the digest may be new, but then the stamp is old.
        if is_url(found.path):
            stamp, digest = stamp_of_info(found.info), _remote_digest(found, options)
            size = int(found.info.get("size") or 0)
        else:
            stamp, digest = stamp_now(found.path, options), file_digest(found.path)
            size = os.path.getsize(found.path)
        partitions = partitions_in(found.folders) if partitioned else ()
        return SourceFile(
            key=found.key, path=found.path, digest=digest, stamp=stamp, size=size, partitions=partitions
        )  # fmt: skip

    return with_retries(identify, f"reading {found.path}", failure=SourceError, remedy=BEFORE_THE_RUN)


def digest_now(path: str, options: Mapping[str, Any]) -> str:
    """The digest of a path or URL at this moment.

    Raises:
        OSError: it cannot be read.
    """
    if not is_url(path):
        return file_digest(local_path(path))
    fs, inner = open_filesystem(path, options)
    with as_os_errors():
        return _remote_digest(Found(key="", path=path, info=fs.info(inner)), options)


def _remote_digest(found: Found, options: Mapping[str, Any]) -> str:
    """From the store's own hash and the size, where the listing has them; else as :func:`file_digest`."""
    size = found.info.get("size")
    own = next((found.info[name] for name in _STORE_DIGESTS if found.info.get(name)), None)
    if own is not None:
        return hashlib.blake2b(f"{own}\x1f{size}".encode(), digest_size=12).hexdigest()
    fs, path = open_filesystem(found.path, options)
    with as_os_errors():
        if size is None:
            pieces, size = [fs.cat_file(path)], 0
        else:
            begins, ends = zip(*sampled_stretches(size), strict=True)
            pieces = fs.cat_ranges([path] * len(begins), list(begins), list(ends), on_error="raise")
    digest = hashlib.blake2b(str(size).encode(), digest_size=12)
    for piece in pieces:
        digest.update(piece)
    return digest.hexdigest()
