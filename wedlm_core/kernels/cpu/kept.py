"""Where compiled kernels are kept: under a hash of all their sources and of what compiles them. Imports no Numba."""

from __future__ import annotations

import functools
import hashlib
from importlib.metadata import version
from pathlib import Path

from wedlm_core.cache import writable_cache

__all__ = ["are_kept", "kernel_folder", "note_kept"]

_COMPILERS = ("numba", "llvmlite")
_NOTE = "complete"  # a file beside the kernels: those of a whole engine are there


@functools.cache
def _version_of(folder: Path) -> str:
    # Kept kernels name their modules, and a copy of this package may have another name (``wedlm_batch.beside_...``).
    digest = hashlib.blake2b(" ".join([__name__, *map(version, _COMPILERS)]).encode(), digest_size=8)
    for path in sorted(folder.glob("*.py")):
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()


def kernel_folder() -> Path:
    """The folder of these very kernels; it is made if necessary."""
    return writable_cache(f"kernels-{_version_of(Path(__file__).parent)}")


def note_kept() -> None:
    """Say that an engine has compiled all kernels that it needs."""
    (kernel_folder() / _NOTE).touch()


def are_kept() -> bool:
    """Whether an engine has compiled its kernels before. If not, the next one on a CPU starts some 15 to 70 s later.

    Those of other numbers may still have to be compiled, in a few seconds.
    """
    return (kernel_folder() / _NOTE).exists()
