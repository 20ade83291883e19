"""Compiles kernels with Numba, and keeps the machine code for later processes.

Numba itself keeps kernels next to the source where it can write there, and loads a kernel although a function inlined
in it has changed. Here it is kept in the user's cache folder, apart for each version of the kernels
(:mod:`wedlm_core.kernels.cpu.kept`): checkouts, environments and actors with the same kernels share it, and it is never
out of date.
"""

from __future__ import annotations

import functools
import hashlib
import logging
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numba
from llvmlite import ir
from numba import types
from numba.core import caching, cgutils, sigutils
from numba.core.ccallback import CFunc
from numba.extending import intrinsic

from wedlm_core.kernels.cpu.kept import kernel_folder

_CHECKSUM = 16  # bytes

logger = logging.getLogger(__name__)


def kernel(function: Callable[..., Any] | None = None, *, inline: str = "never", label: str = "") -> Any:
    """Compile a function when it is first called, or take it from the cache. A decorator, with options or without.

    Kernels release the interpreter lock, check no bounds, and do not reorder sums.

    Args:
        function: to compile.
        inline: "always" for functions that Numba itself inlines.
        label: tells apart functions that come from one definition, with different variables of the enclosing function.
            Machine code of several processes meets in one cache, where they are found by name, and of two functions of
            a name the linker takes one.
    """
    if function is None:
        return lambda found: kernel(found, inline=inline, label=label)
    function.__qualname__ += label
    njit: Any = numba.njit
    dispatcher = njit(inline=inline, nogil=True, error_model="numpy")(function)
    if hasattr(dispatcher, "_cache"):  # with Numba's compiler turned off, it is the function itself
        dispatcher._cache = _Cache(function)
    return dispatcher


def c_function(kernel: Any) -> int:
    """Compile a kernel of int64 that returns nothing for callers in C, or take it from the cache; its address.

    It stays valid for the life of the process.
    """
    function: Callable[..., Any] = kernel.py_func
    taken = ", ".join(["int64"] * function.__code__.co_argcount)
    compiled: Any = CFunc(function, sigutils.normalize_signature(f"void({taken})"), {}, {"error_model": "numpy"})
    compiled._cache = _Cache(function)
    compiled.compile()
    _COMPILED.append(compiled)
    return int(compiled.address)


_COMPILED: list[Any] = []
"""Keeps machine code alive whose address was given away."""


@intrinsic
def _call_at(typing_context: Any, address: Any, arguments: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        given = cgutils.unpack_tuple(builder, args[1], len(signature.args[1]))
        kind = ir.FunctionType(ir.VoidType(), [ir.IntType(64)] * len(given))
        builder.call(builder.inttoptr(args[0], kind.as_pointer()), given)
        return context.get_dummy_value()

    return types.void(types.int64, types.UniTuple(types.int64, len(arguments))), generate


call_at: Any = _call_at
"""Call a function of int64 that returns nothing at an address, in a kernel: ``call_at(address, (1, 2))``."""


class _Locator(caching._CacheLocator):
    """Says where the machine code of a function is kept."""

    def __init__(self, line: int) -> None:
        self._line, self._folder = line, kernel_folder()

    @classmethod
    def from_function(cls, py_func: Any, py_file: str) -> _Locator:
        return cls(py_func.__code__.co_firstlineno)

    def get_cache_path(self) -> str:
        return str(self._folder)

    def get_source_stamp(self) -> str:
        return self._folder.name

    def get_disambiguator(self) -> str:
        return str(self._line)


class _Implementation(caching.CompileResultCacheImpl):
    _locator_classes: list[Any] = [_Locator]  # noqa: RUF012  # as it is in Numba


class _CheckedFiles(caching.IndexDataCacheFile):
    """Files of a function whose contents end with a checksum: a processor runs whatever bytes it is given."""

    def _dump(self, obj: Any) -> bytes:
        content: bytes = super()._dump(obj)
        return content + self._checksum(content)  # its readers stop before

    def _load_data(self, name: str) -> Any:
        content = Path(self._data_path(name)).read_bytes()
        if content[-_CHECKSUM:] != self._checksum(content[:-_CHECKSUM]):
            raise ValueError("its checksum is another one")
        return super()._load_data(name)

    def _checksum(self, content: bytes) -> bytes:
        return hashlib.blake2b(self._index_name.encode() + content, digest_size=_CHECKSUM).digest()


class _Cache(caching.FunctionCache):
    """Never fails: an unreadable kernel is compiled again, and one that cannot be kept is used."""

    _impl_class = _Implementation

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)
        self._cache_file = _CheckedFiles(
            cache_path=self._cache_path,
            filename_base=self._impl.filename_base,
            source_stamp=self._impl.locator.get_source_stamp(),
        )

    def _index_key(self, sig: Any, codegen: Any) -> Any:
        """Numba would add the variables of an enclosing function, kernels that are new in each process."""
        return sig, codegen.magic_tuple()

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """The kernel kept for a signature; None, so that it is compiled again, also where its files are damaged."""
        try:
            return super().load_overload(sig, target_context)
        except Exception as error:  # whatever reading something else than a pickle raises
            logger.warning("a compiled kernel in %s is damaged (%s): it is compiled again", self.cache_path, error)
            with suppress(OSError):
                self.flush()
            return None

    def save_overload(self, sig: Any, data: Any) -> None:
        """Keep the kernel compiled for a signature, if that works."""
        try:
            super().save_overload(sig, data)
        except Exception as error:  # a full disk, or reading an index that is damaged
            _say_once(f"kernels are not kept in {self.cache_path} ({error}), so each process compiles them again")


@functools.cache
def _say_once(line: str) -> None:
    logger.warning("%s: %s", line, "set WEDLM_CACHE_HOME to a folder with room that can be written to")
