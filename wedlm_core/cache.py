"""The folder in which this package keeps what is costly to make again: compiled kernels, measured step costs."""

from __future__ import annotations

import functools
import os
import stat
import tempfile
from pathlib import Path

__all__ = ["cache_folder", "writable_cache"]


def cache_folder() -> Path:
    """``$WEDLM_CACHE_HOME``, else ``$XDG_CACHE_HOME/wedlm``, else ``~/.cache/wedlm``. It may not exist yet."""
    if own := os.environ.get("WEDLM_CACHE_HOME"):
        return Path(own)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path(os.path.expanduser("~")) / ".cache") / "wedlm"


def writable_cache(name: str) -> Path:
    """A folder in :func:`cache_folder`, made if necessary; where nothing can be written, one for temporary files.

    What is kept may be code, so a temporary folder that others could write to is not used: it is then a new one.
    """
    return _writable(cache_folder() / name)


@functools.lru_cache(maxsize=8)
def _writable(wanted: Path) -> Path:
    own = Path(tempfile.gettempdir()) / f"wedlm-cache-{os.getuid()}"
    for folder, private in ((wanted, False), (own / wanted.name, True)):
        try:
            if private:
                own.mkdir(mode=0o700, exist_ok=True)
                found = own.lstat()
                if found.st_uid != os.getuid() or not stat.S_ISDIR(found.st_mode) or found.st_mode & 0o077:
                    continue
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder):
                return folder
        except OSError:
            continue
    return Path(tempfile.mkdtemp(prefix="wedlm-cache-"))
