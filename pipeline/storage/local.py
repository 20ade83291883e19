"""Storage in a local or mounted folder, with temporary files, renames and links.

A file is flushed to disk before it gets its name, and its folder (with any new parent folders) after the rename or
link, before the call returns. So a power loss leaves a file complete or absent, and never removes a file that a later
one refers to.
"""

from __future__ import annotations

import errno
import itertools
import os
import shutil
import uuid
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import BinaryIO

_NO_LINKS = (errno.EPERM, errno.ENOSYS, errno.ENOTSUP, errno.EMLINK)
"""Errors of file systems without hard links (some mounted stores)."""
_NO_FOLDER_FLUSH = (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EBADF)
"""Errors of file systems that cannot flush a folder."""
_TAKEN = (errno.EEXIST, errno.ENOTDIR, errno.ENOTEMPTY)
"""Errors of a rename to a name that a file, or a folder with files, has."""
_PAGE = 1000
"""Directory entries per page."""


class LocalStorage:
    """A folder of a local or shared POSIX file system; renames and links are atomic there."""

    def __init__(self, root: str | os.PathLike[str], scratch: str) -> None:
        """``root``: the output folder; ``scratch``: key of the folder for unfinished files."""
        self._root = Path(os.path.expanduser(root)).absolute()
        self._scratch = self._root / scratch

    @property
    def url(self) -> str:
        """The absolute path."""
        return str(self._root)

    def put(self, key: str, data: bytes) -> None:
        """Write a temporary file, flush it to disk, rename it."""
        with self.create(key) as file:
            file.write(data)

    def put_new(self, key: str, data: bytes) -> bool:
        """Write a temporary file, then link it: that fails if the name is taken."""
        target = self._root / key
        with self._aside(target) as aside:
            with _opened(aside) as file:
                file.write(data)
                _flush(file)
            _make_folder(target.parent)
            try:
                os.link(aside, target)
            except FileExistsError:
                return False
            except FileNotFoundError as error:
                raise _swept(aside) from error
            except OSError as error:
                if error.errno not in _NO_LINKS:
                    raise
                if not _write_new(target, data):
                    return False
            _flush_folder(target.parent)
        return True

    def create(self, key: str) -> AbstractContextManager[BinaryIO]:
        """Write a temporary file, flush it to disk, rename it."""
        return self._create(self._root / key)

    @contextmanager
    def _create(self, target: Path) -> Iterator[BinaryIO]:
        with self._aside(target) as aside:
            with _opened(aside) as file:
                yield file
                _flush(file)
            _make_folder(target.parent)
            try:
                os.replace(aside, target)
            except FileNotFoundError as error:
                raise _swept(aside) from error
            _flush_folder(target.parent)

    @contextmanager
    def _aside(self, target: Path) -> Iterator[Path]:
        """A unique name for a temporary file, which is removed at the end if it still exists."""
        _make_folder(self._scratch)
        aside = self._scratch / f"{target.name}.{uuid.uuid4().hex[:12]}"
        try:
            yield aside
        finally:
            aside.unlink(missing_ok=True)

    def read(self, key: str) -> bytes:
        """Whole content."""
        return (self._root / key).read_bytes()

    def open(self, key: str) -> BinaryIO:
        """Open for reading."""
        return (self._root / key).open("rb")

    def exists(self, key: str) -> bool:
        """Whether the file or folder is there."""
        return (self._root / key).exists()

    def keys(self, prefix: str) -> list[str]:
        """Sorted keys below ``prefix``."""
        return sorted(_files_below(str(self._root / prefix), "" if prefix == "." else f"{prefix}/"))

    def sizes(self, prefix: str) -> dict[str, int]:
        """Sizes below ``prefix``."""
        return {key: (self._root / key).stat().st_size for key in self.keys(prefix)}

    def folders(self) -> list[str]:
        """Names of the folders in the root."""
        try:
            with os.scandir(self._root) as entries:
                return sorted(entry.name for entry in entries if entry.is_dir())
        except FileNotFoundError:
            return []

    def walk(self, prefix: str) -> Iterator[list[str]]:
        """Keys below ``prefix``, folder by folder, a page at a time."""
        folders = [self._root / prefix]
        while folders:
            try:
                entries = os.scandir(folders.pop())
            except FileNotFoundError:
                continue
            with entries:
                while page := list(itertools.islice(entries, _PAGE)):
                    folders += [Path(entry.path) for entry in page if entry.is_dir()]
                    files = (Path(entry.path) for entry in page if entry.is_file())
                    yield [path.relative_to(self._root).as_posix() for path in files]

    def delete(self, key: str) -> None:
        """Remove a file or a folder; readers see all files of a folder or none."""
        path = self._root / key
        if path.is_dir():
            self._scratch.mkdir(parents=True, exist_ok=True)
            aside = self._scratch / f"{path.name}.{uuid.uuid4().hex[:12]}"
            if not self._scratch.is_relative_to(path):
                path = path.rename(aside)
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)

    def delete_objects(self, keys: Sequence[str]) -> None:
        """Remove files."""
        for key in keys:
            (self._root / key).unlink(missing_ok=True)

    def promote(self, source: str, target: str) -> None:
        """One rename: readers see all files of the folder or none."""
        here, there = self._root / source, self._root / target
        if here.exists():
            _make_folder(there.parent)
            try:
                os.rename(here, there)
            except OSError as error:
                if error.errno not in _TAKEN:
                    raise
                why = "files of others have the name of a publication; move them elsewhere"
                raise FileExistsError(errno.EEXIST, why, str(there)) from error
            _flush_folder(there.parent)
            _flush_folder(here.parent)
        elif not there.exists():
            raise FileNotFoundError(f"neither {here} nor {there} exists")

    def sweep(self, before: float) -> None:
        """Remove the folder of unfinished files; a writer whose file is removed with it tries again."""
        shutil.rmtree(self._scratch, ignore_errors=True)


def _files_below(folder: str, prefix: str) -> Iterator[str]:
    """Keys of the files in a folder and its folders; ``prefix``: begin of the keys."""
    try:
        with os.scandir(folder) as entries:
            found = list(entries)
    except (FileNotFoundError, NotADirectoryError):  # removed meanwhile
        return
    for entry in found:
        if entry.is_dir(follow_symlinks=False):
            yield from _files_below(entry.path, f"{prefix}{entry.name}/")
        elif entry.is_file():
            yield f"{prefix}{entry.name}"


def _opened(aside: Path) -> BinaryIO:
    try:
        return aside.open("wb")
    except FileNotFoundError as error:
        raise _swept(aside) from error


def _swept(aside: Path) -> OSError:
    """A passing error: another process (a writer that was asleep) has removed the folder of unfinished files."""
    return OSError(errno.ESTALE, "removed by another process", str(aside))


def _flush(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


def _flush_folder(folder: Path) -> None:
    """Flush a folder's entries to disk, if the file system can."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _NO_FOLDER_FLUSH:
            raise
    finally:
        os.close(descriptor)


def _make_folder(folder: Path) -> None:
    """Make a folder and its parents, and flush them to disk."""
    if folder.is_dir():
        return
    _make_folder(folder.parent)
    folder.mkdir(exist_ok=True)
    _flush_folder(folder.parent)


def _write_new(target: Path, data: bytes) -> bool:
    """Create a new file; False if it exists. A crash may leave a part of it, which readers detect."""
    try:
        with target.open("xb") as file:
            file.write(data)
            _flush(file)
    except FileExistsError:
        return False
    return True
