"""Memory in large pages, where the system has them; and memory that is given back before its owner is gone.

Every forward reads all weights. In pages of 4 KiB the processor spends part of that time on finding out where they are.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap

import torch
from torch import Tensor

_FEWEST_BYTES = 4 << 20  # two of the usual large pages: less would waste much of one


def large(count: int) -> Tensor:
    """uint8 ``[count]``, not initialised."""
    if count < _FEWEST_BYTES or not hasattr(mmap, "MADV_HUGEPAGE"):
        return torch.empty(count, dtype=torch.uint8)
    block = mmap.mmap(-1, count, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # a kernel without them: pages are small
        block.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(block, dtype=torch.uint8)


def let_go(rows: Tensor) -> None:
    """Give memory back to the system; the tensor is its last user, and its values are lost.

    Args:
        rows: on the CPU, contiguous. Whole pages inside of it are given back; nothing where the system knows no way.
    """
    if not hasattr(mmap, "MADV_DONTNEED"):
        return
    begin = -(-rows.data_ptr() // mmap.PAGESIZE) * mmap.PAGESIZE
    count = (rows.data_ptr() + rows.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE - begin
    if count > 0:
        ctypes.CDLL(None).madvise(ctypes.c_void_p(begin), ctypes.c_size_t(count), ctypes.c_int(mmap.MADV_DONTNEED))
