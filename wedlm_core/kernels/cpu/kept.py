"""Where compiled kernels are kept: under a hash of all their sources and their compilers. Imports no Numba."""

from __future__ import annotations

import functools
import hashlib
import logging
import os
import shutil
import time
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path

from wedlm_core.cache import cache_folder, writable_cache

_PACKAGE = Path(__file__).parents[2]
_SOURCES = ("kernels/cpu/*.py", "statistics.py")  # kernels, and modules of their constants
_COMPILERS = ("numba", "llvmlite")
_NOTE = "complete"  # a file beside the kernels: those of a whole engine are there
_UNUSED = 30 * 24 * 3600.0  # kernels of another version are removed after so many seconds

logger = logging.getLogger(__name__)


@functools.cache
def _version_of(package: Path) -> str:
    # Kept kernels name their modules, and a copy of this package may have another name (``wedlm_batch.beside_...``).
    digest = hashlib.blake2b(" ".join([__name__, *map(version, _COMPILERS)]).encode(), digest_size=8)
    for path in sorted(path for pattern in _SOURCES for path in package.glob(pattern)):
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()


def kernel_folder() -> Path:
    """The folder of these very kernels; it is made if necessary.

    Kernels of a whole engine are read where nothing can be written to as well, as in an image that brings them.
    """
    return _folder(cache_folder(), f"kernels-{_version_of(_PACKAGE)}")


@functools.cache
def _folder(cache: Path, name: str) -> Path:
    found, is_new = cache / name, not os.path.exists(cache / name)
    if not os.path.exists(found / _NOTE):
        found = writable_cache(name)
    with suppress(OSError):
        os.utime(found)  # it is in use
        if is_new:
            _remove_unused(found.parent)
    return found


def _remove_unused(cache: Path) -> None:
    """Remove kernels of other versions that no process has used for long: each version has 20 to 70 MB."""
    for folder in cache.glob("kernels-*/"):
        if time.time() - folder.stat().st_mtime > _UNUSED:
            shutil.rmtree(folder, ignore_errors=True)


def note_kept() -> None:
    """Say that an engine has compiled all kernels that it needs."""
    try:
        (kernel_folder() / _NOTE).touch()
    except OSError as error:
        logger.warning("compiled kernels are not kept (%s): the next start compiles them again", error)


def are_kept() -> bool:
    """Whether an engine has compiled its kernels before. If not, the next one on a CPU starts some 15 to 80 s later.

    Those of other numbers may still have to be compiled, in a few seconds.
    """
    return os.path.exists(kernel_folder() / _NOTE)
