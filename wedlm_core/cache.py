"""Folders for results that are costly to make again: the usual place, or a temporary one if that cannot be written to.

A read-only home is usual in containers, and so is a read-only installation. A cached result is made once per machine
instead of once per process.
"""

from __future__ import annotations

import functools
import logging
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_VARIABLE = "WEDLM_CACHE_HOME"
_PATIENCE = 180.0  # seconds

logger = logging.getLogger(__name__)


def cache_folder() -> Path:
    """``$WEDLM_CACHE_HOME``, else ``$XDG_CACHE_HOME/wedlm``, else ``~/.cache/wedlm``. It may not exist yet."""
    own = os.environ.get(_VARIABLE)
    return Path(os.path.expanduser(own)) if own else user_cache("wedlm")


def writable_cache(name: str = "") -> Path:
    """A folder in :func:`cache_folder` (or itself), made if necessary; a temporary one where that is read-only."""
    return writable_folder(cache_folder() / name, _VARIABLE)


@contextmanager
def one_at_a_time(name: str) -> Iterator[None]:
    """Context that one process of this machine runs at a time; the others then find its result in the cache.

    A process that waits longer than three minutes, or cannot lock files here, goes on at the same time: it makes
    the same result, and only costs time.
    """
    from filelock import FileLock, Timeout

    lock = FileLock(writable_cache() / f"{name}.lock")
    try:
        lock.acquire(timeout=_PATIENCE)
    except (Timeout, OSError, NotImplementedError) as error:
        logger.warning("%s: made in this process too, as the lock cannot be had (%s)", name, type(error).__name__)
    try:
        yield
    finally:
        lock.release()


def user_cache(name: str) -> Path:
    """``$XDG_CACHE_HOME/<name>``, else ``~/.cache/<name>``. It may not exist yet."""
    if base := os.environ.get("XDG_CACHE_HOME"):
        return Path(os.path.expanduser(base)) / name
    home = Path(os.path.expanduser("~"))  # stays "~" for a user without a home
    return home / ".cache" / name if home.is_absolute() else temporary_folder(name)


@functools.cache
def writable_folder(wanted: Path, variable: str) -> Path:
    """``wanted``, made if necessary; a temporary folder of its name if no file can be written there, which is logged.

    Args:
        wanted: the usual place.
        variable: the environment variable that names another one, for the message.
    """
    if is_writable(wanted):
        return wanted
    folder = temporary_folder(wanted.name)
    if not is_writable(folder):
        folder = Path(tempfile.mkdtemp(prefix="wedlm-cache-"))
    logger.warning(
        "%s cannot be written to; %s is used instead. Set %s to a folder that lasts.", wanted, folder, variable
    )
    return folder


def temporary_folder(name: str) -> Path:
    """A folder for temporary files that processes of this user share. It may not exist yet.

    A cached file may be code. So one that another user made, or could write to, is not used: it is then a new one.
    """
    user = os.getuid() if hasattr(os, "getuid") else "user"
    return _own(Path(tempfile.gettempdir()) / f"wedlm-cache-{user}") / name


@functools.cache
def _own(folder: Path) -> Path:
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
    except OSError:
        return Path(tempfile.mkdtemp(prefix="wedlm-cache-"))
    foreign = hasattr(os, "getuid") and (found.st_uid != os.getuid() or found.st_mode & 0o077)
    return Path(tempfile.mkdtemp(prefix="wedlm-cache-")) if foreign or not stat.S_ISDIR(found.st_mode) else folder


def is_writable(folder: Path) -> bool:
    """Whether a file can be made in the folder; makes the folder."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False
