"""Where Numba keeps the compiled kernels. Numba refuses to cache a function at all if it finds no writable place."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from wedlm_core.cache import is_writable, user_cache, writable_cache

__all__ = ["choose_cache"]

_VARIABLE = "NUMBA_CACHE_DIR"
_PLAIN_NAME = "wedlm_core"


def choose_cache() -> None:
    """Set Numba's cache folder where its own choice would fail. To be called before a kernel's module is imported.

    Numba takes ``$NUMBA_CACHE_DIR``, else ``__pycache__`` beside the source, else a folder of the user's. Cached
    kernels name their modules, so a copy of this package with another name (``wedlm_batch``, for users who have a
    ``wedlm_core`` of their own) has a cache of its own.
    """
    given = os.environ.get(_VARIABLE)
    if __name__.partition(".")[0] != _PLAIN_NAME:
        _set(writable_cache(f"kernels-of-{__name__.partition(f'.{_PLAIN_NAME}')[0]}"))
        return
    usual = [Path(__file__).parent / "__pycache__", user_cache("numba")]
    if not any(map(is_writable, [Path(given), *usual] if given else usual)):
        _set(writable_cache("kernels"))


def _set(folder: Path) -> None:
    os.environ[_VARIABLE] = str(folder)  # for processes that this one starts, too
    if (numba := sys.modules.get("numba")) is not None:
        numba.config.CACHE_DIR = str(folder)
