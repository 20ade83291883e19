"""The C++ part: a device guard for ``cuda:N``, compiled once against torch's headers and cached."""

from __future__ import annotations

import ctypes
import hashlib
import os
import subprocess
import tempfile
from functools import cache
from pathlib import Path

import torch

_SOURCE = Path(__file__).with_name("guard.cpp")


class Guard:
    """The current device of each thread, shared with torch's own guards.

    Args:
        library: the compiled guard, which registers itself when it is loaded.
    """

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library

    @property
    def device(self) -> int:
        """Index of the calling thread's current device."""
        return int(self._library.pretend_device())

    @device.setter
    def device(self, index: int) -> None:
        self._library.pretend_set_device(index)

    def set_count(self, count: int) -> None:
        """Set the number of devices."""
        self._library.pretend_set_count(count)


@cache
def guard() -> Guard:
    """Load the guard into this process. It is compiled first if this torch has no cached build (about 2 s).

    Raises:
        RuntimeError: there is no C++ compiler, or compiling fails; the message has its output.
    """
    return Guard(ctypes.CDLL(str(_compiled())))


def _compiled() -> Path:
    root = Path(torch.__file__).parent
    abi = f"-D_GLIBCXX_USE_CXX11_ABI={int(torch._C._GLIBCXX_USE_CXX11_ABI)}"
    options = ["-O1", "-shared", "-fPIC", "-std=c++20", abi, f"-I{root / 'include'}"]
    facts = (torch.__version__, str(root), _SOURCE.read_text(encoding="utf-8"), *options)
    key = hashlib.blake2b("\n".join(facts).encode(), digest_size=8).hexdigest()
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    target = cache / "wedlm-testing" / f"guard-{key}.so"
    if target.is_file():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        made = Path(folder) / "guard.so"
        command = [os.environ.get("CXX", "g++"), *options, str(_SOURCE), "-o", str(made), f"-L{root / 'lib'}", "-lc10"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        except FileNotFoundError as error:
            raise RuntimeError(f"CXX={command[0]!r}: the pretend device needs a C++ compiler. Install g++.") from error
        if done.returncode != 0:
            raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr[-3000:]}")
        made.replace(target)
    return target
