"""The one seam to the file system: whole objects appear at once, or not at all.

Everything that the exactly-once protocol relies on is the handful of operations of :class:`Storage`.
:class:`LocalStorage` implements them with temporary files and renames; an object store has them natively
(a put is atomic) and only :meth:`Storage.promote` differs there. Keys are relative, ``/``-separated.
"""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import BinaryIO, Protocol

from pipeline.errors import ConfigError

__all__ = ["LocalStorage", "Storage", "open_storage"]


class Storage(Protocol):
    """An output folder. Picklable: actors and tasks get a copy."""

    @property
    def url(self) -> str:
        """Where it is, for people and readers."""
        ...

    def create(self, key: str) -> AbstractContextManager[BinaryIO]:
        """A file that becomes visible under ``key``, replacing what was there, when the block ends well."""
        ...

    def read(self, key: str) -> bytes:
        """Whole content. Raises FileNotFoundError."""
        ...

    def open(self, key: str) -> BinaryIO:
        """Random access to an existing object. Raises FileNotFoundError."""
        ...

    def exists(self, key: str) -> bool:
        """Whether an object, or anything below ``key``, is there."""
        ...

    def keys(self, prefix: str) -> list[str]:
        """Sorted keys of all objects below the folder ``prefix``; empty where it does not exist."""
        ...

    def delete(self, key: str) -> None:
        """Remove an object or a whole folder; absent is fine."""
        ...

    def promote(self, source: str, target: str) -> None:
        """Give the folder ``source`` the name ``target``; fine if that was done before."""
        ...


class LocalStorage:
    """A folder of a local or shared POSIX file system; renames are atomic there."""

    def __init__(self, root: str | os.PathLike[str], scratch: str) -> None:
        """``root``: the output folder; ``scratch``: key of the folder for unfinished files."""
        self._root = Path(root).expanduser().absolute()
        self._scratch = self._root / scratch

    @property
    def url(self) -> str:
        """The absolute path."""
        return str(self._root)

    def create(self, key: str) -> AbstractContextManager[BinaryIO]:
        """Write aside, flush to the disk, rename."""
        return self._create(self._root / key)

    @contextmanager
    def _create(self, target: Path) -> Iterator[BinaryIO]:
        self._scratch.mkdir(parents=True, exist_ok=True)
        aside = self._scratch / f"{target.name}.{uuid.uuid4().hex[:12]}"
        try:
            with aside.open("wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            target.parent.mkdir(parents=True, exist_ok=True)
            os.replace(aside, target)
        except BaseException:
            aside.unlink(missing_ok=True)
            raise

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
        folder = self._root / prefix
        return sorted(str(path.relative_to(self._root)) for path in folder.rglob("*") if path.is_file())

    def delete(self, key: str) -> None:
        """Remove a file or a folder."""
        path = self._root / key
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)

    def promote(self, source: str, target: str) -> None:
        """One rename: readers see all files of the folder or none."""
        here, there = self._root / source, self._root / target
        if here.exists():
            there.parent.mkdir(parents=True, exist_ok=True)
            os.rename(here, there)
        elif not there.exists():
            raise FileNotFoundError(f"neither {here} nor {there} exists")


def open_storage(url: str | os.PathLike[str], scratch: str) -> Storage:
    """The storage of an output path.

    Raises:
        ConfigError: an URL of a scheme that has no storage yet.
    """
    name = os.fspath(url).removeprefix("file://")
    if "://" in name:
        raise ConfigError(f"output={name!r}: only local and mounted folders can be written to. Give a path.")
    return LocalStorage(name, scratch)
